//! The Debian package `ferroce`: everything in `/usr/lib/ferroce`, where no program finds the libraries until
//! `ferroce system on` or `ferroce run` say so.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::digest;
use crate::files::{Entry, Files, gzip};
use crate::output::Package;
use crate::release::Release;
use crate::version::VERSION;
use ferroce_harness::tree;

/// The folder of programs and libraries.
const HOME: &str = "usr/lib/ferroce";
/// Sources of the package's own files.
const SOURCES: &str = "packaging";
/// The maintainer of the package. The project has no address: a publisher of packages must put one in here.
const MAINTAINER: &str = "The ferroce contributors <maintainers@ferroce.invalid>";

/// `ferroce_VERSION_amd64.deb`.
///
/// # Errors
/// A source of the package cannot be read.
pub fn make(release: &Release) -> Result<Vec<Package>> {
    let data = content(release)?;
    let mut control = Files::default();
    control.text("control", control_file(release, &data)?);
    control.text("md5sums", sums(&data));
    for script in ["postinst", "prerm", "postrm"] {
        control.program(script, source(&format!("debian/{script}"))?);
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.tar_gz(release.stamp)?),
        ("data.tar.gz", data.tar_gz(release.stamp)?),
    ];
    let bytes = archive(&members, release.stamp)?;
    Ok(vec![Package { name: format!("ferroce_{VERSION}_amd64.deb"), bytes, executable: false }])
}

/// The files of an installed package, by path without a slash at its beginning. The `.rpm` has the same.
///
/// # Errors
/// A source of the package cannot be read.
pub fn content(release: &Release) -> Result<Files> {
    let mut files = Files::default();
    for (path, entry) in &release.files.0 {
        match entry {
            // lintian: libraries are not executable.
            Entry::File(bytes, _) if path.starts_with("lib/") => {
                files.text(&format!("{HOME}/{path}"), bytes.clone())
            }
            entry if path.starts_with("bin/") || path.starts_with("lib/") => {
                files.0.insert(format!("{HOME}/{path}"), entry.clone());
            }
            Entry::File(bytes, _) => shared(&mut files, path, bytes)?,
            Entry::Link(_) => {}
        }
    }
    // Other packages have the scripts' names: those of ferroce are in usr/lib/ferroce/bin alone.
    files.link("usr/bin/ferroce", "../lib/ferroce/bin/ferroce");
    files.link("usr/sbin/ferroced", "../lib/ferroce/bin/ferroced");
    for (kind, text) in [("system", "systemd/system.service"), ("user", "systemd/user.service")] {
        files.text(&format!("usr/lib/systemd/{kind}/ferroced.service"), source(text)?);
    }
    let documents = "usr/share/doc/ferroce";
    files.text(&format!("{documents}/copyright"), copyright()?);
    files.text(&format!("{documents}/THIRD-PARTY.txt.gz"), gzip(release.materials.licences.as_bytes())?);
    files.text(&format!("{documents}/changelog.gz"), gzip(changelog(release.stamp)?.as_bytes())?);
    files.text(&format!("{documents}/NEWS.md.gz"), gzip(&std::fs::read(tree::root().join("CHANGELOG.md"))?)?);
    Ok(files)
}

/// A file of `share/`, where Debian has it.
fn shared(files: &mut Files, path: &str, bytes: &[u8]) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(page) = path.strip_prefix("share/man/") {
        // Other packages have the scripts' pages.
        if name.starts_with("ferroce") {
            files.text(&format!("usr/share/man/{page}.gz"), gzip(bytes)?);
        }
        return Ok(());
    }
    match path {
        "share/bash-completion/completions/ferroce.bash" => {
            files.text("usr/share/bash-completion/completions/ferroce", bytes);
        }
        "share/zsh/site-functions/_ferroce" => files.text("usr/share/zsh/vendor-completions/_ferroce", bytes),
        path => files.text(&format!("usr/{path}"), bytes),
    }
    Ok(())
}

fn control_file(release: &Release, data: &Files) -> Result<String> {
    let octets: usize = data
        .0
        .values()
        .map(|entry| match entry {
            Entry::File(content, _) => content.len(),
            Entry::Link(_) => 0,
        })
        .sum();
    let size = octets.div_ceil(1024).to_string();
    let text = source("debian/control")?.replace("@VERSION@", VERSION).replace("@SIZE@", &size);
    Ok(text.replace("@MAINTAINER@", MAINTAINER).replace("@GLIBC@", &release.glibc.to_string()))
}

/// As dpkg has them, for `dpkg --verify`.
fn sums(data: &Files) -> String {
    let sum = |(path, entry): (&String, &Entry)| match entry {
        Entry::File(content, _) => Some(format!("{}  {path}\n", digest::md5(content))),
        Entry::Link(_) => None,
    };
    data.0.iter().filter_map(sum).collect()
}

fn copyright() -> Result<String> {
    let licence = std::fs::read_to_string(tree::root().join("LICENSE-MIT"))?;
    let (_, terms) = licence.split_once("\n\nPermission").context("LICENSE-MIT has no permission")?;
    let terms = format!("Permission{terms}");
    let lines = terms
        .trim_end()
        .lines()
        .map(|line| if line.is_empty() { " .".to_owned() } else { format!(" {line}") });
    Ok(source("debian/copyright")?.replace("@MIT@", &lines.collect::<Vec<_>>().join("\n")))
}

fn changelog(stamp: u64) -> Result<String> {
    let mut date = Command::new("date");
    let date = date.args(["--utc", "--rfc-email", &format!("--date=@{stamp}")]).output().context("date")?;
    Ok(format!(
        "ferroce ({VERSION}) stable; urgency=medium\n\n  * Build of version {VERSION}; NEWS.md.gz says what changed.\n\n \
         -- {MAINTAINER}  {}\n",
        String::from_utf8(date.stdout)?.trim()
    ))
}

fn source(path: &str) -> Result<String> {
    let path = Path::new(SOURCES).join(path);
    std::fs::read_to_string(tree::root().join(&path)).with_context(|| path.display().to_string())
}

/// An archive of ar(1).
fn archive(members: &[(&str, Vec<u8>)], stamp: u64) -> Result<Vec<u8>> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        anyhow::ensure!(name.len() <= 16, "{name} is too long for ar");
        let length = content.len();
        bytes.extend(format!("{name:<16}{stamp:<12}{:<6}{:<6}{:<8}{length:<10}`\n", 0, 0, "100644").bytes());
        bytes.extend(content);
        if length % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_even_members_and_headers_of_sixty_octets() {
        let bytes = archive(&[("debian-binary", b"2.0\n".to_vec()), ("odd", b"abc".to_vec())], 7).unwrap();
        assert_eq!(bytes.len(), 8 + 60 + 4 + 60 + 4);
        assert!(
            bytes.starts_with(b"!<arch>\ndebian-binary   7           0     0     100644  4         `\n2.0\n")
        );
        assert!(archive(&[("a name that is too long", Vec::new())], 0).is_err());
    }

    #[test]
    fn the_changelog_ends_with_the_time_of_the_commit() {
        let text = changelog(1_709_210_096).unwrap();
        assert!(text.ends_with("  Thu, 29 Feb 2024 12:34:56 +0000\n"), "{text}");
    }

    #[test]
    fn the_licence_is_a_paragraph_of_the_copyright_file() {
        let text = copyright().unwrap();
        assert!(text.contains("\nLicense: Expat\n Permission is hereby granted"), "{text}");
        assert!(!text.contains('@') && !text.contains("\n\n\n"), "{text}");
        let paragraph = text.split("License: Expat\n").nth(1).unwrap();
        assert!(paragraph.trim_end().lines().all(|line| line.starts_with(' ')), "{paragraph}");
    }
}
