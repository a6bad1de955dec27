//! Output lines of an object, in the format of rdma(8) or as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::ser::{Serialize, SerializeMap, Serializer};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(u64),
    /// A number shown in hexadecimal.
    Hex(u64),
    /// A number for each second, with one decimal.
    Rate(f64),
}

/// The beginning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// `link DEV/1`; with the device's index in JSON.
    Link(Option<u32>, String),
    /// `dev DEV`.
    Dev(u32, String),
    /// `INDEX: DEV:`.
    Index(u32, String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    head: Head,
    fields: Vec<(String, Value)>,
}

impl Row {
    pub fn new(head: Head) -> Self {
        Self { head, fields: Vec::new() }
    }

    pub fn number(mut self, key: &str, value: impl Into<u64>) -> Self {
        self.fields.push((key.to_owned(), Value::Number(value.into())));
        self
    }

    pub fn hex(mut self, key: &str, value: impl Into<u64>) -> Self {
        self.fields.push((key.to_owned(), Value::Hex(value.into())));
        self
    }

    pub fn text(mut self, key: &str, value: impl Into<String>) -> Self {
        self.fields.push((key.to_owned(), Value::Text(value.into())));
        self
    }

    /// The rows with rates in place of the numbers that `is_counter` names. `before` has the rows that were
    /// read `seconds` earlier; what is not among them began at zero, and so did a counter that is less than
    /// before.
    pub fn rates(now: &[Self], before: &[Self], seconds: f64, is_counter: fn(&str) -> bool) -> Vec<Self> {
        let name = |row: &Self| {
            let fixed = row.fields.iter().filter(|(key, _)| !is_counter(key)).cloned();
            Self { head: row.head.clone(), fields: fixed.collect() }.to_string()
        };
        let before: BTreeMap<String, &Self> = before.iter().map(|row| (name(row), row)).collect();
        let rates = |row: &Self| row.clone().since(before.get(&name(row)).copied(), seconds, is_counter);
        now.iter().map(rates).collect()
    }

    fn since(mut self, old: Option<&Self>, seconds: f64, is_counter: fn(&str) -> bool) -> Self {
        for (key, value) in &mut self.fields {
            if let Value::Number(now) = *value
                && is_counter(key)
            {
                let old = match old.and_then(|row| row.get(key)) {
                    Some(Value::Number(old)) if *old <= now => *old,
                    _ => 0,
                };
                *value = Value::Rate(((now - old) as f64 / seconds * 10.0).round() / 10.0);
            }
        }
        self
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Hex(number) => write!(f, "{number:#x}"),
            Self::Rate(rate) => write!(f, "{rate}"),
        }
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.head {
            Head::Link(_, name) => write!(f, "link {name}/1")?,
            Head::Dev(_, name) => write!(f, "dev {name}")?,
            Head::Index(index, name) => write!(f, "{index}: {name}:")?,
        }
        self.fields.iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let (index, name, port) = match &self.head {
            Head::Link(index, name) => (*index, name, true),
            Head::Dev(index, name) | Head::Index(index, name) => (Some(*index), name, false),
        };
        if let Some(index) = index {
            map.serialize_entry("ifindex", &index)?;
        }
        map.serialize_entry("ifname", name)?;
        if port {
            map.serialize_entry("port", &1)?;
        }
        for (key, value) in &self.fields {
            match value {
                Value::Number(number) => map.serialize_entry(key, number)?,
                Value::Rate(rate) => map.serialize_entry(key, rate)?,
                text => map.serialize_entry(key, &text.to_string())?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_same_object() {
        let row = |qpn: u32, sent: u64| {
            let row = Row::new(Head::Link(None, "fr0".to_owned())).number("lqpn", qpn);
            row.text("comm", "rping").number("sent_pkts", sent)
        };
        let before = [row(17, 100), row(18, 1000)];
        for (now, rate) in [
            (row(17, 100), "0"),
            (row(17, 105), "2.5"),
            (row(18, 1_000_001), "499500.5"),
            // A new object, and a counter that began anew.
            (row(19, 8), "4"),
            (row(18, 8), "4"),
        ] {
            let text = Row::rates(&[now], &before, 2.0, |key| key == "sent_pkts")[0].to_string();
            assert!(text.ends_with(&format!(" comm rping sent_pkts {rate}")), "{text}, not {rate}");
        }
    }
}
