//! The version and the platform in the names of files.

/// The version of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The platform.
pub const PLATFORM: &str = "x86_64-linux-gnu";
