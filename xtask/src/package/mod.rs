//! `cargo xtask package`: the release as packages, below `target/packages`; and their stages.

mod portable;
mod stages;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use ferroce_packaging::{KINDS, Kind, Release, Roots, all, make, write};

use crate::dist;
use ferroce_harness::tree;
use portable::PROMISED;

pub use portable::portable_dist;
pub use stages::{check, distributions};

/// Which packages to make.
#[derive(Args)]
pub struct PackageArgs {
    /// Kinds of packages; without one, all.
    kinds: Vec<Kind>,
    /// The folder for them.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Links with this machine's C library: nothing is fetched, and the packages need one that is not older.
    #[arg(long)]
    native: bool,
    /// Only measures how long it takes in an empty root of Debian 12, from the tarball to a figure of
    /// ib_write_bw. Needs root, debootstrap and the network.
    #[arg(long)]
    time: bool,
}

/// Makes packages and prints their paths.
///
/// # Errors
/// As [`portable_dist`], [`Release::of`] and [`make`]; and if a portable build needs a newer glibc than
/// [`PROMISED`].
pub fn run(args: &PackageArgs) -> Result<bool> {
    let dist = if args.native { dist::build()? } else { portable_dist()? };
    if args.time {
        let roots = Roots::within(tree::target().join("xtask/roots"))?;
        let (packages, _) = all(&dist.root, &tree::target().join("xtask/package"))?;
        print!("{}", roots.time(&packages)?);
        return Ok(true);
    }
    let release = Release::of(&dist.root, &tree::target().join("xtask/package"))?;
    println!("needs glibc {} or later", release.glibc);
    if !args.native && release.glibc > PROMISED {
        bail!("the packages need glibc {}, but {PROMISED} is promised", release.glibc);
    }
    let kinds = if args.kinds.is_empty() { &KINDS } else { args.kinds.as_slice() };
    let out = args.out.clone().unwrap_or_else(|| tree::target().join("packages"));
    for path in write(&make(&release, kinds)?, &out)? {
        println!("{}", path.display());
    }
    Ok(true)
}
