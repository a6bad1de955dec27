//! Packages in roots of distributions: installed, used by an ordinary user, removed; and how long the first
//! figure takes.
//!
//! debootstrap makes each root once, below `target/xtask/roots`. A trial runs in a copy that vanishes (an
//! overlay in a mount namespace), in a network namespace with `lo` alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::inspect::find;
use crate::output::{Package, write};
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;

const ENTER: &str = include_str!("roots/enter.sh");
const COMMON: &str = include_str!("roots/common.sh");
const DEB: &str = include_str!("roots/deb.sh");
const OTHERS: &str = include_str!("roots/others.sh");
const TIME: &str = include_str!("roots/time.sh");
/// The line of [`OTHERS`] in a root whose Python cannot install the wheel.
const NO_WHEEL: &str = "NO WHEEL: ";

/// For one script.
const LIMIT: Duration = Duration::from_secs(300);
/// For a root.
const MAKING: Duration = Duration::from_secs(1200);

/// A distribution with its RDMA programs.
struct Distribution {
    /// For messages.
    name: &'static str,
    suite: &'static str,
    components: &'static str,
    mirror: &'static str,
    /// Packages beside the smallest system.
    packages: &'static str,
}

/// The system whose packages the project is tested with.
const DEBIAN: Distribution = Distribution {
    name: "Debian 12",
    suite: "bookworm",
    components: "main",
    mirror: "http://deb.debian.org/debian",
    packages: "ibverbs-utils perftest rdmacm-utils python3 python3-pip python3-venv python3-pytest",
};

/// The system with the oldest glibc that packages are promised to run with.
const OLDEST: Distribution = Distribution {
    name: "Ubuntu 18.04",
    suite: "bionic",
    components: "main,universe",
    mirror: "http://archive.ubuntu.com/ubuntu",
    packages: "ibverbs-utils perftest rdmacm-utils setpriv python3",
};

/// Roots of distributions in a folder, which are kept there.
pub struct Roots {
    folder: PathBuf,
    debootstrap: PathBuf,
}

impl Roots {
    /// # Errors
    /// The reason why roots can be neither made nor entered here.
    pub fn within(folder: PathBuf) -> Result<Self> {
        let debootstrap = find("debootstrap").context("debootstrap is missing (Debian: debootstrap)")?;
        let unshare = find("unshare").context("unshare is missing (Debian: util-linux)")?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
        ensure!(root, "roots of distributions need root");
        let tried = Command::new(unshare).args(["-m", "-n", "-p", "-f", "true"]).output()?;
        ensure!(
            tried.status.success(),
            "no namespaces here: {}",
            String::from_utf8_lossy(&tried.stderr).trim()
        );
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder, debootstrap })
    }

    /// Tries all packages in each distribution.
    pub fn check(&self, checks: &mut Checks, packages: &[Package]) {
        for distribution in [DEBIAN, OLDEST] {
            let root = match self.full(&distribution) {
                Ok(root) => root,
                Err(error) => {
                    checks.skip(distribution.name, &format!("its root cannot be made here: {error:#}"));
                    continue;
                }
            };
            for (what, script) in [("the .deb", DEB), ("tarball, wheel", OTHERS)] {
                let name = format!("{}: {what}", distribution.name);
                let ended = self.trial(&root, packages, script, &[], false);
                let tried = ended.and_then(|ended| {
                    ensure!(ended.ok(), "{}", ended.describe());
                    Ok(ended.output)
                });
                let why =
                    tried.as_deref().unwrap_or_default().lines().find_map(|line| line.strip_prefix(NO_WHEEL));
                if let Some(why) = why {
                    checks.skip(&format!("{}: the wheel", distribution.name), why);
                }
                checks.check(&name, tried.map(drop));
            }
        }
    }

    /// The seconds from an empty root of Debian to a figure of `ib_write_bw`, as lines of text.
    ///
    /// # Errors
    /// A step fails.
    pub fn time(&self, packages: &[Package]) -> Result<String> {
        let mut names = packages.iter().map(|package| package.name.as_str());
        let tarball = names.find(|name| name.ends_with("-gnu.tar.gz")).context("no tarball")?;
        let ended = self.trial(&self.empty(&DEBIAN)?, packages, TIME, &[tarball], true)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// The smallest system.
    fn empty(&self, distribution: &Distribution) -> Result<PathBuf> {
        let root = self.folder.join(distribution.suite);
        made(&root, |fresh| {
            let mut command = Command::new(&self.debootstrap);
            command.args(["--variant=minbase", &format!("--components={}", distribution.components)]);
            command.arg(distribution.suite).arg(fresh).arg(distribution.mirror);
            command
        })
    }

    /// The system with its RDMA programs.
    fn full(&self, distribution: &Distribution) -> Result<PathBuf> {
        let root = self.folder.join(format!("{}-programs", distribution.suite));
        if root.is_dir() {
            return Ok(root);
        }
        let empty = self.empty(distribution)?;
        made(&root, |fresh| {
            let script = "cp -a \"$1\" \"$2\"; export DEBIAN_FRONTEND=noninteractive LC_ALL=C\n\
            chroot \"$2\" apt-get update -qq; chroot \"$2\" apt-get install -qq -y --no-install-recommends $3";
            let mut command = Command::new("sh");
            command.args(["-euc", script, "sh"]).arg(&empty).arg(fresh).arg(distribution.packages);
            command
        })
    }

    /// Runs a script in a copy of a root, with the packages in `/packages`; `online` in the network of this
    /// process.
    fn trial(
        &self,
        root: &Path,
        packages: &[Package],
        script: &str,
        words: &[&str],
        online: bool,
    ) -> Result<Ended> {
        let place = tempfolder("root")?;
        let offered = tempfolder("packages")?;
        let ended = write(packages, &offered).and_then(|_| {
            let mut command = Command::new("unshare");
            command.args(["-m", "-p", "-f", "--kill-child"]);
            let (enter, inside) = match online {
                true => (ENTER.to_owned(), script.to_owned()),
                // Not in the root, which need not have the program ip.
                false => (format!("ip link set lo up\n{ENTER}"), format!("{COMMON}{script}")),
            };
            if !online {
                command.arg("-n");
            }
            command
                .args(["sh", "-euc", &enter, "sh"])
                .arg(root)
                .arg(&place)
                .arg(&offered)
                .arg(inside)
                .args(words);
            job::run(command, &self.folder.join("trial.log"), LIMIT)
        });
        std::fs::remove_dir(&place)?;
        std::fs::remove_dir_all(&offered)?;
        ended
    }
}

/// The folder `root`, which a command fills if it does not exist.
fn made(root: &Path, command: impl Fn(&Path) -> Command) -> Result<PathBuf> {
    if root.is_dir() {
        return Ok(root.to_owned());
    }
    let fresh = root.with_extension(format!("{}.new", std::process::id()));
    let ended = job::run(command(&fresh), &root.with_extension("log"), MAKING)?;
    if !ended.ok() {
        std::fs::remove_dir_all(&fresh).ok();
        anyhow::bail!("{}", ended.describe());
    }
    std::fs::rename(&fresh, root)?;
    Ok(root.to_owned())
}

/// A folder below the temporary one that every user can read.
fn tempfolder(name: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("ferroce-{name}.{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}
