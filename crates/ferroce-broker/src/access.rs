//! Which users a broker serves that serves more than its own.

use std::os::fd::BorrowedFd;

use ferroce_ipc::Peer;
use ferroce_ipc::trust;

use crate::sys;

/// The right to connect, as the mode and the group of a device file say it. The broker's user and root may
/// always connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The name of the group, for messages, and its number.
    pub group: Option<(String, u32)>,
    /// Whether every user may connect.
    pub everybody: bool,
}

impl Access {
    /// Whether a program may connect; if not, a sentence for its user.
    ///
    /// # Errors
    /// The sentence.
    pub fn check(&self, peer: Peer, connection: BorrowedFd<'_>) -> Result<(), String> {
        let ours = nix::unistd::geteuid().as_raw();
        if peer.uid == 0 || peer.uid == ours {
            return Ok(());
        }
        let user = Peer::user(peer.uid);
        if peer.uid == Peer::UNKNOWN || trust::is_ambiguous(peer.uid) {
            return Err(format!(
                "ferroced cannot tell {user} from other users, because its user namespace does not map all: start \
                 ferroced outside"
            ));
        }
        if self.everybody {
            return Ok(());
        }
        match &self.group {
            Some((_, gid)) if sys::peer_groups(connection).is_ok_and(|groups| groups.contains(gid)) => Ok(()),
            Some((name, _)) => Err(format!(
                "ferroced of this network namespace serves the group {name} alone, and {user} is not in it: ask the \
                 administrator (usermod -aG {name} USER, and log in again)"
            )),
            None => Err(format!(
                "ferroced of this network namespace serves root alone, and not {user}: ask the administrator (ferroced \
                 --system --mode 0666)"
            )),
        }
    }
}
