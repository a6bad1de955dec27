//! An old C library to link with, so that the release runs on systems with that one and later ones.
//!
//! The linker gives each symbol the version that the C library at hand has for it. The files are those of
//! Ubuntu 18.04, glibc 2.27: older than the ones of every distribution with Linux 5.10, and of the containers
//! that still run there. Only the linker reads them, and nothing of them becomes part of the release but the
//! start-up code of glibc.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::digest;
use anyhow::{Context, Result, ensure};

/// The archive, and the folder that its own index names for each package.
const ARCHIVE: &str = "http://archive.ubuntu.com/ubuntu/pool/main/g";
/// Packages with the SHA-256 of the archive's index.
const PACKAGES: [(&str, &str); 3] = [
    (
        "glibc/libc6_2.27-3ubuntu1.6_amd64.deb",
        "5b813d4512491cd8fb30b2eb9192349ee75ffe3c9f21ae136cc7b2429f70c3b2",
    ),
    (
        "glibc/libc6-dev_2.27-3ubuntu1.6_amd64.deb",
        "96ae7d2cf38f0547ca3cccb3344c8802fdf5bcd71c4b6d9aed09558ac8cc87db",
    ),
    (
        "gcc-8/libgcc1_8.4.0-1ubuntu1~18.04_amd64.deb",
        "116dadf4ceaba7150eb46a6598dd3defa62b1b2a6578fb494f4c932878634994",
    ),
];
const TRIPLET: &str = "x86_64-linux-gnu";

/// The flags of rustc that make it link with that library, which is fetched to `folder` once.
///
/// # Errors
/// curl or dpkg-deb is missing, the archive cannot be reached, or a file has another checksum.
pub fn flags(folder: &Path) -> Result<Vec<String>> {
    let root = ensure_unpacked(folder)?;
    let (development, runtime) = (root.join("usr/lib").join(TRIPLET), root.join("lib").join(TRIPLET));
    let [root, development, runtime] = [root, development, runtime].map(|path| path.display().to_string());
    let arguments = [
        format!("--sysroot={root}"),
        // gcc takes crt1.o from here; the folders that it was built with do not depend on --sysroot.
        format!("-B{development}/"),
        format!("-L{development}"),
        format!("-L{runtime}"),
    ];
    Ok(arguments.map(|argument| format!("-Clink-arg={argument}")).into())
}

fn ensure_unpacked(folder: &Path) -> Result<PathBuf> {
    let root = folder.join("glibc-2.27");
    if root.is_dir() {
        return Ok(root);
    }
    let fresh = folder.join(format!("fresh.{}", std::process::id()));
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh)?;
    }
    std::fs::create_dir_all(&fresh)?;
    for (path, sum) in PACKAGES {
        let name = path.rsplit('/').next().unwrap_or(path);
        let file = folder.join(name);
        if !file.is_file() || sum_of(&file)? != sum {
            fetch(&format!("{ARCHIVE}/{path}"), &file)?;
        }
        let found = sum_of(&file)?;
        ensure!(found == sum, "{} has the SHA-256 {found}, not {sum}", file.display());
        let status =
            Command::new("dpkg-deb").arg("-x").arg(&file).arg(&fresh).status().context("dpkg-deb")?;
        ensure!(status.success(), "dpkg-deb -x {}: {status}", file.display());
    }
    lead_within(&fresh.join("usr/lib").join(TRIPLET))?;
    std::fs::rename(&fresh, &root)?;
    Ok(root)
}

fn fetch(address: &str, to: &Path) -> Result<()> {
    let mut command = Command::new("curl");
    command.args(["--fail", "--silent", "--show-error", "--location", "--max-time", "300", "--output"]);
    let output = command.arg(to).arg(address).output().context("curl")?;
    ensure!(output.status.success(), "{address}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn sum_of(file: &Path) -> Result<String> {
    Ok(digest::sha256(&std::fs::read(file)?))
}

/// Makes absolute links in `usr/lib/TRIPLET` relative: they would lead to the libraries of this machine.
fn lead_within(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(target) = std::fs::read_link(&path) else { continue };
        if let Ok(below) = target.strip_prefix("/") {
            std::fs::remove_file(&path)?;
            symlink(Path::new("../../..").join(below), &path)?;
        }
    }
    Ok(())
}
