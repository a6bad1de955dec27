//! What the engine and a broker inside the same program agree on.

use std::error::Error;

/// Why no broker could be started in this process.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// No broker is linked into this program.
    #[error("this program has no broker of its own: start ferroced")]
    Unavailable,
    /// Another process holds the broker's name.
    #[error(transparent)]
    Taken(Box<dyn Error + Send + Sync>),
    /// The broker could not begin to serve.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}
