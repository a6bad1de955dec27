//! Packets on their way out.

use std::convert::Infallible;

use ferroce_fault::{Actions, Dir};
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
    pub fn send(&mut self, path: &impl Transmit, batch: &mut TxBatch<'_>, now: Instant) -> Outcome {
        let Some(flow) = batch.flow().copied() else { return path.send(batch, now) };
        let judged: Vec<Actions> = batch.segments().map(|segment| self.judge(&flow, segment)).collect();
        if judged.iter().all(Actions::is_pass) && self.held.is_empty() {
            return path.send(batch, now);
        }
        let mut out = Out::new(path, now);
        let mut buffer = vec![0; MAX_BATCH];
        let mut copies = out.batch(&mut buffer);
        for (segment, actions) in batch.segments().zip(&judged) {
            self.pass(&mut out, &mut copies, &flow, segment, actions);
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

    fn judge(&self, flow: &Flow, segment: &[u8]) -> Actions {
        match Packet::parse(segment) {
            // A sender does not mark its own packets.
            Ok(packet) => super::judge(Dir::Tx, self.of, flow.destination, 0, &packet, segment.len()),
            Err(_) => Actions::default(),
        }
    }

    fn release(&mut self, out: &mut Out<'_, impl Transmit>, copies: &mut TxBatch<'_>, now: Instant) {
        while let Some((flow, octets)) = self.held.pop(now) {
            out.push(copies, &flow, &octets, None);
        }
    }

    fn pass(
        &mut self,
        out: &mut Out<'_, impl Transmit>,
        copies: &mut TxBatch<'_>,
        flow: &Flow,
        segment: &[u8],
        actions: &Actions,
    ) {
        if actions.drop {
            return;
        }
        let (mut changed, mut flip) = (None, None);
        if let Some(corruption) = actions.corrupt {
            match (corruption.icrc_ok, out.path.is_pipe()) {
                (true, _) => corruption.apply(changed.get_or_insert(segment.to_vec())),
                // A pipe has no ICRC, whose check would drop the packet.
                (false, true) => return,
                (false, false) => flip = Some((corruption.octet, corruption.bit)),
            }
        }
        let octets = changed.as_deref().unwrap_or(segment);
        for _ in 0..=u8::from(actions.duplicate) {
            match actions.release {
                // A packet with a wrong bit does not wait: what waits gets its ICRC when it leaves.
                Some(release) if flip.is_none() => {
                    self.held.push(release, self.of.qp, flow, octets.to_vec());
                }
                _ => out.push(copies, flow, octets, flip),
            }
        }
        if actions.release.is_none() {
            self.held.passed(self.of.qp);
        }
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
