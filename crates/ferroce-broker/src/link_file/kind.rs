//! The kind of a link as the file has it: by the type of `link add`.

use ferroce_ipc::LinkKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Tells serde whether the link is one of RoCE: files of older versions do not name the type of these.
pub(super) fn is_default(kind: &LinkKind) -> bool {
    *kind == LinkKind::default()
}

/// Writes the type for serde.
pub(super) fn serialize<S: Serializer>(kind: &LinkKind, to: S) -> Result<S::Ok, S::Error> {
    kind.name().serialize(to)
}

/// Reads the type for serde.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LinkKind, D::Error> {
    let name = String::deserialize(from)?;
    let kind = [LinkKind::Rxe, LinkKind::Siw].into_iter().find(|kind| kind.name() == name);
    kind.ok_or_else(|| D::Error::custom(format!("type {name:?}")))
}
