use std::process::Command;

use super::*;

#[test]
fn names_of_ours_and_of_copies() {
    for name in ["libibverbs.so.1", "libibverbs-1de1263b.so.1.14.48.0", "librdmacm.so", "libibumad-0.so.3"] {
        assert!(is_ours(name), "{name}");
    }
    for name in ["libibverbs", "libibverbsx.so.1", "libmlx5.so.1", "libc.so.6", "xlibibverbs.so.1", ""] {
        assert!(!is_ours(name), "{name}");
    }
}

#[test]
fn what_files_are() {
    let script = |text: &str| Kind::of(text.as_bytes());
    assert_eq!(script("#!/bin/sh\necho"), Kind::Script("/bin/sh".into()));
    assert_eq!(script("#! /usr/bin/env python3 -u"), Kind::Script("/usr/bin/env".into()));
    assert_eq!(script("echo"), Kind::Unknown);
    assert_eq!(script(""), Kind::Unknown);
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    let Kind::Elf(elf) = Kind::of(&own) else { panic!("this program is none") };
    assert!(elf.dynamic && elf.loader.is_some() && elf.needed.iter().any(|name| name == "libc.so.6"));
    assert_eq!(needed(&std::env::current_exe().unwrap()), elf.needed);
    assert!(needed(Path::new("/dev/null")).is_empty());
    let mut other = own[..4096].to_vec();
    other[18] = 8; // MIPS
    assert_eq!(Kind::of(&other), Kind::Foreign);
    other[4] = elf::ELFCLASS32;
    assert_eq!(Kind::of(&other), Kind::Foreign);
    // Truncated or malformed files give a result, and no panic.
    for end in (0..4096).step_by(7) {
        Kind::of(&own[..end]);
        let mut garbled = own[..8192].to_vec();
        garbled[end] ^= 0x5a;
        Kind::of(&garbled);
    }
}

/// Real programs, and the library that the loader finds for each.
#[test]
fn the_loaders_rules() {
    let root = std::env::temp_dir().join(format!("ferroce-program-{}", std::process::id()));
    let [private, ours] = ["private", "ours"].map(|name| root.join(name));
    let cc = |words: &[&str]| -> bool {
        let made = Command::new("cc").args(words).current_dir(&root).status();
        made.is_ok_and(|status| status.success())
    };
    for folder in [&private, &ours] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(root.join("l.c"), "int f(void) { return 0; }\n").unwrap();
    fs::write(root.join("m.c"), "int f(void); int main(void) { return f(); }\n").unwrap();
    let library = |name: &str, file: &str| {
        cc(&["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-o", &format!("{file}/{name}"), "l.c"])
    };
    if !library("libibverbs.so.1", "private") {
        return println!("skipped: there is no C compiler");
    }
    let copy = "libibverbs-1de1263b.so.1";
    assert!(library("libibverbs.so.1", "ours") && library(copy, "private"));
    // A library between the program and ferroce's.
    let between = ["-shared", "-fPIC", "-Wl,-soname,libmid.so.1", "-o", "private/libmid.so.1", "l.c"];
    assert!(cc(&[&between[..], &["-Wl,--no-as-needed", "private/libibverbs.so.1"]].concat()));
    let find = |name: &str, link: &[&str]| -> (Vec<Loaded>, PathBuf) {
        assert!(cc(&[&["-o", name, "m.c"], link].concat()), "{name}");
        let file = root.join(name);
        let Kind::Elf(elf) = Kind::of(&fs::read(&file).unwrap()) else { panic!("{name}") };
        (loads(&file, &elf, std::slice::from_ref(&ours)), file)
    };
    let (old, new) = ("-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags");
    let (absolute, origin) = (format!("-Wl,-rpath,{}", private.display()), "-Wl,-rpath,$ORIGIN/private");
    let plain = "private/libibverbs.so.1";
    let through = ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "private/libmid.so.1"];
    for (name, link, at) in [
        ("plain", vec![plain], &ours),
        ("rpath", vec![plain, old, &absolute], &private),
        ("origin", vec![plain, old, origin], &private),
        ("runpath", vec![plain, new, &absolute], &ours),
        ("wheel", vec!["private/libibverbs-1de1263b.so.1", new, origin], &private),
        // DT_RPATH applies to the libraries of a program's libraries, DT_RUNPATH only to its own.
        ("deep", [&through[..], &[old, &absolute]].concat(), &private),
        ("shallow", [&through[..], &[new, &absolute]].concat(), &ours),
    ] {
        let (found, _) = find(name, &link);
        let [one] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!(one.file.as_deref().and_then(Path::parent), Some(at.as_path()), "{name}");
        assert_eq!(one.by.ends_with("libmid.so.1"), link.len() > 3, "{name}: {one:?}");
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn copies_in_wheels() {
    let root = std::env::temp_dir().join(format!("ferroce-wheels-{}", std::process::id()));
    let packages = root.join("lib/python3.11/site-packages");
    fs::create_dir_all(packages.join("nixl_cu12.libs")).unwrap();
    for file in
        ["nixl_cu12.libs/libibverbs-1de1263b.so.1.14.48.0", "nixl_cu12.libs/libucp-1.so.0", "libibverbs.so.1"]
    {
        fs::write(packages.join(file), "").unwrap();
    }
    let found = bundled(&root.join("bin/python3"));
    assert_eq!(found, [packages.join("nixl_cu12.libs/libibverbs-1de1263b.so.1.14.48.0")]);
    assert!(bundled(&root.join("bin/mpirun")).is_empty());
    fs::remove_dir_all(&root).unwrap();
}
