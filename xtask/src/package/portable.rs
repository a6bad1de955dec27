//! The build for old C libraries.

use anyhow::Result;
use ferroce_packaging::{Glibc, sysroot};

use crate::dist;
use ferroce_harness::dist::Dist;
use ferroce_harness::tree;

/// The oldest glibc that packages are promised to run with: that of Ubuntu 18.04, older than that of RHEL 8
/// (2.28).
pub const PROMISED: Glibc = Glibc { major: 2, minor: 27 };

/// Builds the release in a target directory of its own, linked with [`PROMISED`].
///
/// # Errors
/// As [`sysroot::flags`] and [`dist::build_in`].
pub fn portable_dist() -> Result<Dist> {
    dist::build_in(&tree::target().join("portable"), &sysroot::flags(&tree::target().join("sysroot"))?)
}
