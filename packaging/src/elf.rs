//! Programs and libraries of a package: debug information apart, and the oldest C library that they run with.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// A program or library without debug information, and that information.
pub struct Split {
    /// The stripped file. Its section `.gnu_debuglink` names the other one.
    pub stripped: Vec<u8>,
    /// For debuggers, `NAME.debug`.
    pub debug: Vec<u8>,
}

/// Divides the file at `path`, in the folder `work`.
///
/// # Errors
/// objcopy (Debian: binutils) is missing or refuses.
pub fn split(path: &Path, work: &Path) -> Result<Split> {
    let name = path.file_name().context("a file without a name")?.to_string_lossy().into_owned();
    std::fs::create_dir_all(work)?;
    let debug = work.join(format!("{name}.debug"));
    let stripped = work.join(&name);
    objcopy(&["--only-keep-debug"], path, &debug)?;
    // The link holds the name without its folder, and a checksum.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy(&["--strip-unneeded", &link], path, &stripped)?;
    Ok(Split { stripped: std::fs::read(stripped)?, debug: std::fs::read(debug)? })
}

/// The file without debug information.
///
/// # Errors
/// As [`split`].
pub fn stripped(path: &Path, work: &Path) -> Result<Vec<u8>> {
    std::fs::create_dir_all(work)?;
    let to = work.join("stripped");
    objcopy(&["--strip-unneeded"], path, &to)?;
    Ok(std::fs::read(to)?)
}

fn objcopy(options: &[&str], from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("objcopy");
    let output = command.args(options).arg(from).arg(to).output().context("objcopy (Debian: binutils)")?;
    ensure!(output.status.success(), "objcopy: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc {
    /// 2 for all that there are.
    pub major: u32,
    /// As 27.
    pub minor: u32,
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Glibc {
    type Err = anyhow::Error;

    /// Reads `2.27`; a third number is ignored.
    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split('.').map(str::parse);
        let (major, minor) = numbers.next().zip(numbers.next()).with_context(|| text.to_owned())?;
        Ok(Self { major: major?, minor: minor? })
    }
}

/// The newest version of glibc that a file names for a symbol, and so the oldest one that it runs with.
///
/// # Errors
/// readelf (Debian: binutils) is missing, or the file names none.
pub fn needed_glibc(path: &Path) -> Result<Glibc> {
    let mut command = Command::new("readelf");
    let output = command.args(["--version-info", "--wide"]).arg(path).env("LC_ALL", "C").output();
    let output = output.context("readelf (Debian: binutils)")?;
    ensure!(output.status.success(), "readelf: {}", String::from_utf8_lossy(&output.stderr).trim());
    let newest = newest(&String::from_utf8_lossy(&output.stdout))?;
    newest.with_context(|| format!("{} needs no version of glibc", path.display()))
}

fn newest(text: &str) -> Result<Option<Glibc>> {
    let names = text.lines().filter_map(|line| line.split("Name: GLIBC_").nth(1));
    let names = names.filter_map(|rest| rest.split_whitespace().next());
    let versions = names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).map(str::parse);
    Ok(versions.collect::<Result<Vec<Glibc>>>()?.into_iter().max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_by_numbers() {
        let text = "  0x0010:   Name: GLIBC_2.4  Flags: none  Version: 5\n\
                    \x20 0x0020:   Name: GLIBC_2.27  Flags: none  Version: 4\n\
                    \x20 0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 3\n\
                    \x20 0x0040:   Name: GLIBC_PRIVATE  Flags: none  Version: 2\n";
        assert_eq!(newest(text).unwrap(), Some(Glibc { major: 2, minor: 27 }));
        assert_eq!(newest("").unwrap(), None);
    }

    #[test]
    fn a_program_is_divided_and_the_halves_name_each_other() {
        let work = std::env::temp_dir().join(format!("ferroce-elf-{}", std::process::id()));
        let own = std::env::current_exe().unwrap();
        let split = split(&own, &work);
        std::fs::remove_dir_all(&work).unwrap();
        let split = split.unwrap();
        let name = format!("{}.debug", own.file_name().unwrap().to_string_lossy());
        let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        // Put together here, because the name as a literal would be in the program that is looked at.
        let section = [b".debug_".as_slice(), b"line\0"].concat();
        assert!(has(&split.stripped, name.as_bytes()) && !has(&split.stripped, &section));
        assert!(has(&split.debug, &section));
        assert!(needed_glibc(&own).unwrap() >= Glibc { major: 2, minor: 2 });
    }
}
