//! The tarballs: everything, and its debug information.

use anyhow::Result;

use crate::files::Files;
use crate::output::Package;
use crate::release::Release;
use crate::version::{PLATFORM, VERSION};

const README: &str = "\
ferroce @VERSION@: RDMA (RoCE v2) in user space.

  bin/ferroce run -- ibv_devinfo     runs a program on ferroce
  bin/ferroce doctor                 says what on this machine is in the way
  bin/ferroce system on              makes all programs of the host use it (root); `system off` ends that

The folder can lie anywhere. Keep the links in lib/: a process that loads copies would have several devices. Linux 5.10 and
glibc @GLIBC@ or later are needed. To remove ferroce, run `bin/ferroce system off` if it is on, `bin/ferroce stop --force`, and
delete the folder.

Manual pages are in share/man (`man -M share/man ferroce`), completions for bash, zsh and fish in share. Debug information
is in ferroce-@VERSION@-@PLATFORM@-debug.tar.gz: unpack it at the same place.
";

/// `ferroce-VERSION-x86_64-linux-gnu.tar.gz` and the one with debug information.
///
/// # Errors
/// As [`Files::tar`].
pub fn make(release: &Release) -> Result<Vec<Package>> {
    let folder = format!("ferroce-{VERSION}-{PLATFORM}");
    let mut inner = release.files.clone();
    inner.extend("", release.texts()?);
    inner.text("README.txt", readme(release));
    let packed = |content: Files| -> Result<Vec<u8>> {
        let mut files = Files::default();
        files.extend(&format!("{folder}/"), content);
        files.tar_gz(release.stamp)
    };
    Ok(vec![
        Package { name: format!("{folder}.tar.gz"), bytes: packed(inner)?, executable: false },
        Package {
            name: format!("{folder}-debug.tar.gz"),
            bytes: packed(release.debug.clone())?,
            executable: false,
        },
    ])
}

fn readme(release: &Release) -> String {
    let glibc = release.glibc.to_string();
    README.replace("@VERSION@", VERSION).replace("@GLIBC@", &glibc).replace("@PLATFORM@", PLATFORM)
}
