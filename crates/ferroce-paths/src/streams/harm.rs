//! Faults on the way from a queue pair to its TCP connection: a plan judges each FPDU.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::IpAddr;

use ferroce_fault::{Actions, Affected, Corruption, Release};
use ferroce_wire::Instant;
use ferroce_wire::iwarp::{CRC_LEN, LENGTH_LEN, Opcode, SegmentHeader, pad};

use super::StreamSocket;
use crate::faults::{self, QpName, Segment};

/// Octets of a queue pair that wait by a plan of faults, and what the plan has seen of the stream.
pub struct StreamHarm {
    name: QpName,
    /// Known once the first FPDU was judged.
    peer: Option<IpAddr>,
    /// With markers an FPDU is not told from its neighbours by its length alone, so no rule applies.
    markers: bool,
    steps: VecDeque<Step>,
    /// The plan by which they wait.
    generation: u32,
    /// The process ends: nothing waits any more.
    hurries: bool,
    requests: Progress,
    responses: Progress,
}

/// The next step on the way to TCP.
pub enum Step {
    /// The octets that leave.
    Send(Vec<u8>),
    /// Nothing leaves before this time.
    Wait(Instant),
    /// The connection breaks.
    Cut,
}

/// How far the requests, or the responses, of this end have come.
#[derive(Default)]
struct Progress {
    /// FPDUs so far.
    count: u32,
    /// The last one did not end its message.
    within: bool,
}

impl StreamHarm {
    /// `markers`: this end puts markers into what it sends.
    pub fn new(name: QpName, markers: bool) -> Self {
        Self {
            name,
            peer: None,
            markers,
            steps: VecDeque::new(),
            generation: faults::generation(),
            hurries: false,
            requests: Progress::default(),
            responses: Progress::default(),
        }
    }

    /// Whether the octets that the queue pair writes are to be judged.
    pub fn judges(&self) -> bool {
        faults::on() && !self.markers
    }

    /// Judges whole FPDUs that are to leave by this connection. What becomes of them follows by
    /// [`Self::next`].
    #[cold]
    pub fn judge(&mut self, mut octets: &[u8], socket: &StreamSocket) {
        let peer = *self.peer.get_or_insert_with(|| socket.peer());
        if self.steps.is_empty() {
            self.generation = faults::generation();
        }
        while let Some((fpdu, rest)) = split(octets) {
            octets = rest;
            let actions = self.actions(fpdu, peer);
            actions.apply(&mut Fpdu { steps: &mut self.steps, octets: Cow::Borrowed(fpdu) });
            if actions.drop {
                return;
            }
        }
        push(&mut self.steps, octets);
    }

    fn actions(&mut self, fpdu: &[u8], peer: IpAddr) -> Actions {
        let Ok(header) = SegmentHeader::parse(fpdu.get(LENGTH_LEN..).unwrap_or_default()) else {
            return Actions::default();
        };
        let progress = match header.opcode() {
            Opcode::ReadResponse | Opcode::AtomicResponse => &mut self.responses,
            _ => &mut self.requests,
        };
        let (number, begins) = (progress.count, !progress.within);
        progress.count = progress.count.wrapping_add(1);
        progress.within = !header.is_last();
        let ulpdu = ulpdu_of(fpdu);
        let payload = ulpdu.saturating_sub(header.len());
        let segment =
            Segment { header, begins, number, payload: payload as u32, wire_len: fpdu.len() as u32 };
        faults::judge_segment(&self.name, peer, &segment)
    }

    /// Takes the next step; a time that is not over yet stays the next one. All of them are over once the
    /// plan has changed.
    pub fn next(&mut self, now: Instant) -> Option<Step> {
        // Without steps, as always without a plan, no more is read.
        self.steps.front()?;
        let over = self.hurries || self.generation != faults::generation();
        loop {
            match self.steps.front() {
                Some(Step::Wait(at)) if !over && *at > now => return Some(Step::Wait(*at)),
                Some(Step::Wait(_)) => drop(self.steps.pop_front()),
                _ => return self.steps.pop_front(),
            }
        }
    }

    /// The process ends: what waits leaves now.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// The connection is broken.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Takes the octets that still wait, up to a place at which the connection breaks.
    pub fn rest(&mut self) -> Vec<u8> {
        let steps = std::mem::take(&mut self.steps).into_iter();
        let mut rest = Vec::new();
        for step in steps.take_while(|step| !matches!(step, Step::Cut)) {
            if let Step::Send(octets) = step {
                rest.extend(octets);
            }
        }
        rest
    }
}

/// Adds octets that leave as they are.
fn push(steps: &mut VecDeque<Step>, octets: &[u8]) {
    match steps.back_mut() {
        _ if octets.is_empty() => {}
        Some(Step::Send(before)) => before.extend_from_slice(octets),
        _ => steps.push_back(Step::Send(octets.to_vec())),
    }
}

/// An FPDU that is to leave behind these steps.
struct Fpdu<'a> {
    steps: &'a mut VecDeque<Step>,
    octets: Cow<'a, [u8]>,
}

impl Affected for Fpdu<'_> {
    /// The connection breaks in the middle of the FPDU.
    fn lose(&mut self) {
        push(self.steps, self.octets.get(..self.octets.len() / 2).unwrap_or_default());
        self.steps.push_back(Step::Cut);
    }

    fn corrupt(&mut self, corruption: Corruption) -> bool {
        corruption.apply(self.octets.to_mut());
        true
    }

    fn go_on(&mut self, release: Option<Release>) {
        if let Some(release) = release {
            self.steps.push_back(Step::Wait(release.at));
        }
        push(self.steps, &self.octets);
    }
}

/// The length field of an FPDU: the octets of its ULPDU.
fn ulpdu_of(octets: &[u8]) -> usize {
    match octets {
        [high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    }
}

/// The first FPDU, and what follows it.
fn split(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let ulpdu = ulpdu_of(octets);
    let len = LENGTH_LEN + ulpdu + pad(ulpdu) + CRC_LEN;
    octets.split_at_checked(len).filter(|_| ulpdu > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An FPDU with so much payload, whose CRC nobody looks at here.
    fn fpdu(opcode: Opcode, payload: usize) -> Vec<u8> {
        let header = SegmentHeader::untagged(opcode, 1);
        let ulpdu = header.len() + payload;
        let mut octets = (ulpdu as u16).to_be_bytes().to_vec();
        octets.extend(&header.emit()[..header.len()]);
        octets.resize(LENGTH_LEN + ulpdu + pad(ulpdu) + CRC_LEN, 7);
        octets
    }

    #[test]
    fn fpdus_are_told_apart() {
        let (first, second) = (fpdu(Opcode::Send, 5), fpdu(Opcode::ReadRequest, 28));
        let both = [&first[..], &second[..]].concat();
        let (front, back) = split(&both).unwrap();
        assert_eq!((front, back), (&first[..], &second[..]));
        assert_eq!(split(back), Some((&second[..], &[][..])));
        assert!(
            split(&first[..first.len() - 1]).is_none() && split(&[]).is_none() && split(&[0; 8]).is_none()
        );
    }

    #[test]
    fn what_waits_leaves_in_order_and_nothing_behind_a_cut() {
        let name = QpName { qp: 0, dev: "iw0".into() };
        let mut harm = StreamHarm::new(name, false);
        let at = Instant::from_nanos(500);
        push(&mut harm.steps, b"ab");
        harm.steps.push_back(Step::Wait(at));
        push(&mut harm.steps, b"cd");
        push(&mut harm.steps, b"ef");
        harm.steps.push_back(Step::Cut);
        push(&mut harm.steps, b"gh");
        let now = Instant::from_nanos(400);
        assert!(matches!(harm.next(now), Some(Step::Send(octets)) if octets == b"ab"));
        assert!(matches!(harm.next(now), Some(Step::Wait(until)) if until == at));
        assert!(matches!(harm.next(at), Some(Step::Send(octets)) if octets == b"cdef"));
        push(&mut harm.steps, b"ij");
        harm.steps.push_front(Step::Wait(at));
        harm.hurry();
        assert!(matches!(harm.next(now), Some(Step::Cut)), "nothing waits at the end of the process");
        harm.steps.push_front(Step::Cut);
        harm.steps.push_front(Step::Send(b"kl".to_vec()));
        assert_eq!(harm.rest(), b"kl");
        assert!(harm.next(at).is_none());
    }
}
