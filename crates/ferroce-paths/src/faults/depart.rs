//! Packets on their way out.

use std::borrow::Cow;
use std::convert::Infallible;

use ferroce_fault::{Actions, Affected, Corruption, Dir, Release};
use ferroce_proto::QueuePair;
use ferroce_wire::{Flow, Instant, Packet, PushError, TxBatch};

use super::{Held, QpName};
use crate::tx_path::Transmit;
use ferroce_datapath::udp::{MAX_BATCH, SendError, Sent};

/// The outcome of a send.
type Outcome = Option<Result<Sent, SendError>>;

/// The parts of a sending queue pair that faults need.
pub struct Harm<'a> {
    pub of: &'a QpName,
    /// Packets of the queue pair that wait.
    pub held: &'a mut Held,
}

impl Harm<'_> {
    /// Sends a batch as the plan lets it pass.
    #[cold]
    pub fn send(
        &mut self,
        path: &impl Transmit,
        batch: &mut TxBatch<'_>,
        now: Instant,
        from: &QueuePair,
    ) -> Outcome {
        let Some(flow) = batch.flow().copied() else { return path.send(batch, now) };
        let judged: Vec<Actions> = batch.segments().map(|segment| self.judge(from, &flow, segment)).collect();
        if judged.iter().all(Actions::is_pass) && self.held.is_empty() {
            return path.send(batch, now);
        }
        let mut out = Out::new(path, now);
        let mut buffer = vec![0; MAX_BATCH];
        let mut copies = out.batch(&mut buffer);
        for (segment, actions) in batch.segments().zip(&judged) {
            let Self { of, held } = self;
            actions.apply(&mut Departure {
                of,
                held,
                out: &mut out,
                copies: &mut copies,
                flow: &flow,
                octets: Cow::Borrowed(segment),
                flip: None,
            });
            self.release(&mut out, &mut copies, now);
        }
        out.flush(&mut copies);
        out.outcome
    }

    /// Sends what waited long enough. Returns when there is more to do.
    pub fn send_due(&mut self, path: &impl Transmit, now: Instant) {
        if self.held.is_empty() {
            return;
        }
        let mut out = Out::new(path, now);
        let mut buffer = vec![0; MAX_BATCH];
        let mut copies = out.batch(&mut buffer);
        self.release(&mut out, &mut copies, now);
        out.flush(&mut copies);
    }

    fn judge(&self, from: &QueuePair, flow: &Flow, segment: &[u8]) -> Actions {
        let Ok(packet) = Packet::parse(segment) else { return Actions::default() };
        // A sender does not mark its own packets.
        let actions = super::judge(Dir::Tx, self.of, flow.destination, 0, &packet, segment.len());
        if actions.capture && !actions.drop {
            super::capture(Dir::Tx, from, flow, &packet, segment);
        }
        actions
    }

    fn release(&mut self, out: &mut Out<'_, impl Transmit>, copies: &mut TxBatch<'_>, now: Instant) {
        while let Some((flow, octets)) = self.held.pop(now) {
            out.push(copies, &flow, &octets, None);
        }
    }
}

/// A packet that is to leave.
struct Departure<'a, 'p, 'b, P> {
    of: &'a QpName,
    held: &'a mut Held,
    out: &'a mut Out<'p, P>,
    copies: &'a mut TxBatch<'b>,
    flow: &'a Flow,
    octets: Cow<'a, [u8]>,
    /// The octet and the bit that are wrong on the way, behind the computation of the ICRC.
    flip: Option<(u16, u8)>,
}

impl<P: Transmit> Affected for Departure<'_, '_, '_, P> {
    fn corrupt(&mut self, corruption: Corruption) -> bool {
        match (corruption.icrc_ok, self.out.path.is_pipe()) {
            (true, _) => corruption.apply(self.octets.to_mut()),
            // A pipe has no ICRC, whose check would drop the packet.
            (false, true) => return false,
            (false, false) => self.flip = Some((corruption.octet, corruption.bit)),
        }
        true
    }

    fn go_on(&mut self, release: Option<Release>) {
        match release {
            // A packet with a wrong bit does not wait: what waits gets its ICRC when it leaves.
            Some(release) if self.flip.is_none() => {
                self.held.push(release, self.of.qp, self.flow, self.octets.to_vec());
            }
            _ => self.out.push(self.copies, self.flow, &self.octets, self.flip),
        }
    }

    fn count_as_successor(&mut self) {
        self.held.passed(self.of.qp);
    }
}

/// The way by which copies leave.
struct Out<'a, P> {
    path: &'a P,
    now: Instant,
    outcome: Outcome,
}

impl<'a, P: Transmit> Out<'a, P> {
    fn new(path: &'a P, now: Instant) -> Self {
        Self { path, now, outcome: Some(Ok(Sent { sent: 0, lost: 0, reason: None })) }
    }

    fn batch<'b>(&self, buffer: &'b mut [u8]) -> TxBatch<'b> {
        let mut batch = TxBatch::new(buffer, self.path.limits());
        if self.path.is_pipe() {
            batch.leave_icrc_out();
        }
        batch
    }

    fn push(&mut self, copies: &mut TxBatch<'_>, flow: &Flow, octets: &[u8], flip: Option<(u16, u8)>) {
        let full: Result<(), PushError<Infallible>> = copies.push_copy(flow, octets, flip);
        if full == Err(PushError::Full) {
            self.flush(copies);
            let _ = copies.push_copy(flow, octets, flip);
        }
    }

    fn flush(&mut self, copies: &mut TxBatch<'_>) {
        if copies.is_empty() {
            return;
        }
        let sent = self.path.send(copies, self.now);
        if !matches!(sent, Some(Ok(_))) {
            self.outcome = sent;
        }
        copies.clear();
    }
}
