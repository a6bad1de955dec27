//! Debian's programs, which the demo and the end-to-end checks run unmodified.
//!
//! Root installs them, after it has printed what; others fetch them with `apt-get download` and unpack them below
//! `target/debian`, which needs no privilege. With `--no-install`, and on a system without apt, the missing ones are named.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use crate::tree;

/// A program and the package that brings it.
#[derive(Clone, Copy)]
pub struct Program {
    /// The name of a program, or the absolute path of a file.
    pub name: &'static str,
    /// Debian's package.
    pub package: &'static str,
}

/// For the demo.
pub const BASIC: &[Program] = &[
    Program { name: "ibv_devinfo", package: "ibverbs-utils" },
    Program { name: "ibv_rc_pingpong", package: "ibverbs-utils" },
    Program { name: "ibv_uc_pingpong", package: "ibverbs-utils" },
    Program { name: "ibv_ud_pingpong", package: "ibverbs-utils" },
    Program { name: "ibv_srq_pingpong", package: "ibverbs-utils" },
    Program { name: "ibv_xsrq_pingpong", package: "ibverbs-utils" },
    Program { name: "ib_write_bw", package: "perftest" },
    Program { name: "setpriv", package: "util-linux" },
    Program { name: "prlimit", package: "util-linux" },
    Program { name: "unshare", package: "util-linux" },
    Program { name: "ip", package: "iproute2" },
];

/// For the benchmark, besides `BASIC`.
pub const BENCH: &[Program] = &[
    Program { name: "nsenter", package: "util-linux" },
    Program { name: "ethtool", package: "ethtool" },
    Program { name: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
];

/// For the end-to-end checks, besides `BASIC`.
pub const MORE: &[Program] = &[
    Program { name: "rping", package: "rdmacm-utils" },
    Program { name: "ibstat", package: "infiniband-diags" },
    Program { name: "qperf", package: "qperf" },
    Program { name: "fio", package: "fio" },
    Program { name: "ucx_info", package: "ucx-utils" },
    Program { name: "fi_info", package: "libfabric-bin" },
    Program { name: "tshark", package: "tshark" },
    Program { name: "dumpcap", package: "wireshark-common" },
    Program { name: "nft", package: "nftables" },
    Program { name: "ping", package: "iputils-ping" },
    Program { name: "python3", package: "python3" },
    Program { name: "taskset", package: "util-linux" },
    Program { name: "stdbuf", package: "coreutils" },
    Program { name: "ethtool", package: "ethtool" },
    Program { name: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Program { name: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" },
    Program { name: UMAD_HEADER, package: "libibumad-dev" },
    Program { name: "/usr/lib/python3/dist-packages/pyverbs/__init__.py", package: "python3-pyverbs" },
    Program { name: OPENMETRICS_PARSER, package: "python3-prometheus-client" },
    Program { name: "valgrind", package: "valgrind" },
];

/// The last of the headers that the C programs of the unit tests include; those of libibverbs and librdmacm are in
/// [`MORE`], too.
pub const UMAD_HEADER: &str = "/usr/include/infiniband/umad.h";

/// A parser of OpenMetrics by the authors of Prometheus.
pub const OPENMETRICS_PARSER: &str = "/usr/lib/python3/dist-packages/prometheus_client/openmetrics/parser.py";

/// Whether the user declined by `--no-install`.
static DECLINED: AtomicBool = AtomicBool::new(false);

/// From now on nothing is installed or fetched.
pub fn decline() {
    DECLINED.store(true, Ordering::Relaxed);
}

/// Says which packages will be installed, and how to decline.
fn announce(packages: &[&str], root: bool) -> String {
    let names = packages.join(" ");
    match root {
        true => format!(
            "installing Debian packages on this machine, as root: {names}\n       \
             (`--no-install` declines; as another user they are unpacked below target/ instead)"
        ),
        false => format!("fetching Debian packages and unpacking them below target/debian: {names}"),
    }
}

/// Where the programs are.
#[derive(Clone, Default, Debug)]
pub struct Programs {
    /// The unpacked packages, if any had to be fetched.
    pub unpacked: Option<PathBuf>,
}

impl Programs {
    /// Makes sure of every one of `list`.
    pub fn ensure(list: &[&[Program]]) -> Result<Self> {
        let unpacked = tree::target().join("debian").join("root");
        let mut here = Self { unpacked: unpacked.is_dir().then_some(unpacked) };
        let missing = |here: &Self| -> Vec<&'static str> {
            let all = list.iter().flat_map(|part| part.iter());
            let mut packages: Vec<_> =
                all.filter(|p| here.find(p.name).is_none()).map(|p| p.package).collect();
            packages.sort_unstable();
            packages.dedup();
            packages
        };
        let packages = missing(&here);
        if packages.is_empty() {
            return Ok(here);
        }
        let names = packages.join(", ");
        ensure!(
            !DECLINED.load(Ordering::Relaxed),
            "with --no-install nothing is fetched; please install the programs of Debian's packages {names}"
        );
        ensure!(
            on_path("apt-get") && on_path("dpkg-deb"),
            "this system has no apt-get; please install the programs of Debian's packages {names}"
        );
        let root = nix::unistd::geteuid().is_root();
        eprintln!("xtask: {}", announce(&packages, root));
        if root {
            install(&packages)?;
        } else {
            here.unpacked = Some(unpack(&packages)?);
        }
        let still = missing(&here);
        ensure!(still.is_empty(), "still not to be found: the programs of {}", still.join(", "));
        Ok(here)
    }

    /// A program by name, or a file by absolute path.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        if name.starts_with('/') {
            let unpacked = self.unpacked.as_ref().map(|root| root.join(name.trim_start_matches('/')));
            return unpacked.into_iter().chain([PathBuf::from(name)]).find(|p| p.exists());
        }
        self.search_path().into_iter().map(|dir| dir.join(name)).find(|p| p.is_file())
    }

    /// The unpacked packages' library folders, for `LD_LIBRARY_PATH`; our own comes before them.
    pub fn libraries(&self) -> Option<String> {
        let root = self.unpacked.as_ref()?;
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        let dirs = [root.join("usr/lib").join(&triplet), root.join("lib").join(&triplet)];
        Some(dirs.map(|d| d.display().to_string()).join(":"))
    }

    fn search_path(&self) -> Vec<PathBuf> {
        let own = self
            .unpacked
            .iter()
            .flat_map(|root| ["usr/bin", "usr/sbin", "bin", "sbin"].map(|d| root.join(d)));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
        own.chain(std::env::split_paths(&path)).chain(system).collect()
    }
}

fn on_path(name: &str) -> bool {
    Programs::default().find(name).is_some()
}

fn apt(args: &[&str], dir: &Path) -> Result<std::process::Output> {
    let mut command = Command::new("apt-get");
    command.args(args).current_dir(dir).stdin(Stdio::null());
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command.output().context("apt-get")
}

fn install(packages: &[&str]) -> Result<()> {
    let args = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    let mut output = apt(&args, Path::new("/"))?;
    if !output.status.success() {
        apt(&["update", "-qq"], Path::new("/"))?;
        output = apt(&args, Path::new("/"))?;
    }
    ensure!(output.status.success(), "apt-get install: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Fetches the packages and what they need that is not installed, and unpacks them below `target/debian`.
fn unpack(packages: &[&str]) -> Result<PathBuf> {
    let base = tree::target().join("debian");
    let (debs, root) = (base.join("debs"), base.join("root"));
    let lists = base.join("lists");
    for dir in [&debs, &root, &lists.join("partial"), &base.join("cache/archives/partial")] {
        std::fs::create_dir_all(dir)?;
    }
    // First with the system's own package lists; a system that never updated them gets lists of ours.
    let own = [
        format!("-oDir::State::Lists={}", lists.display()),
        format!("-oDir::Cache={}", base.join("cache").display()),
        "-oDebug::NoLocking=1".to_owned(),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let simulate = |options: &[&str]| {
        let plan = ["-s", "-oDebug::NoLocking=1", "--no-install-recommends", "install"];
        apt(&[options, &plan, packages].concat(), &debs)
    };
    let mut options: &[&str] = &[];
    let mut plan = simulate(options)?;
    if !plan.status.success() {
        options = &own;
        let update = apt(&[options, &["update", "-qq"]].concat(), &debs)?;
        ensure!(update.status.success(), "apt-get update: {}", String::from_utf8_lossy(&update.stderr));
        plan = simulate(options)?;
    }
    ensure!(plan.status.success(), "apt-get -s install: {}", String::from_utf8_lossy(&plan.stderr));
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    let names = plan.lines().filter_map(|l| l.strip_prefix("Inst ")).filter_map(|l| l.split(' ').next());
    let mut wanted: Vec<&str> = names.chain(packages.iter().copied()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let fetched = apt(&[options, &["download"], &wanted].concat(), &debs)?;
    ensure!(fetched.status.success(), "apt-get download: {}", String::from_utf8_lossy(&fetched.stderr));
    for entry in std::fs::read_dir(&debs)? {
        let deb = entry?.path();
        if deb.extension().is_some_and(|e| e == "deb") {
            let status = Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&root).status()?;
            ensure!(status.success(), "dpkg-deb -x {}", deb.display());
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::{BASIC, Program, Programs, announce, decline};

    #[test]
    fn root_is_told_what_is_installed_and_how_to_decline() {
        let text = announce(&["perftest", "ibverbs-utils"], true);
        for part in ["installing", "as root", "perftest ibverbs-utils", "--no-install"] {
            assert!(text.contains(part), "no '{part}' in: {text}");
        }
        assert!(!announce(&["perftest"], false).contains("as root"));
    }

    #[test]
    fn nothing_is_fetched_once_the_user_has_declined() {
        const MISSING: &[Program] =
            &[Program { name: "no-such-program-anywhere", package: "no-such-package" }];
        assert!(BASIC.iter().all(|program| program.package != "no-such-package"));
        decline();
        let error = Programs::ensure(&[MISSING]).unwrap_err().to_string();
        assert!(error.contains("--no-install") && error.contains("no-such-package"), "{error}");
    }
}
