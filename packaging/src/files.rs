//! The files of a package, and archives of them that depend on nothing but their content.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

/// An entry of a package: a file or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The content, and whether it can be executed.
    File(Vec<u8>, bool),
    /// The target.
    Link(String),
}

/// Files and links by path, which is relative and sorted; folders follow from the paths.
#[derive(Clone, Debug, Default)]
pub struct Files(pub BTreeMap<String, Entry>);

impl Files {
    /// All of a folder.
    ///
    /// # Errors
    /// A file cannot be read, or has a name that is no UTF-8.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut files = Self::default();
        files.read_below(folder, "")?;
        Ok(files)
    }

    fn read_below(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().context("a name that is no UTF-8")?;
            let (path, kind) = (format!("{prefix}{name}"), entry.file_type()?);
            if kind.is_dir() {
                self.read_below(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                self.link(&path, &target.to_string_lossy());
            } else {
                let executable = entry.metadata()?.permissions().mode() & 0o111 != 0;
                self.0.insert(path, Entry::File(std::fs::read(entry.path())?, executable));
            }
        }
        Ok(())
    }

    /// Adds a file that is only read.
    pub fn text(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Entry::File(content.into(), false));
    }

    /// Adds a program.
    pub fn program(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Entry::File(content.into(), true));
    }

    /// Adds a link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.0.insert(path.to_owned(), Entry::Link(target.to_owned()));
    }

    /// The content of a file.
    ///
    /// # Errors
    /// There is no such file.
    pub fn content(&self, path: &str) -> Result<&[u8]> {
        match self.0.get(path) {
            Some(Entry::File(content, _)) => Ok(content),
            _ => anyhow::bail!("there is no file {path}"),
        }
    }

    /// Adds the entries of `other` below `prefix`.
    pub fn extend(&mut self, prefix: &str, other: Self) {
        self.0.extend(other.0.into_iter().map(|(path, entry)| (format!("{prefix}{path}"), entry)));
    }

    /// The folders, sorted, each without a slash at its end.
    fn folders(&self) -> Vec<String> {
        let parents = |path: &String| -> Vec<String> {
            path.match_indices('/').filter_map(|(at, _)| path.get(..at)).map(str::to_owned).collect()
        };
        let folders: BTreeSet<String> = self.0.keys().flat_map(parents).collect();
        folders.into_iter().collect()
    }

    /// A tar archive whose entries belong to root and have the time `stamp`, in seconds of the epoch.
    ///
    /// # Errors
    /// A path is longer than the format takes.
    pub fn tar(&self, stamp: u64) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let header = |kind: tar::EntryType, mode: u32, size: usize| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(stamp);
            header.set_size(size as u64);
            header
        };
        let named = |mut header: tar::Header| -> Result<tar::Header> {
            header.set_username("root")?;
            header.set_groupname("root")?;
            Ok(header)
        };
        let mut all: BTreeMap<String, Option<&Entry>> =
            self.folders().into_iter().map(|folder| (format!("{folder}/"), None)).collect();
        all.extend(self.0.iter().map(|(path, entry)| (path.clone(), Some(entry))));
        for (path, entry) in all {
            match entry {
                None => {
                    let mut header = named(header(tar::EntryType::Directory, 0o755, 0))?;
                    tar.append_data(&mut header, &path, std::io::empty())?;
                }
                Some(Entry::File(content, executable)) => {
                    let mode = if *executable { 0o755 } else { 0o644 };
                    let mut header = named(header(tar::EntryType::Regular, mode, content.len()))?;
                    tar.append_data(&mut header, &path, content.as_slice())?;
                }
                Some(Entry::Link(target)) => {
                    let mut header = named(header(tar::EntryType::Symlink, 0o777, 0))?;
                    tar.append_link(&mut header, &path, target)?;
                }
            }
        }
        Ok(tar.into_inner()?)
    }

    /// As [`Self::tar`], compressed.
    ///
    /// # Errors
    /// As [`Self::tar`].
    pub fn tar_gz(&self, stamp: u64) -> Result<Vec<u8>> {
        gzip(&self.tar(stamp)?)
    }
}

/// Compresses, without a name and a time in the header.
///
/// # Errors
/// Compression cannot fail in practice, because it writes to memory.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Files {
        let mut files = Files::default();
        files.program("a/bin/p", *b"program");
        files.text("a/share/t", *b"text");
        files.link("a/bin/l", "p");
        files
    }

    #[test]
    fn an_archive_is_sorted_and_depends_on_its_content_alone() {
        let archive = sample().tar(1_000_000_000).unwrap();
        let mut tar = tar::Archive::new(archive.as_slice());
        let entries = tar.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 1_000_000_000));
            let path = entry.path().unwrap().display().to_string();
            format!("{path} {:o}", header.mode().unwrap())
        });
        let want = ["a/ 755", "a/bin/ 755", "a/bin/l 777", "a/bin/p 755", "a/share/ 755", "a/share/t 644"];
        assert_eq!(entries.collect::<Vec<_>>(), want);
        assert_eq!(sample().tar_gz(1).unwrap(), sample().tar_gz(1).unwrap());
    }

    #[test]
    fn a_folder_reads_back() {
        let folder = std::env::temp_dir().join(format!("ferroce-files-{}", std::process::id()));
        let archive = sample().tar(1).unwrap();
        let status = tar::Archive::new(archive.as_slice()).unpack(&folder);
        let read = Files::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        status.unwrap();
        assert_eq!(read.unwrap().0, sample().0);
    }
}
