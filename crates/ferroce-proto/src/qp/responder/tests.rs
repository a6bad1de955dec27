use ferroce_wire::{AtomicEth, Lkey, PathMtu, Qpn};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::memory::nothing::Nothing;
use crate::{NoSharedQueue, QpCaps, RecvWr, Service, Sge};

fn common() -> Common {
    Common::for_test(Service::Rc, QpCaps::default())
}

/// The MSN is a counter of 24 bits (IBTA 9.7.7.1).
#[test]
fn the_msn_wraps() {
    let mut common = common();
    common.attr.access = QpAccess::REMOTE_WRITE;
    let mut responder = Responder::new();
    responder.begin(Psn::new(0xff_ffff), 0, &common);
    responder.msn = Msn::new(0xff_fffe);
    let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
    let write = Request::WriteOnly { reth, payload: &[], imm: None };
    for (psn, msn) in [(0xff_ffff, 0xff_ffff), (0, 0), (1, 1)] {
        let bth = Bth::new(Qpn::new(1), Psn::new(psn));
        let mut queues = SharedQueues { source: &mut NoSharedQueue, named: None };
        assert_eq!(
            responder.handle_request(Instant::ZERO, &mut common, &bth, &write, &mut queues, &mut Nothing),
            Ok(())
        );
        assert_eq!(responder.msn, Msn::new(msn));
    }
}

/// Half of the circle of PSNs: the most that one READ takes, and the duplicates behind the expected PSN.
const HALF: u64 = 1 << 23;
const MTU: u32 = 256;

/// A request of the peer, with the number of PSNs that it takes.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This number of WRITE packets.
    Writes(u32),
    /// A READ of this number of packets.
    Read(u32),
    Atomic,
    Flush,
}

impl Step {
    fn packets(self) -> u32 {
        match self {
            Self::Writes(packets) | Self::Read(packets) => packets,
            Self::Atomic | Self::Flush => 1,
        }
    }

    /// Whether the responder keeps it, to answer its duplicates.
    fn is_kept(self) -> bool {
        !matches!(self, Self::Writes(_))
    }
}

/// A responder, and all that it was asked for since the first PSN. Places count from there without end.
struct Story {
    responder: Responder,
    common: Common,
    start: u32,
    depth: usize,
    steps: Vec<(u64, Step)>,
    end: u64,
}

impl Story {
    fn new(start: u32, depth: u8) -> Self {
        let mut common = common();
        common.attr.path_mtu = PathMtu::B256;
        let mut responder = Responder::new();
        responder.begin(Psn::new(start), depth, &common);
        let depth = usize::from(depth).next_power_of_two();
        Self { responder, common, start, depth, steps: Vec::new(), end: 0 }
    }

    fn psn(&self, place: u64) -> Psn {
        Psn::new(self.start.wrapping_add(place as u32))
    }

    fn reth(place: u64, packets: u64) -> Reth {
        Reth { va: place * u64::from(MTU), rkey: Rkey::new(1), dma_len: packets as u32 * MTU }
    }

    /// The requests of the step arrive, and their answers leave.
    fn arrive(&mut self, step: Step) {
        let psn = self.psn(self.end);
        let responder = &mut self.responder;
        match step {
            Step::Writes(packets) => responder.advance(packets),
            Step::Read(packets) => {
                responder.accept_read(psn, &Self::reth(self.end, packets.into()), MTU);
            }
            Step::Atomic => responder.atomic_done(psn, Ok(self.end)).unwrap(),
            Step::Flush => responder.done(psn, Kind::Flush),
        }
        responder.replies.clear();
        self.steps.push((self.end, step));
        self.end += u64::from(step.packets());
        assert_eq!(responder.expected(), self.psn(self.end));
    }

    /// The newest that the responder has to keep: as many as the peer may have outstanding.
    fn kept(&self) -> impl Iterator<Item = (u64, Step)> {
        self.steps.iter().rev().filter(|(_, step)| step.is_kept()).take(self.depth).copied()
    }

    /// Checks the answer to a duplicate at `place`.
    fn repeat(&mut self, place: u64) -> Result<(), TestCaseError> {
        let Some(&(first, step)) = self.steps.iter().rev().find(|(first, _)| *first <= place) else {
            return Ok(());
        };
        let packets = u64::from(step.packets());
        let request = match step {
            Step::Writes(_) => Request::WriteOnly { reth: Self::reth(0, 0), payload: &[], imm: None },
            // The rest of it is missing.
            Step::Read(_) => Request::ReadRequest { reth: Self::reth(place, first + packets - place) },
            Step::Atomic => Request::FetchAdd {
                atomic: AtomicEth { va: 0, rkey: Rkey::new(1), swap_or_add: 1, compare: 0 },
            },
            Step::Flush => {
                Request::Flush { feth: Feth { placement: 0, selectivity: 0 }, reth: Self::reth(0, 0) }
            }
        };
        let bth = Bth::new(Qpn::new(1), self.psn(place));
        let mut queues = SharedQueues { source: &mut NoSharedQueue, named: None };
        let said = self.responder.handle_request(
            Instant::ZERO,
            &mut self.common,
            &bth,
            &request,
            &mut queues,
            &mut Nothing,
        );
        let mut answers = Vec::new();
        answers.extend(core::iter::from_fn(|| self.responder.replies.pop()));
        let is_kept = self.kept().any(|(at, _)| at == first);
        if step.is_kept() && !is_kept {
            prop_assert_eq!((said, answers.len()), (Err(DropReason::DuplicateNotFound), 0));
            return Ok(());
        }
        prop_assert_eq!(said, Err(DropReason::DuplicateRequest));
        prop_assert_eq!(answers.len(), 1, "a lost answer is replaced: {:?}", answers);
        match (step, answers[0]) {
            (Step::Writes(_), Reply::Ack { psn, .. }) => {
                // All that arrived, but not past a READ or an atomic, which an ACK does not answer.
                let next = self.kept().map(|(at, _)| at).filter(|at| *at > place).min();
                prop_assert_eq!(psn, self.psn(next.unwrap_or(self.end) - 1));
            }
            (Step::Read(_), Reply::Read(ReadReply { psn, addr, remaining, replay: true, .. })) => {
                let reth = Self::reth(place, first + packets - place);
                prop_assert_eq!((psn, addr, remaining), (bth.psn, reth.va, reth.dma_len));
            }
            (Step::Atomic, Reply::Atomic { psn, original, replay: true, .. }) => {
                prop_assert_eq!((psn, original), (bth.psn, first));
            }
            (Step::Flush, Reply::Read(ReadReply { psn, remaining: 0, replay: true, .. })) => {
                prop_assert_eq!(psn, bth.psn);
            }
            (step, answer) => prop_assert!(false, "{:?} is answered by {:?}", step, answer),
        }
        Ok(())
    }

    /// Checks duplicates everywhere that matters.
    fn repeat_all(&mut self, distances: &[u32]) -> Result<(), TestCaseError> {
        let oldest = self.end.saturating_sub(HALF);
        let mut places: Vec<u64> =
            distances.iter().map(|back| self.end.wrapping_sub(u64::from(*back))).collect();
        places.extend([self.end.wrapping_sub(1), oldest, oldest + 1]);
        for (first, step) in self.kept() {
            let behind = first + u64::from(step.packets());
            places.extend([first.wrapping_sub(1), first, behind - 1, behind]);
        }
        places.retain(|place| (oldest..self.end).contains(place));
        places.into_iter().try_for_each(|place| self.repeat(place))
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let half = HALF as u32;
    let packets = prop_oneof![1u32..100, 1..=half, half - 100..=half];
    prop_oneof![
        4 => packets.clone().prop_map(Step::Writes),
        1 => packets.prop_map(Step::Read),
        1 => Just(Step::Atomic),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 512 })
    })]

    /// IBTA 9.7.5.1.5: a duplicate is answered so that a lost answer is replaced and nothing is acknowledged
    /// that never arrived, however often the PSNs went round.
    #[test]
    fn duplicates_are_answered_on_any_round_of_the_psn(
        start in 0u32..1 << 24,
        depth in 1u8..=16,
        steps in prop::collection::vec(any_step(), 1..if cfg!(miri) { 8 } else { 60 }),
        distances in prop::collection::vec(1..=HALF as u32, 8),
    ) {
        let mut story = Story::new(start, depth);
        let once_round = [Step::Writes(HALF as u32), Step::Writes(HALF as u32)];
        for step in steps.into_iter().chain(once_round) {
            story.arrive(step);
            story.repeat_all(&distances)?;
        }
    }
}

/// A message has at most 2^31 octets, however long the receive WQE is. The number of octets of a longer one
/// would not fit into its completion.
#[test]
fn a_send_has_at_most_two_to_the_31_octets() {
    let caps = QpCaps { max_recv_wr: 1, max_recv_sge: 2, ..QpCaps::default() };
    let mut common = Common::for_test(Service::Rc, caps);
    common.attr.path_mtu = PathMtu::B256;
    let sge = Sge { addr: 0, length: u32::MAX, lkey: Lkey::new(1) };
    common.receiving.post(&RecvWr { wr_id: 1, sges: &[sge, sge] }).unwrap();
    let mut queues = SharedQueues { source: &mut NoSharedQueue, named: None };
    assert_eq!(common.receiving.take(&mut queues, 0), Taken::Wqe);
    let mut responder = Responder::new();
    let payload = &[0; MTU as usize][..];
    let middle = Request::SendMiddle { payload };
    let last = Request::SendLast { payload, tail: SendTail::None };
    for (received, fits) in [
        (MAX_MESSAGE - 2 * 256, [true, true]),
        (MAX_MESSAGE - 256, [false, true]),
        (MAX_MESSAGE - 255, [false, false]),
        (MAX_MESSAGE, [false, false]),
    ] {
        responder.message = Some(Message::Send { received });
        let checked = [middle, last].map(|request| responder.check_length(&request, &common));
        assert_eq!(checked, fits.map(|fits| if fits { Ok(()) } else { Err(TOO_LONG) }), "{received}");
    }
}
