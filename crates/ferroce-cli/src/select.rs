//! Filters of rows: `link DEV/PORT`, `lqpn 17-20,33`, `type RC`.

use anyhow::Result;

use crate::row::{Row, Value};
use crate::rows;
use crate::usage::Usage;

/// The filters of rdma(8); a row must match all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub device: Option<String>,
    filters: Vec<(String, Vec<Wanted>)>,
}

/// A value, or a range of numbers.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Word(String),
    Range(u64, u64),
}

impl Selection {
    /// Parses pairs of a key and a value; `keys` are those of the rows.
    pub fn parse(words: &[String], keys: &[&str]) -> Result<Self> {
        let mut selection = Self::default();
        for pair in words.chunks(2) {
            match pair {
                [key, value] if matches!(&**key, "link" | "dev") => {
                    // `fr0/-` means all its ports, of which there is one.
                    let value = value.strip_suffix("/-").unwrap_or(value);
                    selection.device = Some(rows::port_of(value)?.to_owned());
                }
                [key, values] if keys.contains(&&**key) => {
                    let wanted = values.split(',').map(Wanted::from).collect();
                    selection.filters.push((key.clone(), wanted));
                }
                [key, _] => {
                    let known = [&["link"], keys].concat().join(", ");
                    return Err(Usage(format!("'{key}' was not expected; there are: {known}")).into());
                }
                _ => return Err(Usage(format!("'{}' needs a value", pair.concat())).into()),
            }
        }
        Ok(selection)
    }

    pub fn has_device(&self, name: &str) -> bool {
        self.device.as_ref().is_none_or(|device| device == name)
    }

    /// Returns whether a row matches.
    pub fn takes(&self, row: &Row) -> bool {
        self.filters.iter().all(|(key, wanted)| {
            row.get(key).is_some_and(|value| wanted.iter().any(|wanted| wanted.is(value)))
        })
    }
}

impl From<&str> for Wanted {
    fn from(text: &str) -> Self {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let range = match text.split_once('-') {
            Some((from, to)) => number(from).zip(number(to)),
            None => number(text).map(|one| (one, one)),
        };
        range.map_or_else(|| Self::Word(text.to_owned()), |(from, to)| Self::Range(from, to))
    }
}

impl Wanted {
    fn is(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Range(from, to), Value::Number(value) | Value::Hex(value)) => (from..=to).contains(&value),
            (Self::Word(word), Value::Text(text)) => word.eq_ignore_ascii_case(text),
            (Self::Range(from, to), Value::Text(text)) => from == to && *text == from.to_string(),
            (Self::Word(_), _) | (_, Value::Rate(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Head;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn values_are_words_numbers_and_ranges() {
        let row = Row::new(Head::Link(None, "fr0".to_owned()))
            .number("lqpn", 17_u32)
            .text("type", "RC")
            .hex("rkey", 0x48e_u32);
        let keys = ["lqpn", "type", "rkey"];
        for (text, taken) in [
            ("", true),
            ("lqpn 17", true),
            ("lqpn 3,10-20", true),
            ("lqpn 18-20", false),
            ("type rc", true),
            ("type UD,RC lqpn 17", true),
            ("type RC lqpn 16", false),
            ("rkey 0x48e", true),
            ("lqpn nonsense", false),
        ] {
            assert_eq!(Selection::parse(&words(text), &keys).unwrap().takes(&row), taken, "{text}");
        }
    }

    #[test]
    fn a_device_is_named_with_or_without_its_port() {
        for text in ["link fr0", "link fr0/1", "dev fr0", "link fr0/-"] {
            let selection = Selection::parse(&words(text), &[]).unwrap();
            assert!(selection.has_device("fr0") && !selection.has_device("fr1"), "{text}");
        }
        for text in ["link", "link fr0/2", "lqpn 1", "fr0"] {
            assert!(Selection::parse(&words(text), &[]).is_err(), "{text}");
        }
    }
}
