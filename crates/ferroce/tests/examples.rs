//! The examples that people start from, with both ends in a network namespace of the test's own.

mod common;

use std::fs;
use std::path::Path;

use common::in_namespace;

#[path = "../examples/hello.rs"]
#[allow(dead_code, reason = "its output is not tried here")]
mod hello;

#[test]
fn hello_receives_the_message() {
    if in_namespace("hello_receives_the_message") {
        assert_eq!(hello::hello().unwrap(), "hello");
    }
}

/// The book's first code is the example.
#[test]
fn the_book_shows_hello() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(page) = fs::read_to_string(root.join("../../docs/book/src/rust.md")) else {
        println!("skipped: the package has no book");
        return;
    };
    let code = fs::read_to_string(root.join("examples/hello.rs")).unwrap();
    let (_, code) = code.split_once("\n\n").unwrap();
    let (_, block) = page.split_once("```rust").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert_eq!(block.split_once('\n').unwrap().1, code);
}
