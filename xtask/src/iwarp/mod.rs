//! iWARP: the programs that prove it, the namespaces in which they run, and the judges of its packets. The stages `siw` and
//! `iwarp_pairs` drive the same table.

pub mod drive;
pub mod net;
pub mod programs;
pub mod wire;
