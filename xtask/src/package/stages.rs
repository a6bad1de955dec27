//! The stages `packages` and `distributions`.

use anyhow::Result;
use ferroce_packaging::{Roots, all, inspect};

use super::portable::{PROMISED, portable_dist};
use ferroce_harness::dist::Dist;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Packages of the distribution at hand, as far as they can be tried without another root.
pub fn check(checks: &mut Checks, dist: &Dist) -> Result<()> {
    let glibc = inspect(checks, &dist.root, &tree::target().join("xtask/package"))?;
    checks.note(format!("this build needs glibc {glibc}; `cargo xtask package` links with {PROMISED}"));
    Ok(())
}

/// Packages of the portable build in roots of distributions.
pub fn distributions(checks: &mut Checks) -> Result<()> {
    let roots = match Roots::within(tree::target().join("xtask/roots")) {
        Ok(roots) => roots,
        Err(why) => {
            checks.skip("distributions", &why.to_string());
            return Ok(());
        }
    };
    let dist = match portable_dist() {
        Ok(dist) => dist,
        Err(error) => {
            checks.skip("distributions", &format!("no portable build here: {error:#}"));
            return Ok(());
        }
    };
    let (packages, glibc) = all(&dist.root, &tree::target().join("xtask/package"))?;
    let new = || Err(format!("the packages need glibc {glibc}, and {PROMISED} is promised"));
    checks.check("glibc", if glibc <= PROMISED { Ok(()) } else { new() });
    checks.note(format!("the portable build needs glibc {glibc}"));
    roots.check(checks, &packages);
    Ok(())
}
