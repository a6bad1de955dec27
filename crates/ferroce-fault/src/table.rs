//! Plans written in TOML: the same words, in tables.

use serde::Deserialize;
use toml::Table;

/// A file of faults cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The text is no TOML, or has other keys than a plan.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A term has a value that is no number, text, or list of these.
    #[error("[[fault]] number {number}: `if.{key}` is a number, a text, or a list of these")]
    Term {
        /// The place in the file, from 1.
        number: usize,
        /// The term.
        key: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: Option<u64>,
    log: Option<String>,
    #[serde(default)]
    fault: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    r#do: String,
    #[serde(default)]
    r#if: Table,
}

/// The text of a plan that is written in TOML: `seed`, `log`, and `[[fault]]` with `name`, `do` and `if`. The
/// lines of the text are in the order of the file.
///
/// # Errors
/// If the file is no TOML, or has other keys. The words themselves are checked when the text is read as a
/// plan.
pub fn plan_text(toml: &str) -> Result<String, TableError> {
    let File { seed, log, fault } = toml::from_str(toml)?;
    let mut lines = Vec::new();
    lines.extend(seed.map(|seed| format!("seed={seed}")));
    lines.extend(log.map(|log| format!("log={log}")));
    for (index, Entry { name, r#do, r#if }) in fault.into_iter().enumerate() {
        let line = rule_text(name.as_deref(), &r#do, &r#if);
        lines.push(line.map_err(|key| TableError::Term { number: index + 1, key })?);
    }
    Ok(lines.join("\n"))
}

/// The text of one rule, for files that have `[[fault]]` among other tables: its name, `do` and `if`.
///
/// # Errors
/// The term whose value is no number, text, or list of these. The words themselves are checked when the text
/// is read as a plan.
pub fn rule_text(name: Option<&str>, acts: &str, terms: &Table) -> Result<String, String> {
    let mut line = name.map_or_else(String::new, |name| format!("{name}: "));
    line.push_str(acts);
    for (place, (key, value)) in terms.iter().enumerate() {
        let (key, sign) = key.strip_suffix('!').map_or((key.as_str(), "="), |key| (key, "!="));
        let value = words(value).ok_or_else(|| key.to_owned())?;
        line.push_str(if place == 0 { " if " } else { "," });
        line.push_str(&format!("{key}{sign}{value}"));
    }
    Ok(line.replace('\n', " "))
}

fn words(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Array(values) => {
            values.iter().map(words).collect::<Option<Vec<_>>>().map(|v| v.join("|"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn tables_say_what_text_says() {
        let toml = r#"
            seed = 7
            [[fault]]
            do = "drop 1%"
            if = { op = ["ack", "nak"], dir = "tx" }
            [[fault]]
            name = "tail"
            do = "delay=1ms + dup"
            if = { qp = 0, "pos!" = "last" }
        "#;
        let text = plan_text(toml).unwrap();
        let same = "seed=7; drop 1% if dir=tx,op=ack|nak; tail: delay=1ms + dup if pos!=last,qp=0";
        let terms = |plan: &Plan| {
            plan.rules.iter().map(|rule| (rule.acts.clone(), rule.terms.len())).collect::<Vec<_>>()
        };
        let (read, want): (Plan, Plan) = (text.parse().unwrap(), same.parse().unwrap());
        assert_eq!((read.seed, terms(&read)), (want.seed, terms(&want)), "{text}");
        assert_eq!(read.rules[1].name.as_deref(), Some("tail"));
    }

    #[test]
    fn other_keys_are_refused() {
        for toml in
            ["sed = 1", "[[fault]]\ndoes = \"drop\"", "[[fault]]\ndo = \"drop\"\nif = { time = 1.5 }", "x"]
        {
            assert!(plan_text(toml).is_err(), "{toml}");
        }
    }
}
