//! The workspace's commands.
fn main() {}
