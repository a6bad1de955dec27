//! The one-file `ferroce`.

use anyhow::Result;

use crate::files::Entry;
use crate::output::Package;
use crate::release::Release;
use crate::version::{PLATFORM, VERSION};

/// The form of the file, as the program reads it.
#[allow(dead_code, reason = "only a part of it writes")]
#[path = "../../crates/ferroce-cli/src/one_file/format.rs"]
mod format;

use format::{Link, OneFile, PROGRAM};

/// `ferroce-VERSION-x86_64-linux-gnu.run`.
///
/// # Errors
/// As [`bytes`].
pub fn make(release: &Release) -> Result<Vec<Package>> {
    Ok(vec![Package { name: file_name(), bytes: bytes(release)?, executable: true }])
}

fn file_name() -> String {
    // Without an ending it would be in the way of the tarball's folder.
    format!("ferroce-{VERSION}-{PLATFORM}.run")
}

/// The content: `bin/` and `lib/`.
///
/// # Errors
/// The release has no program.
pub fn bytes(release: &Release) -> Result<Vec<u8>> {
    let (mut others, mut links) = (Vec::new(), Vec::new());
    for (path, entry) in &release.files.0 {
        match entry {
            _ if path == PROGRAM || !(path.starts_with("bin/") || path.starts_with("lib/")) => {}
            Entry::File(content, _) => others.push((path.clone(), content.clone())),
            Entry::Link(target) => links.push(Link { path: path.clone(), target: target.clone() }),
        }
    }
    Ok(OneFile::new(release.files.content(PROGRAM)?, &others, links).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_binstall_asks_for_the_name_of_the_file() {
        let manifest = crate::tree::root().join("crates/ferroce-cli/Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let address = manifest.lines().find_map(|line| line.strip_prefix("pkg-url = ")).unwrap();
        let name = address.trim_matches('"').replace("{ version }", VERSION);
        assert_eq!(name.rsplit('/').next(), Some(file_name().as_str()));
    }
}
