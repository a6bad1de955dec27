//! The files of the guest: those that `cargo xtask guest` builds out of Debian's packages, or those of `shared/peer` beside the workspace.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian::{self, Program, Programs};
use crate::report::Checks;
use crate::tree;

/// The options of `cargo xtask guest`.
#[derive(clap::Args)]
pub struct GuestArgs {
    /// Builds the module of iWARP as well, for the stage siw: 140 MB of Debian's sources.
    #[arg(long)]
    siw: bool,
    /// Installs no Debian packages on this machine; missing programs are named.
    #[arg(long)]
    no_install: bool,
}

/// Programs that build the guest and run it.
const HOST: &[Program] = &[
    Program { name: "qemu-system-x86_64", package: "qemu-system-x86" },
    Program { name: "cpio", package: "cpio" },
    Program { name: "xz", package: "xz-utils" },
    Program { name: "ip", package: "iproute2" },
    Program { name: "ssh", package: "openssh-client" },
    Program { name: "cc", package: "gcc" },
    Program { name: "/usr/include/stdio.h", package: "libc6-dev" },
    Program { name: "make", package: "make" },
    Program { name: "depmod", package: "kmod" },
];

/// A guest that can be booted.
#[derive(Clone)]
pub struct Image {
    script: PathBuf,
    /// The folder with its kernel; the script of `shared/peer` has one of its own and builds the guest by itself.
    folder: Option<PathBuf>,
}

impl Image {
    /// The guest that was built, else that of `shared/peer`.
    pub fn find() -> Result<Self> {
        let folder = tree::target().join("guest");
        if folder.join("STAMP").exists() {
            return Ok(Self { script: scripts().join("peer.sh"), folder: Some(folder) });
        }
        let script = tree::shared("peer/peer.sh");
        let script =
            script.context("there is no guest; `cargo xtask guest` builds one (root, Debian's apt)")?;
        Ok(Self { script, folder: None })
    }

    /// The guest; without one, `checks` skips `stage` and says which command builds it.
    pub fn find_or_skip(checks: &mut Checks, stage: &str) -> Option<Self> {
        Self::find().map_err(|why| checks.skip(stage, &why.to_string())).ok()
    }

    /// Why iWARP cannot be had in this guest. The script of `shared/peer` builds the module by itself.
    pub fn without_siw(&self) -> Option<&'static str> {
        let files = self.folder.as_ref().and_then(|folder| std::fs::read_dir(folder).ok())?;
        let built = files.flatten().any(|file| file.path().extension().is_some_and(|kind| kind == "ko"));
        (!built).then_some("the guest was built without siw: `cargo xtask guest --siw`")
    }

    /// A command of the guest's script, or of another one beside it.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new(self.script.with_file_name(script));
        if let Some(folder) = &self.folder {
            command.env("PEER_CACHE", folder);
        }
        command.stdin(Stdio::null());
        command
    }
}

fn scripts() -> PathBuf {
    tree::root().join("tests/guest")
}

/// Builds the guest in `target/guest` and prints that folder.
///
/// # Errors
/// The user is not root, a program is missing, or apt-get does not reach Debian's packages.
pub fn build(args: &GuestArgs) -> Result<bool> {
    ensure!(nix::unistd::geteuid().is_root(), "apt-get and the guest's network namespace need root");
    if args.no_install {
        debian::decline();
    }
    Programs::ensure(&[HOST])?;
    let folder = tree::target().join("guest");
    let mut guest = Command::new(scripts().join("build.sh"));
    ensure!(guest.arg(&folder).status()?.success(), "the guest could not be built");
    if args.siw {
        let mut siw = Image::find()?.command("siw.sh");
        ensure!(siw.arg("build").status()?.success(), "siw could not be built");
    }
    println!("{}", folder.display());
    Ok(true)
}
