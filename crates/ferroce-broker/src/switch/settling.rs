//! Requests of programs that wait until the thread has moved all packets that were on their way before.
//!
//! A packet that is in a ring, or in a socket of the broker, has arrived as far as a queue pair is concerned
//! that is about to change its state. The thread reads every socket empty and every ring once. One request of
//! a program waits at a time, and all that wait share the rounds.
//!
//! The broker's thread hands them over and takes them back without the lock of the table, so it never waits
//! for a round of the switch.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_host::fork::Guarded;
use parking_lot::Mutex;

use crate::ClientId;

/// Rounds of the thread for the requests that wait: 4096 frames of a socket. A socket that is never empty
/// makes a program wait so long and no longer.
const ROUNDS: u32 = 64;

#[derive(Debug)]
pub(super) struct Settling {
    requests: Mutex<Requests>,
    /// Readable if something is in [`Requests::done`].
    signal: Guarded<OwnedFd>,
}

#[derive(Debug, Default)]
struct Requests {
    /// At most one of a program.
    asked: BTreeMap<ClientId, u32>,
    done: Vec<(ClientId, u32)>,
}

impl Settling {
    pub(super) fn new(signal: Guarded<OwnedFd>) -> Self {
        Self { requests: Mutex::default(), signal }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// Returns the request that this one stands for from now on, if the program has asked before.
    pub(super) fn ask(&self, client: ClientId, id: u32) -> Option<u32> {
        self.requests.lock().asked.insert(client, id)
    }

    pub(super) fn take_done(&self) -> Vec<(ClientId, u32)> {
        let _ = rustix::io::read(&*self.signal, &mut [0; 8]);
        std::mem::take(&mut self.requests.lock().done)
    }

    pub(super) fn finish(&self, requests: BTreeMap<ClientId, u32>) {
        self.requests.lock().done.extend(requests);
        let _ = rustix::io::write(&*self.signal, &1_u64.to_ne_bytes());
    }

    /// Finishes those that were asked and not begun.
    pub(super) fn finish_all(&self) {
        let asked = std::mem::take(&mut self.requests.lock().asked);
        self.finish(asked);
    }
}

/// The requests that the thread serves.
#[derive(Default)]
pub(super) struct Served {
    requests: BTreeMap<ClientId, u32>,
    rounds: u32,
}

impl Served {
    /// Takes up requests, before the thread asks what is ready. Returns whether there are any: then it does
    /// not wait.
    pub(super) fn begin(&mut self, settling: &Settling) -> bool {
        if self.requests.is_empty() {
            self.requests = std::mem::take(&mut settling.requests.lock().asked);
            self.rounds = 0;
        }
        !self.requests.is_empty()
    }

    /// A round is over, and its packets can be seen. `left`: more than those was in a socket.
    pub(super) fn end_round(&mut self, settling: &Settling, left: bool) {
        self.rounds += 1;
        if !self.requests.is_empty() && (!left || self.rounds >= ROUNDS) {
            settling.finish(std::mem::take(&mut self.requests));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_when_all_sockets_were_empty_or_after_many_rounds() {
        let settling = Settling::new(super::super::counter().unwrap());
        let mut served = Served::default();
        let (one, other) = (ClientId(1), ClientId(2));
        assert!(!served.begin(&settling));
        assert_eq!(settling.ask(one, 5), None);
        served.end_round(&settling, false);
        assert_eq!(settling.take_done(), [], "that round had begun before");
        assert!(served.begin(&settling));
        assert_eq!((settling.ask(one, 6), settling.ask(other, 7)), (None, None));
        assert_eq!(settling.ask(one, 8), Some(6), "one of a program waits");
        served.end_round(&settling, true);
        assert_eq!(settling.take_done(), []);
        assert!(served.begin(&settling));
        served.end_round(&settling, false);
        assert_eq!(settling.take_done(), [(one, 5)]);
        for _ in 0..ROUNDS {
            assert_eq!(settling.take_done(), []);
            assert!(served.begin(&settling));
            served.end_round(&settling, true);
        }
        assert_eq!(settling.take_done(), [(one, 8), (other, 7)], "a socket is never empty");
        assert!(!served.begin(&settling));
    }
}
