use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::format::{Damaged, Link, OneFile};
use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ferroce-one-file-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn within(base: &Path, one: &OneFile) -> Result<PathBuf> {
    super::within(&RuntimeDir::existing(base.to_owned())?, one)
}

fn sample() -> OneFile {
    let library = vec![7; 100_000];
    let link = Link { path: "lib/other.so.1".to_owned(), target: "library.so.1".to_owned() };
    OneFile::new(b"#!/bin/sh\necho unpacked\n", &[("lib/library.so.1".to_owned(), library)], vec![link])
}

fn entries(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn it_unpacks_once_and_reads_back() {
    let folder = Folder::new("once");
    let one = OneFile::parse(sample().into_bytes()).unwrap().unwrap();
    let program = within(&folder.0, &one).unwrap();
    assert_eq!(Command::new(&program).output().unwrap().stdout, b"unpacked\n");
    let library = program.parent().unwrap().with_file_name("lib").join("library.so.1");
    assert_eq!(fs::read(library.with_file_name("other.so.1")).unwrap(), vec![7; 100_000]);
    let inode = library.metadata().unwrap().ino();
    within(&folder.0, &one).unwrap();
    assert_eq!(library.metadata().unwrap().ino(), inode, "the second time nothing is written");
    assert_eq!(entries(&folder), [one.key()]);
}

#[test]
fn another_folder_of_the_same_name_receives_nothing() {
    let folder = Folder::new("renamed");
    let (named, away) = (folder.0.join("named"), folder.0.join("away"));
    DirBuilder::new().mode(0o700).create(&named).unwrap();
    let held = RuntimeDir::existing(named.clone()).unwrap();
    fs::rename(&named, &away).unwrap();
    DirBuilder::new().mode(0o700).create(&named).unwrap();
    let program = super::within(&held, &sample()).unwrap();
    assert!(program.starts_with(&away), "{}", program.display());
    assert_eq!(fs::read_dir(&named).unwrap().count(), 0);
}

#[test]
fn a_changed_file_is_replaced() {
    let folder = Folder::new("changed");
    let one = sample();
    let program = within(&folder.0, &one).unwrap();
    let library = program.parent().unwrap().with_file_name("lib").join("library.so.1");
    let (octet, mode) = (fs::Permissions::from_mode(0o755), fs::Permissions::from_mode(0o777));
    let spoil: [&dyn Fn(); 4] = [
        &|| fs::write(&library, vec![8; 100_000]).unwrap(),
        &|| fs::write(&library, []).unwrap(),
        &|| fs::remove_file(&library).unwrap(),
        &|| fs::set_permissions(&library, mode.clone()).unwrap(),
    ];
    for spoil in spoil {
        spoil();
        assert!(!holds(program.parent().unwrap().parent().unwrap(), &one));
        assert_eq!(within(&folder.0, &one).unwrap(), program);
        assert_eq!(fs::read(&library).unwrap(), vec![7; 100_000]);
        assert_eq!(library.metadata().unwrap().permissions().mode() & 0o777, octet.mode());
        assert_eq!(entries(&folder), [one.key()]);
    }
}

#[test]
fn many_at_once_agree() {
    let folder = Folder::new("race");
    let one = sample();
    // Threads share a process id, and so the name of the fresh folder; processes do not. Each has a process
    // here.
    let program = within(&folder.0, &one).unwrap();
    fs::remove_dir_all(program.parent().unwrap().parent().unwrap()).unwrap();
    let children: Vec<_> = (0..8)
        .map(|_| {
            let own = std::env::current_exe().unwrap();
            let mut command = Command::new(own);
            command.args(["--exact", "one_file::tests::unpacks_where_it_is_told", "--nocapture"]);
            command
                .env("ONE_FILE_TEST_FOLDER", &folder.0)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert!(holds(&folder.0.join(one.key()), &one));
    assert_eq!(entries(&folder), [one.key()], "nothing is left over");
}

/// [`many_at_once_agree`] starts this test in several processes at once, with a folder in the environment. A
/// run without that folder does nothing.
#[test]
fn unpacks_where_it_is_told() {
    if let Some(folder) = std::env::var_os("ONE_FILE_TEST_FOLDER") {
        let one = sample();
        let program = within(Path::new(&folder), &one).unwrap();
        assert!(holds(program.parent().unwrap().parent().unwrap(), &one));
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_not_used() {
    let folder = Folder::new("writable");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(within(&folder.0, &sample()).is_err());
    let link = folder.0.join("link");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&folder.0, &link).unwrap();
    assert!(within(&link, &sample()).is_err(), "a link may be anybody's");
}

#[test]
fn damage_is_seen() {
    assert!(OneFile::parse(b"an ordinary program".to_vec()).unwrap().is_none());
    let good = sample().into_bytes();
    // Each octet but the trailer's magic is covered.
    for position in [0, 30, good.len() - TRAILER - 1, good.len() - TRAILER, good.len() - 20] {
        let mut bytes = good.clone();
        bytes[position] ^= 1;
        let seen = match OneFile::parse(bytes) {
            Ok(one) => one.unwrap().check().is_err(),
            Err(_) => true,
        };
        assert!(seen, "octet {position}");
    }
    for length in [MAGIC.len(), TRAILER - 1, TRAILER] {
        let bytes = good[good.len() - length..].to_vec();
        assert_eq!(OneFile::parse(bytes).unwrap_err(), Damaged::List, "{length}");
    }
    assert!(OneFile::parse(good[..good.len() - 1].to_vec()).unwrap().is_none(), "a download that broke off");
}

#[test]
fn paths_stay_within_the_folder() {
    for path in ["../evil", "/etc/evil", "lib//evil", "lib/./evil", "", "a\0b"] {
        let bytes = OneFile::new(b"", &[(path.to_owned(), Vec::new())], Vec::new()).into_bytes();
        assert_eq!(OneFile::parse(bytes).unwrap_err(), Damaged::Path(path.to_owned()));
        let link = Link { path: path.to_owned(), target: "x".to_owned() };
        let bytes = OneFile::new(b"", &[], vec![link]).into_bytes();
        assert_eq!(OneFile::parse(bytes).unwrap_err(), Damaged::Path(path.to_owned()));
    }
}
