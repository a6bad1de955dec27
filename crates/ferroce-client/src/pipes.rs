//! Pipes to other programs, which the broker makes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_host::fork::Guarded;
use ferroce_ipc::Message;

/// A pipe to another program, as the broker hands it out.
#[derive(Debug)]
pub struct PipeOffer {
    /// This program is the pipe's first side.
    pub first: bool,
    /// The slots of the other program.
    pub slots: Vec<u16>,
    /// See [`ferroce_ipc::pipe::Pipe::join`].
    pub memory: OwnedFd,
    /// The far end of the doorbell of the other program.
    pub bell: OwnedFd,
    /// The other program.
    pub pidfd: OwnedFd,
    /// The file that says which of the other program's memory may be copied, if any.
    pub published: Option<OwnedFd>,
}

impl PipeOffer {
    /// The pipe of a [`Message::Pipe`]; `None` if that has too few descriptors.
    pub(super) fn new(first: bool, slots: Vec<u16>, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let (memory, bell, pidfd) = (descriptors.next()?, descriptors.next()?, descriptors.next()?);
        Some(Self { first, slots, memory, bell, pidfd, published: descriptors.next() })
    }
}

/// The descriptors that the broker hands to a program that gets a pipe to this one.
#[derive(Debug)]
pub(super) struct Offered {
    /// The far end of its doorbell.
    pub(super) bell: Guarded<OwnedFd>,
    /// The file that says which of its memory others may copy, if they may.
    pub(super) published: Option<Guarded<OwnedFd>>,
}

impl Offered {
    pub(super) fn message(&self) -> Message {
        Message::OfferPipes { direct: self.published.is_some() }
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [&self.bell].into_iter().chain(&self.published).map(|fd| fd.as_fd()).collect()
    }
}
