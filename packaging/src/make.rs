//! All packages of a release.

use std::path::Path;

use anyhow::Result;

use crate::elf::Glibc;
use crate::output::Package;
use crate::release::Release;
use crate::version::VERSION;
use crate::{deb, digest, tarball, wheel};

/// A kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A `.tar.gz`, and one with debug information.
    Tarball,
    /// A Debian package.
    Deb,
    /// A Python wheel.
    Wheel,
    /// A bill of materials, CycloneDX.
    Sbom,
}

/// All kinds.
pub const KINDS: [Kind; 4] = [Kind::Tarball, Kind::Deb, Kind::Wheel, Kind::Sbom];

/// Packages of some kinds, by name, and `SHA256SUMS` of them.
///
/// # Errors
/// A source of a package cannot be read.
pub fn make(release: &Release, kinds: &[Kind]) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for kind in kinds {
        packages.extend(match kind {
            Kind::Tarball => tarball::make(release)?,
            Kind::Deb => deb::make(release)?,
            Kind::Wheel => wheel::make(release)?,
            Kind::Sbom => vec![Package {
                name: format!("ferroce-{VERSION}.cdx.json"),
                bytes: release.materials.bill.clone().into_bytes(),
                executable: false,
            }],
        });
    }
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    let sum = |package: &Package| format!("{}  {}\n", digest::sha256(&package.bytes), package.name);
    let sums: String = packages.iter().map(sum).collect();
    packages.push(Package { name: "SHA256SUMS".to_owned(), bytes: sums.into_bytes(), executable: false });
    Ok(packages)
}

/// All packages of the distribution in the folder `dist`, and the oldest glibc that they run with; `work` is
/// a folder for temporary files.
///
/// # Errors
/// As [`Release::of`] and [`make`].
pub fn all(dist: &Path, work: &Path) -> Result<(Vec<Package>, Glibc)> {
    let release = Release::of(dist, work)?;
    Ok((make(&release, &KINDS)?, release.glibc))
}
