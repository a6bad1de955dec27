//! The kind of a link as the file has it: by the type of `link add`.

use ferroce_ipc::LinkKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// For serde: whether it is a link of RoCE, of which older files have no word.
pub(super) fn is_default(kind: &LinkKind) -> bool {
    *kind == LinkKind::default()
}

/// For serde.
pub(super) fn serialize<S: Serializer>(kind: &LinkKind, to: S) -> Result<S::Ok, S::Error> {
    kind.name().serialize(to)
}

/// For serde.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LinkKind, D::Error> {
    let name = String::deserialize(from)?;
    let kind = [LinkKind::Rxe, LinkKind::Siw].into_iter().find(|kind| kind.name() == name);
    kind.ok_or_else(|| D::Error::custom(format!("type {name:?}")))
}
