//! Wrong usage of the command line.

/// A usage error that clap cannot detect; exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
