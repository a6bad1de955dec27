//! The messages of one queue pair, each checked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ferroce_proto::{QpState, RecvWr, Remote, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use ferroce_wire::{Instant, Lkey, Rkey};

use super::{Amount, Histogram, Messages, Operation, PairOutcome, status_name};
use crate::hosts::{EndId, Hosts};
use crate::ram::Ram;
use crate::{End, Rng};

/// The key of the memory of messages, at both ends.
const KEY: u32 = 1;

/// A queue pair that sends messages, and its peer.
pub(super) struct Sender {
    pub ends: [EndId; 2],
    what: Messages,
    /// Time of the first post; no message is posted from `stop` on.
    pub start: Instant,
    stop: Option<Instant>,
    /// Completions before this time are not measured.
    measured_from: Instant,
    /// Chooses the octets of the messages.
    salt: u64,
    posted: u64,
    completed: u64,
    failed: u64,
    received: u64,
    receives_posted: u64,
    /// Times at which completed receives are posted again.
    receives_due: VecDeque<Instant>,
    receives_again: u64,
    times: VecDeque<Instant>,
    errors: BTreeMap<&'static str, u64>,
    /// The first error of the send queue.
    first_error: Option<WcStatus>,
    /// A broken promise about data, order or number.
    broken: Option<String>,
    latency: Histogram,
    measured: u64,
    last: Instant,
}

impl Sender {
    pub fn new(ends: [EndId; 2], what: &Messages, start: Duration, warm_up: Duration, salt: u64) -> Self {
        let start = Instant::ZERO + start;
        let stop = match what.amount {
            Amount::During(time) => Some(start + time),
            Amount::Messages(_) | Amount::Endless => None,
        };
        Self {
            ends,
            what: *what,
            start,
            stop,
            measured_from: start.max(Instant::ZERO + warm_up),
            salt,
            posted: 0,
            completed: 0,
            failed: 0,
            received: 0,
            receives_posted: 0,
            receives_due: VecDeque::new(),
            receives_again: 0,
            times: VecDeque::new(),
            errors: BTreeMap::new(),
            first_error: None,
            broken: None,
            latency: Histogram::default(),
            measured: 0,
            last: start,
        }
    }

    /// Memory for the messages at one end.
    pub fn memory(what: &Messages) -> Ram {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; what.memory() as usize]);
        ram
    }

    /// Whether it will post no more.
    fn is_over(&self, now: Instant) -> bool {
        let enough = match self.what.amount {
            Amount::Messages(count) => self.posted >= count,
            Amount::During(_) => self.stop.is_some_and(|stop| now >= stop),
            Amount::Endless => false,
        };
        enough || self.failed > 0 || self.broken.is_some()
    }

    /// Whether nothing is left to post and to complete.
    pub fn is_done(&self, now: Instant) -> bool {
        self.broken.is_some() || self.is_over(now) && self.posted == self.completed + self.failed
    }

    /// Time at which the next receive is posted again; `None` if no receive waits.
    pub fn next_receive(&self) -> Option<Instant> {
        self.receives_due.front().copied()
    }

    fn breach(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Takes the completions of both ends, checks them, and posts more.
    pub fn pump(&mut self, hosts: &mut Hosts<'_>) {
        let now = hosts.now();
        let [mine, theirs] = hosts.ends(self.ends);
        for completion in std::mem::take(&mut theirs.recvs) {
            self.receive(now, &completion, &theirs.mem);
        }
        for completion in std::mem::take(&mut mine.sends) {
            self.complete(now, &completion, &mine.mem, &theirs.mem);
        }
        self.post(now, mine, theirs);
        self.ends.iter().for_each(|end| hosts.drain(*end));
    }

    fn receive(&mut self, now: Instant, completion: &WorkCompletion, memory: &Ram) {
        let number = self.received;
        if completion.status != WcStatus::Success {
            self.count(completion.status);
            return;
        }
        self.received += 1;
        self.receives_due.push_back(now + self.what.receive_delay);
        if completion.wr_id != number {
            self.breach(format!("receive {} completed in place of {number}", completion.wr_id));
        } else if completion.byte_len != self.what.size {
            self.breach(format!("message {number} arrived with {} octets", completion.byte_len));
        } else if !self.is_right(memory, number % u64::from(self.what.receives), number) {
            self.breach(format!("message {number} arrived with wrong octets"));
        }
    }

    fn complete(&mut self, now: Instant, completion: &WorkCompletion, mine: &Ram, theirs: &Ram) {
        let number = self.completed + self.failed;
        if number >= self.posted || completion.wr_id != number {
            self.breach(format!("work request {} completed in place of {number}", completion.wr_id));
            return;
        }
        let posted_at = self.times.pop_front();
        if completion.status != WcStatus::Success {
            self.failed += 1;
            self.count(completion.status);
            self.first_error.get_or_insert(completion.status);
            return;
        }
        if self.failed > 0 {
            self.breach(format!("message {number} succeeded behind one that failed"));
        }
        self.completed += 1;
        let slot = number % u64::from(self.what.outstanding);
        let right = match self.what.op {
            Operation::Send => self.received > number,
            Operation::Write => self.is_right(theirs, slot, number),
            Operation::Read => self.is_right(mine, slot, number),
            Operation::Atomic => octets(mine, slot * 8, 8) == number.to_ne_bytes(),
        };
        if !right {
            self.breach(match self.what.op {
                Operation::Send => format!("message {number} completed and had not arrived"),
                Operation::Atomic => format!("FETCH ADD {number} was not executed once and in order"),
                Operation::Write | Operation::Read => {
                    format!("message {number} completed with wrong octets")
                }
            });
        }
        self.last = now;
        if now >= self.measured_from {
            self.measured += 1;
            self.latency.add(now.saturating_since(posted_at.unwrap_or(now)));
        }
    }

    fn count(&mut self, status: WcStatus) {
        *self.errors.entry(status_name(status)).or_default() += 1;
    }

    fn post(&mut self, now: Instant, mine: &mut End<Ram>, theirs: &mut End<Ram>) {
        if self.what.op == Operation::Send && self.failed == 0 {
            while self.receives_due.front().is_some_and(|due| *due <= now) {
                self.receives_due.pop_front();
                self.receives_again += 1;
            }
            while self.receives_posted < u64::from(self.what.receives) + self.receives_again {
                let wr_id = self.receives_posted;
                let sges = [self.sge(wr_id % u64::from(self.what.receives))];
                if theirs.qp.post_recv(&RecvWr { wr_id, sges: &sges }).is_err() {
                    break;
                }
                self.receives_posted += 1;
            }
        }
        while !self.is_over(now) && self.times.len() < self.what.outstanding as usize {
            let number = self.posted;
            let slot = number % u64::from(self.what.outstanding);
            let at = slot * u64::from(self.what.size.max(8));
            let remote = Remote { addr: at, rkey: Rkey::new(KEY) };
            let op = match self.what.op {
                Operation::Send => SendOp::Send,
                Operation::Write => SendOp::Write { remote },
                Operation::Read => SendOp::Read { remote },
                Operation::Atomic => SendOp::FetchAdd { remote: Remote { addr: 0, ..remote }, add: 1 },
            };
            match self.what.op {
                Operation::Send | Operation::Write => self.fill(&mut mine.mem, slot, number),
                Operation::Read => self.fill(&mut theirs.mem, slot, number),
                Operation::Atomic => {}
            }
            let sges = [self.sge(slot)];
            if let Err(error) = mine.qp.post_send(&SendWr::signaled(number, op, &sges), &mine.mem) {
                // An error state that its completion did not tell yet.
                if self.first_error.is_none() && mine.qp.state() != QpState::Error {
                    self.breach(format!("message {number} was refused: {error}"));
                }
                return;
            }
            self.posted += 1;
            self.times.push_back(now);
        }
    }

    fn sge(&self, slot: u64) -> Sge {
        let addr = slot * u64::from(self.what.size.max(8));
        Sge { addr, length: self.what.size, lkey: Lkey::new(KEY) }
    }

    fn words(&self, number: u64) -> impl Iterator<Item = [u8; 8]> + use<> {
        let salt = Rng::new(self.salt ^ number.rotate_left(32)).next_u64();
        (0u64..).map(move |word| (salt ^ word.wrapping_mul(ferroce_wire::MIX_STEP)).to_le_bytes())
    }

    fn fill(&self, memory: &mut Ram, slot: u64, number: u64) {
        let at = (slot * u64::from(self.what.size.max(8))) as usize;
        let bytes = &mut memory.region(KEY).bytes[at..at + self.what.size as usize];
        for (chunk, word) in bytes.chunks_mut(8).zip(self.words(number)) {
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn is_right(&self, memory: &Ram, slot: u64, number: u64) -> bool {
        let bytes = octets(memory, slot * u64::from(self.what.size.max(8)), self.what.size as usize);
        bytes.chunks(8).zip(self.words(number)).all(|(chunk, word)| *chunk == word[..chunk.len()])
    }

    /// The first promise that was broken when the run ended.
    fn failure(&self) -> Option<String> {
        if let Some(broken) = &self.broken {
            return Some(broken.clone());
        }
        let errors = || {
            let each = self.errors.iter().map(|(status, count)| format!("{count} {status}"));
            each.collect::<Vec<_>>().join(", ")
        };
        if let Some(expected) = self.what.expect {
            return match self.first_error {
                Some(first) if first == expected => None,
                Some(_) => {
                    Some(format!("expected {}, and the completions were {}", status_name(expected), errors()))
                }
                None => Some(format!("expected {}, and no message failed", status_name(expected))),
            };
        }
        if !self.errors.is_empty() {
            return Some(format!("completions with errors: {}", errors()));
        }
        let left = self.posted - self.completed;
        match self.what.amount {
            Amount::Messages(count) if self.completed < count => {
                Some(format!("{} of {count} messages had not completed at the end", count - self.completed))
            }
            Amount::During(_) if left > 0 => {
                Some(format!("{left} of {} messages had not completed at the end", self.posted))
            }
            _ => None,
        }
    }

    /// The figures of the pair at the end of the run.
    pub fn outcome(&self, hosts: &mut Hosts<'_>) -> PairOutcome {
        let now = hosts.now();
        let [mine, theirs] = hosts.ends(self.ends).map(|end| *end.qp.counters());
        let until = if self.is_done(now) { self.last } else { now };
        let from = self.measured_from.saturating_since(Instant::ZERO);
        PairOutcome {
            posted: self.posted,
            completed: self.completed,
            errors: self.errors.clone(),
            octets: self.measured * u64::from(self.what.size),
            measured: from..until.saturating_since(Instant::ZERO).max(from),
            latency: self.latency.clone(),
            resent: mine.resent_pkts + theirs.resent_pkts,
            timeouts: mine.timeouts,
            rnr: theirs.send_rnr_err,
            cnps: mine.rcvd_cnps + theirs.rcvd_cnps,
            failure: self.failure(),
            ..PairOutcome::default()
        }
    }
}

fn octets(memory: &Ram, at: u64, len: usize) -> &[u8] {
    memory.bytes(KEY).get(at as usize..at as usize + len).unwrap_or_default()
}
