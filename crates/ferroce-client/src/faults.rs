//! Answers to orders about faults.

use std::collections::VecDeque;
use std::io;

use ferroce_ipc::{FaultReport, Message};
use parking_lot::Mutex;

use super::BrokerClient;
use super::link::{Guard, Inner, Link};

impl BrokerClient {
    /// Answers [`BrokerEvent::FaultOrder`](super::BrokerEvent::FaultOrder). Does not wait: while another
    /// thread is in a request, the answer leaves after it. A broker that died meanwhile does not get the
    /// answer, nor does the next one.
    pub fn report_faults(&self, number: u32, result: Result<FaultReport, String>) {
        self.reports.lock().push_back(Message::FaultReport { number, result });
        match self.inner.try_lock() {
            Some(inner) => Guard::new(self, inner).say(),
            None => {
                let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Whether messages wait that need no answer.
    pub(super) fn has_more_to_tell(&self) -> bool {
        !self.later.lock().is_empty() || !self.reports.lock().is_empty()
    }
}

impl Inner {
    /// Takes up the answers that threads have left.
    pub(super) fn take_up_reports(&mut self, reports: &Mutex<VecDeque<Message>>) {
        self.reports.append(&mut reports.lock());
    }

    /// Sends the answers, as far as the broker takes them. Whether that was all.
    pub(super) fn tell_reports(&mut self) -> io::Result<bool> {
        let Link::Up { client, .. } = &mut self.link else { return Ok(true) };
        while let Some(report) = self.reports.front() {
            match client.tell(report) {
                Ok(()) => drop(self.reports.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}
