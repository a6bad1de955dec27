//! The release as packages: a tarball, a `.deb`, a Python wheel and a bill of materials.
//!
//! A package depends on the files of the distribution, the sources and the time of the last commit alone, so
//! it has the same bytes each time it is made. `cargo xtask package` is the command. [`manual`] makes the man
//! pages and completions of the distribution.
#![forbid(unsafe_code)]

mod deb;
mod digest;
mod distributions;
mod elf;
mod files;
mod inspect;
mod make;
pub mod manual;
mod materials;
mod output;
mod release;
pub mod sysroot;
mod tarball;
mod version;
mod wheel;

pub use distributions::Roots;
pub use elf::Glibc;
pub use inspect::inspect;
pub use make::{KINDS, Kind, all, make};
pub use output::{Package, write};
pub use release::Release;
