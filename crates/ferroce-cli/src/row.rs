//! Output lines of an object, in the format of rdma(8) or as JSON.

use std::fmt::{self, Display};

use serde::ser::{Serialize, SerializeMap, Serializer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(u64),
    /// A number shown in hexadecimal.
    Hex(u64),
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

#[derive(Clone, Debug, PartialEq, Eq)]
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
                text => map.serialize_entry(key, &text.to_string())?,
            }
        }
        map.end()
    }
}
