//! The kind of a link as the file has it: by the type of `link add`.

use ferroce_ipc::LinkKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes the type for serde.
pub(super) fn serialize<S: Serializer>(kind: &LinkKind, to: S) -> Result<S::Ok, S::Error> {
    kind.name().serialize(to)
}

/// Reads the type for serde.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LinkKind, D::Error> {
    let name = String::deserialize(from)?;
    LinkKind::from_name(&name).ok_or_else(|| D::Error::custom(format!("type {name:?}")))
}
