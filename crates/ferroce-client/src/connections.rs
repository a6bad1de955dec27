//! Requests of connection management.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferroce_ipc::{ClientError, CmDone, CmRequest, Message, Refusal, RefusalCode};
use ferroce_wire::cm::CommId;
use parking_lot::Mutex;

use super::link::{Guard, Inner, Link};
use super::{BrokerClient, BrokerError, REQUEST};

/// How long a message without answer waits for requests of other threads.
const TELL: Duration = Duration::from_millis(20);
/// How long the end of a process waits for the next broker, and how often it looks for it.
const LEAVE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

impl Inner {
    /// Takes up what was to be told without waiting for an answer.
    pub(super) fn take_up(&mut self, later: &Mutex<VecDeque<CmRequest>>) {
        let later = std::mem::take(&mut *later.lock());
        for request in later {
            self.book.done(&request, &CmDone::default());
            self.book.outbox.push_back(request);
        }
    }
}

impl BrokerClient {
    /// Tells the broker that a bind or connection is over: [`CmRequest::Unbind`] or [`CmRequest::Close`].
    /// Waits for no answer; if a broker is there that answers other threads' requests, it has the message
    /// when this returns, so that it comes before whatever the caller does next.
    pub fn tell(&self, request: CmRequest) {
        self.later.lock().push_back(request);
        match self.inner.try_lock_for(TELL) {
            Some(inner) => Guard::new(self, inner).say(),
            // If another thread is in a request, the thread that follows the broker sends the message.
            None => {
                let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            }
        }
    }

    /// At the exit of the process: waits until a broker knows the connections that this program has, or
    /// closed just now, for [`LEAVE`] at most. It tells their peers that they are over, which otherwise would
    /// never hear of it.
    pub fn take_leave(&self) {
        let end = Instant::now() + LEAVE;
        // A program may exit in a signal handler, whose thread may hold the lock.
        while let Some(inner) = self.inner.try_lock_for(TELL) {
            let mut guard = Guard::new(self, inner);
            let left = end.saturating_duration_since(Instant::now());
            if guard.inner.book.is_settled() || left.is_zero() {
                return;
            }
            guard.drain();
            if guard.inner.is_ready()
                && let Link::Up { client, .. } = &mut guard.inner.link
            {
                // A broker that was killed can be written to until its end. One that answers has read all.
                match client.request(&Message::ListDevices, left) {
                    Ok(_) => return,
                    Err(error) => guard.down(&error),
                }
            }
            drop(guard);
            std::thread::sleep(PAUSE);
        }
    }

    /// Continues a connection: [`CmRequest::Accept`], [`CmRequest::Establish`] or [`CmRequest::Disconnect`].
    /// Waits for no answer, as [`BrokerClient::tell`]; an event reports the result.
    ///
    /// # Errors
    /// [`ferroce_ipc::ClientError::Refused`] if there is no such connection any more.
    pub fn go_on(&self, request: CmRequest) -> Result<(), BrokerError> {
        let id = match &request {
            // Twice is once too often, and the broker says so.
            CmRequest::Accept { id, .. } if self.is_asked(*id) => *id,
            CmRequest::Establish(id) | CmRequest::Disconnect(id) => *id,
            _ => return self.connections(request, |_| {}).map(drop),
        };
        let Some(inner) = self.inner.try_lock_for(TELL) else {
            self.tell(request);
            return Ok(());
        };
        let mut guard = Guard::new(self, inner);
        if !guard.inner.book.knows(id) {
            let sentence = format!("no connection {id:?}");
            return Err(ClientError::from(Refusal { code: RefusalCode::UnknownId, sentence }).into());
        }
        self.later.lock().push_back(request);
        guard.say();
        Ok(())
    }

    fn is_asked(&self, id: CommId) -> bool {
        self.inner.try_lock_for(TELL).is_some_and(|inner| inner.book.is_asked(id))
    }

    /// Sends a request to connection management. `then` sees the answer before any event about it is handed
    /// out; it must not call this client.
    ///
    /// # Errors
    /// [`ferroce_ipc::ClientError::Refused`] with the broker's reason; those of a broker that must be found
    /// anew.
    pub fn connections(&self, request: CmRequest, then: impl FnOnce(&CmDone)) -> Result<CmDone, BrokerError> {
        let message = Message::Cm(request);
        let (mut guard, done) = self.ask(|client| match client.request(&message, REQUEST)? {
            (Message::CmDone(done), _) => Ok(done),
            _ => Err(ClientError::Unexpected),
        })?;
        if let Message::Cm(request) = &message {
            guard.inner.book.done(request, &done);
        }
        then(&done);
        Ok(done)
    }
}
