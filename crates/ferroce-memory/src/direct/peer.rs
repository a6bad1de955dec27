//! Direct copies with one process, both ways.
//!
//! The system call names a thread of the target that `/proc` shows as one of the process that the broker
//! named. That number does not pass to a program that `execve` starts, so a copy that comes late finds
//! nobody.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferroce_host::event;
use ferroce_host::fork::Guarded;
use ferroce_ipc::pipe::Pipe;

use super::Direct;
use crate::publisher::{self, Copier, Hazards, Publisher};

/// The process at the other end of a pipe, as a target of our copies, and as a copier of our memory.
pub struct Peer {
    /// Readable when it has ended.
    pidfd: Guarded<OwnedFd>,
    direct: Option<Direct>,
    copier: Option<(Arc<Publisher>, Arc<Copier>)>,
}

impl Peer {
    /// From now on the end of a registration waits for the copies of that process, if this one publishes its
    /// memory. So this comes before [`Pipe::set_joined`]. Tries whether this process can copy to and from
    /// that one, if that has `published` its memory.
    pub fn new(
        publisher: Option<&Arc<Publisher>>,
        pidfd: OwnedFd,
        published: Option<OwnedFd>,
        pipe: &Pipe,
    ) -> Self {
        let copier = publisher.and_then(|publisher| {
            let theirs = Hazards::of(pipe, pipe.side().other());
            let made = pidfd.try_clone().and_then(|pidfd| Copier::new(pidfd, theirs));
            let made = made.inspect_err(|error| tracing::debug!(%error, "a process cannot be found"));
            let copier = Arc::new(made.ok()?);
            publisher.add_copier(Arc::clone(&copier));
            Some((Arc::clone(publisher), copier))
        });
        let direct = published.filter(|_| publisher::is_permitted()).and_then(|published| {
            let opened = Direct::open(pidfd.as_fd(), &published, Hazards::of(pipe, pipe.side()));
            let report = |error: &super::DirectError| {
                let source = error.source().map(ToString::to_string);
                tracing::debug!(%error, source, "no direct copies to a process of this host");
            };
            opened.inspect_err(report).ok()
        });
        Self { pidfd: Guarded::new(pidfd), direct, copier }
    }

    /// For copies by this process.
    #[inline]
    pub fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref()
    }

    pub fn has_ended(&self) -> bool {
        // An error says nothing: a signal, for example.
        matches!(event::poll(&mut [event::readable(self.pidfd.as_fd())], 0), Ok(1..))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some((publisher, copier)) = &self.copier {
            publisher.remove_copier(copier);
        }
    }
}
