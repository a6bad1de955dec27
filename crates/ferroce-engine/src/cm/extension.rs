//! Extensions: the offers and agreements beyond the specification, for queue pairs that connection
//! management connects.

pub use ferroce_cm::extension::is_agreed;

pub use crate::selective_repeat::{answer, offer};
