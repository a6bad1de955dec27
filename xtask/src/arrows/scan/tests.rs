use std::path::Path;

use super::{Sources, Use};

/// Reads a crate of these files; the first is the root.
fn read(files: &[(&str, &str)]) -> Sources {
    let text = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        Ok(found.ok_or_else(|| anyhow::anyhow!("no such file"))?.1.to_owned())
    };
    Sources::read_by(Path::new(files[0].0), &text).unwrap()
}

/// `user -> target:line` of each use, by file.
fn uses(files: &[(&str, &str)]) -> Vec<String> {
    let sources = read(files);
    let name = |file: usize| sources.files[file].path.display().to_string();
    let text = |of: &Use| format!("{} -> {}:{}", name(of.file), name(sources.file_of(of.target)), of.line);
    sources.uses.iter().map(text).collect()
}

#[test]
fn paths_are_followed_through_crate_super_self_and_children() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "use crate::b::B;\nfn f() { crate::c::g() }\nmod inner { fn f() { super::super::b::h() } }"),
        ("b/mod.rs", "mod part;\nfn f() { part::x(); self::part::y() }\npub struct B;"),
        ("b/part.rs", "use super::{B, super::c};\nfn f() { c::g(); std::c::g(); <B as T>::c::g() }"),
        ("c.rs", "pub fn g() {}"),
    ];
    let want = [
        "a.rs -> b/mod.rs:1",
        "a.rs -> c.rs:2",
        "a.rs -> b/mod.rs:3",
        "b/mod.rs -> b/part.rs:2",
        "b/mod.rs -> b/part.rs:2",
        "b/part.rs -> b/mod.rs:1",
        "b/part.rs -> c.rs:1",
        "b/part.rs -> c.rs:2",
    ];
    let mut found = uses(&files);
    found.sort();
    let mut want = want.map(str::to_owned).to_vec();
    want.sort();
    assert_eq!(found, want);
}

#[test]
fn a_reexported_item_counts_for_the_file_that_defines_it() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub use a::deep::Deep;"),
        ("a.rs", "pub mod deep;\npub use deep::*;\npub use deep::Deep as Other;"),
        ("a/deep.rs", "pub struct Deep;"),
        ("b.rs", "use crate::Deep;\nuse crate::a::Other;\nuse crate::a::Deep as Third;"),
    ];
    assert_eq!(uses(&files), ["b.rs -> a/deep.rs:1", "b.rs -> a/deep.rs:2", "b.rs -> a/deep.rs:3"]);
}

#[test]
fn tests_are_left_out_and_macros_are_not() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod gone;\n#[cfg(all(test, loom))] use crate::{a, b};"),
        (
            "a.rs",
            "#[cfg(test)]\nuse crate::b::{X, Y};\nfn f() {\n    #[cfg(test)]\n    crate::b::g();\n}\n\
             #[cfg(not(test))]\nfn h() { assert!(crate::b::g()); }\n\
             #[test]\nfn t() -> Vec<A, B> { crate::b::g() }\n\
             macro_rules! m { () => { $crate::b::g() } }",
        ),
        ("b.rs", "#![cfg_attr(test, allow(x))]"),
    ];
    assert_eq!(uses(&files), ["a.rs -> b.rs:8", "a.rs -> b.rs:11"]);
}

#[test]
fn lines_of_code_and_unsafe_blocks_are_counted() {
    let text = "//! Doc.\n\n// A comment.\nfn f() {\n    unsafe { g() } // unsafe { h() }\n}\n\n/// Doc.\n\
                #[inline]\nunsafe fn g() {}\n\n#[cfg(test)]\nmod tests {\n    fn f() { unsafe { g() } }\n}\n";
    let sources = read(&[("lib.rs", text)]);
    let file = &sources.files[0];
    assert_eq!((file.lines, file.code, file.unsafe_blocks), (15, 5, 1));
}
