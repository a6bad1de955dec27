//! The error by which an embedded broker reports its failure to the engine of the same program.

use std::error::Error;

/// Reasons why this process could not start a broker.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The program does not link a broker.
    #[error("this program has no broker of its own: start ferroced")]
    Unavailable,
    /// The program has more rights than the user who started it, who may stop it, and with it all users of
    /// the broker.
    #[error(
        "a program with more rights than its user (set-user-ID, file capabilities) does not serve as the broker: start \
         ferroced, or install it in /usr/bin"
    )]
    Privileged,
    /// Another process holds the broker's name.
    #[error(transparent)]
    Taken(Box<dyn Error + Send + Sync>),
    /// The broker failed to start.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}
