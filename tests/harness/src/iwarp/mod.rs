//! iWARP: the programs that prove it, and the namespaces in which they run. The stages `siw` and `iwarp_pairs` drive the same table.

pub mod drive;
pub mod net;
pub mod programs;
