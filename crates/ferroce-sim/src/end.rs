//! An end of a connection.

use ferroce_proto::{AsyncEventKind, DropReason, Memory, QpEvent, QueuePair, WorkCompletion};

/// A queue pair, its memory, and what it reported.
#[derive(Debug)]
pub struct End<M> {
    /// The queue pair.
    pub qp: QueuePair,
    /// The registered memory of the end.
    pub mem: M,
    /// Completions of the send queue that nobody took yet.
    pub sends: Vec<WorkCompletion>,
    /// Completions of the receive queue.
    pub recvs: Vec<WorkCompletion>,
    /// Asynchronous events.
    pub asyncs: Vec<AsyncEventKind>,
    /// Packets that the queue pair refused.
    pub drops: Vec<DropReason>,
    /// Packets whose ICRC was wrong.
    pub bad_icrc: u64,
}

impl<M: Memory> End<M> {
    /// Without completions.
    pub fn new(qp: QueuePair, mem: M) -> Self {
        Self { qp, mem, sends: vec![], recvs: vec![], asyncs: vec![], drops: vec![], bad_icrc: 0 }
    }

    /// Takes the queue pair's completions and events.
    pub fn events(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            if let QpEvent::Send(completion) | QpEvent::Recv(completion) | QpEvent::RecvXrc(_, completion) =
                &event
            {
                self.qp.count(completion);
            }
            match event {
                QpEvent::Send(completion) => self.sends.push(completion),
                QpEvent::Recv(completion) | QpEvent::RecvXrc(_, completion) => self.recvs.push(completion),
                QpEvent::Async(event) => self.asyncs.push(event),
            }
        }
    }
}
