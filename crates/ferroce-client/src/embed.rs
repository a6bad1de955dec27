//! A broker inside this program. The client does not know the broker's crate: the program's face passes its
//! entry here.

use std::sync::OnceLock;

use ferroce_ipc::EmbedError;

/// Starts a broker under this abstract name in a thread of this process, if none runs there.
pub type StartEmbedded = fn(name: &str) -> Result<(), EmbedError>;

static START: OnceLock<StartEmbedded> = OnceLock::new();

/// Says how a broker is started in this process. The first call counts; without one,
/// [`super::BrokerMode::Embedded`] fails.
pub fn embed_with(start: StartEmbedded) {
    let _ = START.set(start);
}

pub(super) fn start(name: &str) -> Result<(), EmbedError> {
    START.get().ok_or(EmbedError::Unavailable)?(name)
}
