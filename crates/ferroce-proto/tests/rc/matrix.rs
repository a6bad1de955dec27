//! The fault matrix: each operation, each packet of it, each fault. Every cell is a run whose outcome is checked, and the book's page is
//! the table of what was seen.

mod page;
mod refusals;
mod rnr;
mod scenarios;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, QpState, RecvWr, Remote, SelectiveRepeat, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};
use ferroce_wire::{
    Feth, Imm, Instant, Lkey, Operation, Packet, Psn, RcPacket, Request, Response, Rkey, Syndrome, icrc,
};

use crate::ram::{Ram, Remote as Access};
use crate::world::{ADDRESSES, Frame, Setup, World};

/// Of the requester's memory, and of where receives go.
const LOCAL: u32 = 0x11;
/// Where one-sided operations go.
const TARGET: u32 = 0x22;
/// Beside it, and nothing may be done with it.
const OTHER: u32 = 0x33;
const SIZE: usize = 8192;
/// Where the WRITE behind the operation goes.
const FOLLOWER: usize = 8000;
/// Four packets.
const LONG: u32 = 4072;
const SHORT: u32 = 100;
/// The ACK timeout: 4.096 µs times 2 to the power of 8.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 8);
const US: Duration = Duration::from_micros(1);

/// An operation of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl Op {
    const ALL: [Self; 9] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
        Self::Flush,
    ];

    fn work(self, rkey: u32) -> SendOp {
        let remote = Remote { addr: 0, rkey: Rkey::new(rkey) };
        let imm = Imm([1, 2, 3, 4]);
        match self {
            Self::Send => SendOp::Send,
            Self::SendImm => SendOp::SendImm(imm),
            Self::Write => SendOp::Write { remote },
            Self::WriteImm => SendOp::WriteImm { remote, imm },
            Self::Read => SendOp::Read { remote },
            Self::CompareSwap => SendOp::CompareSwap { remote, compare: 5, swap: 12 },
            Self::FetchAdd => SendOp::FetchAdd { remote, add: 7 },
            Self::AtomicWrite => SendOp::AtomicWrite { remote, octets: None },
            Self::Flush => {
                let feth = Feth { placement: Feth::GLOBAL_VISIBILITY, selectivity: Feth::RANGE };
                SendOp::Flush { remote, length: 8, feth }
            }
        }
    }

    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether the message is cut into packets.
    const fn is_cut(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::Write | Self::WriteImm | Self::Read)
    }

    const fn length(self, long: bool) -> u32 {
        match self {
            Self::Flush => 0,
            _ if !self.is_cut() => 8,
            _ if long => LONG,
            _ => SHORT,
        }
    }

    fn positions(self) -> &'static [Position] {
        use Position::*;
        match self {
            Self::Read => &[Request, OnlyResponse, FirstResponse, MiddleResponse, LastResponse],
            _ if self.is_cut() => &[Only, First, Middle, Last, Ack],
            _ => &[Request, OnlyResponse],
        }
    }
}

/// The packet of the message that the fault meets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Position {
    Only,
    First,
    Middle,
    Last,
    Request,
    Ack,
    OnlyResponse,
    FirstResponse,
    MiddleResponse,
    LastResponse,
}

impl Position {
    const fn is_long(self) -> bool {
        !matches!(self, Self::Only | Self::OnlyResponse)
    }

    /// Whether a packet to this end, so many PSNs behind the message's first, is the one.
    fn is(self, to: usize, behind: i32, op: &RcPacket<'_>) -> bool {
        let (end, want) = match self {
            Self::Only | Self::First | Self::Request => (1, 0),
            Self::Middle => (1, 1),
            Self::Last => (1, 3),
            Self::OnlyResponse | Self::FirstResponse => (0, 0),
            Self::MiddleResponse => (0, 1),
            Self::LastResponse => (0, 3),
            Self::Ack => {
                let ack = matches!(op, RcPacket::Response(Response::Acknowledge { aeth }) if matches!(aeth.syndrome, Syndrome::Ack { .. }));
                return to == 0 && ack;
            }
        };
        let answer = matches!(op, RcPacket::Response(Response::Acknowledge { .. }));
        to == end && behind == want && !answer
    }
}

/// The misfortune of the packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    None,
    /// It is lost the first time, or so often.
    Lost(u32),
    /// It arrives twice.
    Twice,
    /// It arrives so much later, behind all others of the message.
    Late(Duration),
    /// A bit of it changes on the way, and its ICRC does not hold.
    BadIcrc,
    /// Another PSN, far away, with an ICRC that holds.
    OtherPsn,
    /// A reserved opcode, with an ICRC that holds.
    OtherOpcode,
    /// Another key, with an ICRC that holds.
    OtherKey,
    /// Nothing at all arrives at either end for five ACK timeouts from then on.
    Outage,
    /// It never arrives.
    Never,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::None,
        Self::Lost(1),
        Self::Lost(3),
        Self::Twice,
        Self::Late(Duration::from_micros(30)),
        Self::Late(Duration::from_nanos(3 * (4096 << 8))),
        Self::BadIcrc,
        Self::OtherPsn,
        Self::OtherOpcode,
        Self::Outage,
        Self::Never,
    ];
}

/// What was seen of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    requester: WcStatus,
    states: [QpState; 2],
    /// Of the responder.
    event: Option<AsyncEventKind>,
    received: Vec<WcStatus>,
    /// Of the WRITE behind the operation, if there is one.
    behind: Option<WcStatus>,
    /// Packets sent again, and timeouts.
    resent: u64,
    timeouts: u64,
}

/// A run of one operation with one setup.
struct Run {
    op: Op,
    long: bool,
    setup: Setup,
    /// The key that the operation names.
    rkey: u32,
    /// Receives posted before, and their length.
    receives: u64,
    receive_length: u32,
    /// One more is posted after this time.
    receive_later: Option<Duration>,
    /// A WRITE of eight octets is posted behind the operation.
    follower: bool,
    /// The memory goes away before the first packet arrives.
    gone: bool,
    /// The data and counters at the end are those of exactly one execution.
    once: bool,
}

impl Run {
    fn new(op: Op, long: bool, mode: SelectiveRepeat) -> Self {
        let setup = Setup { selective_repeat: mode, timeout: 8, min_rnr_timer: 14, ..Setup::default() };
        Self {
            op,
            long,
            setup,
            rkey: TARGET,
            receives: 2,
            receive_length: LONG,
            receive_later: None,
            follower: false,
            gone: false,
            once: true,
        }
    }

    fn memories() -> [Ram; 2] {
        [0x40, 0x80].map(|salt| {
            let mut ram = Ram::default();
            let pattern = |len: usize| (0..len).map(|i| (i * 7 + (i >> 8)) as u8 ^ salt).collect::<Vec<_>>();
            ram.register(LOCAL, 0, pattern(SIZE));
            let mut target = pattern(SIZE);
            target[..8].copy_from_slice(&5u64.to_ne_bytes());
            ram.register(TARGET, 0, target);
            ram.register(OTHER, 0, pattern(SIZE)).remote = Access::NONE;
            ram
        })
    }

    /// Runs until nothing more happens.
    fn run(&self, tamper: impl FnMut(Instant, usize, Frame) -> Vec<(Duration, usize, Frame)>) -> Seen {
        let len = self.op.length(self.long);
        let before = Self::memories();
        let mut world = World::connected(&self.setup, before.clone());
        world.tamper = Some(Box::new(tamper));
        let into = [Sge { addr: 0, length: self.receive_length, lkey: Lkey::new(LOCAL) }];
        for wr_id in 0..self.receives {
            world.ends[1].qp.post_recv(&RecvWr { wr_id, sges: &into }).unwrap();
        }
        if self.gone {
            world.ends[1].mem.region(TARGET).gone = true;
        }
        let sge = [Sge { addr: 4096, length: len, lkey: Lkey::new(LOCAL) }];
        let sges = if len == 0 { &sge[..0] } else { &sge[..] };
        let end = &mut world.ends[0];
        end.qp.post_send(&SendWr::signaled(1, self.op.work(self.rkey), sges), &end.mem).unwrap();
        if self.follower {
            let remote = Remote { addr: FOLLOWER as u64, rkey: Rkey::new(TARGET) };
            let sge = [Sge { addr: 4096, length: 8, lkey: Lkey::new(LOCAL) }];
            end.qp.post_send(&SendWr::signaled(2, SendOp::Write { remote }, &sge), &end.mem).unwrap();
        }
        if let Some(later) = self.receive_later {
            world.run(later);
            world.ends[1].qp.post_recv(&RecvWr { wr_id: 7, sges: &into }).unwrap();
        }
        world.run(Duration::from_secs(10));
        assert_eq!(world.next(), None, "something goes on for ever");
        let [requester, responder] = &world.ends;
        let (sent, follower) = match &requester.sends[..] {
            [sent] if !self.follower => (sent, None),
            [sent, follower] if self.follower => (sent, Some(follower)),
            other => panic!("{other:?}"),
        };
        assert_eq!(sent.wr_id, 1);
        assert!(follower.is_none_or(|it| it.wr_id == 2));
        assert!(responder.sends.is_empty() && requester.recvs.is_empty());
        assert!(responder.asyncs.len() <= 1 && requester.asyncs.is_empty(), "{:?}", responder.asyncs);
        let counters = requester.qp.counters();
        let seen = Seen {
            requester: sent.status,
            states: [requester.qp.state(), responder.qp.state()],
            event: responder.asyncs.first().copied(),
            received: responder.recvs.iter().map(|completion| completion.status).collect(),
            behind: follower.map(|it| it.status),
            resent: counters.resent_pkts,
            timeouts: counters.timeouts,
        };
        if self.once {
            self.check_memory(
                [Some(sent), follower],
                &responder.recvs,
                &before,
                [&requester.mem, &responder.mem],
            );
        }
        seen
    }

    /// The memory of both ends is as before, but for at most one execution; exactly one if the requester was told of success.
    fn check_memory(
        &self,
        [sent, follower]: [Option<&WorkCompletion>; 2],
        recvs: &[WorkCompletion],
        before: &[Ram; 2],
        after: [&Ram; 2],
    ) {
        let Some(sent) = sent else { return };
        let len = self.op.length(self.long) as usize;
        let success = sent.status == WcStatus::Success;
        assert_eq!(sent.byte_len as usize, if success { len } else { 0 });
        let received = recvs.iter().filter(|completion| completion.status == WcStatus::Success).count();
        assert!(received <= usize::from(self.op.takes_receive()), "{recvs:?}");
        if success {
            assert_eq!(received, usize::from(self.op.takes_receive()));
        }
        for completion in recvs.iter().filter(|completion| completion.status == WcStatus::Success) {
            assert_eq!(completion.byte_len as usize, len);
            assert_eq!(completion.imm.is_some(), self.op != Op::Send);
        }
        // Each region as it is if the operation was executed.
        let mut want = before.clone();
        let data = before[0].bytes(LOCAL)[4096..4096 + len].to_vec();
        let mut executed = |end: usize, key: u32, at: usize, octets: &[u8]| {
            want[end].region(key).bytes[at..at + octets.len()].copy_from_slice(octets);
        };
        match self.op {
            Op::Send | Op::SendImm => executed(1, LOCAL, 0, &data),
            Op::Write | Op::WriteImm | Op::AtomicWrite => executed(1, TARGET, 0, &data),
            Op::Read => executed(0, LOCAL, 4096, &before[1].bytes(TARGET)[..len]),
            Op::CompareSwap | Op::FetchAdd => {
                executed(1, TARGET, 0, &12u64.to_ne_bytes());
                executed(0, LOCAL, 4096, &5u64.to_ne_bytes());
            }
            Op::Flush => assert!(after[1].flushes.len() == 1 || !success && after[1].flushes.is_empty()),
        }
        if self.follower {
            executed(1, TARGET, FOLLOWER, &data[..8]);
        }
        let all = success && follower.is_none_or(|it| it.status == WcStatus::Success);
        for end in 0..2 {
            for key in [LOCAL, TARGET, OTHER] {
                let (old, new, now) = (before[end].bytes(key), want[end].bytes(key), after[end].bytes(key));
                let whole = all || end == 1 && received == 1 && !self.follower;
                // An operation that failed may have written a part, each octet as it should be. An atomic writes all or nothing.
                let part =
                    now.iter().zip(old.iter().zip(new)).all(|(now, (old, new))| now == old || now == new);
                assert!(if whole { now == new } else { part }, "key {key:#x} of end {end}: {sent:?}");
                if self.op.is_atomic() && end == 1 {
                    assert!(now == old || now == new, "an atomic in part, or twice");
                }
            }
        }
    }
}

/// How far a packet to an end is behind the first of the message.
fn behind(frame: &Frame, packet: &Packet<'_>, setup: &Setup) -> Option<(i32, usize)> {
    let to = ADDRESSES.iter().position(|address| *address == frame.flow.destination)?;
    Some((packet.bth.psn.since(Psn::new(setup.psn[0])), to))
}

/// Changes the packet and seals it again.
fn changed(frame: &Frame, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut bytes = frame.bytes.to_vec();
    change(&mut bytes);
    icrc::seal(&frame.flow, frame.ip_id, &mut bytes);
    Frame { bytes: bytes.into(), ..frame.clone() }
}

/// Offset of the key behind the BTH: the RETH and the AtomicETH begin alike. A FETH of four octets precedes that of a flush.
fn key_offset(op: &RcPacket<'_>) -> Option<usize> {
    let RcPacket::Request(request) = op else { return None };
    match request {
        Request::WriteFirst { .. }
        | Request::WriteOnly { .. }
        | Request::ReadRequest { .. }
        | Request::CompareSwap { .. }
        | Request::FetchAdd { .. }
        | Request::AtomicWrite { .. } => Some(12 + 8),
        Request::Flush { .. } => Some(12 + 4 + 8),
        _ => None,
    }
}

/// A fault on its way to its packet.
struct Misfortune {
    fault: Fault,
    hits: Cell<u32>,
    dark_until: Cell<Option<Instant>>,
}

impl Misfortune {
    const fn new(fault: Fault) -> Self {
        Self { fault, hits: Cell::new(0), dark_until: Cell::new(None) }
    }

    /// Whether the fault met its packet.
    const fn has_hit(&self) -> bool {
        self.hits.get() > 0
    }

    /// What becomes of a frame. `is_it` recognizes the packet that the fault meets by its distance from the message's first PSN.
    fn meet(
        &self,
        setup: &Setup,
        (now, to, frame): (Instant, usize, Frame),
        is_it: impl FnOnce(i32, &RcPacket<'_>) -> bool,
    ) -> Vec<(Duration, usize, Frame)> {
        let pass = |frame| vec![(Duration::ZERO, to, frame)];
        if self.dark_until.get().is_some_and(|until| now < until) {
            return vec![];
        }
        let Some(packet) = frame.packet() else { return pass(frame) };
        let (Operation::Rc(rc), Some((behind, _))) = (packet.op, behind(&frame, &packet, setup)) else {
            return pass(frame);
        };
        if !is_it(behind, &rc) {
            return pass(frame);
        }
        let often = match self.fault {
            Fault::Lost(times) => times,
            Fault::Never => u32::MAX,
            _ => 1,
        };
        if self.hits.get() >= often {
            return pass(frame);
        }
        if self.fault == Fault::OtherKey && key_offset(&rc).is_none() {
            return pass(frame);
        }
        self.hits.set(self.hits.get() + 1);
        match self.fault {
            Fault::None => pass(frame),
            Fault::Lost(_) | Fault::Never => vec![],
            Fault::Twice => vec![(Duration::ZERO, to, frame.clone()), (US, to, frame)],
            Fault::Late(later) => vec![(later, to, frame)],
            Fault::BadIcrc => {
                let mut bytes = frame.bytes.to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                pass(Frame { bytes: bytes.into(), ..frame })
            }
            Fault::OtherPsn => pass(changed(&frame, |bytes| bytes[9] ^= 0x40)),
            Fault::OtherOpcode => pass(changed(&frame, |bytes| bytes[0] = 0x1f)),
            Fault::OtherKey => {
                let at = key_offset(&rc).unwrap_or_default();
                pass(changed(&frame, |bytes| bytes[at] ^= 0x40))
            }
            Fault::Outage => {
                self.dark_until.set(Some(now + TIMEOUT * 5));
                vec![]
            }
        }
    }
}

/// Runs one cell. `None` if the fault never met its packet.
fn cell(op: Op, position: Position, fault: Fault, mode: SelectiveRepeat) -> Option<Seen> {
    let run = Run::new(op, position.is_long(), mode);
    let misfortune = Misfortune::new(fault);
    let seen = run.run(|now, to, frame| {
        misfortune.meet(&run.setup, (now, to, frame), |behind, rc| position.is(to, behind, rc))
    });
    misfortune.has_hit().then_some(seen)
}

/// Checks a cell against the rule of its fault.
fn check(op: Op, position: Position, fault: Fault, seen: &Seen) {
    let name = format!("{op:?} {position:?} {fault:?}: {seen:?}");
    let (status, most) = match fault {
        Fault::None => (WcStatus::Success, 0),
        Fault::Never => (WcStatus::RetryExcErr, 150),
        Fault::Outage => (WcStatus::Success, 30),
        Fault::Lost(3) => (WcStatus::Success, 15),
        Fault::OtherKey => (WcStatus::RemAccessErr, 0),
        _ => (WcStatus::Success, 8),
    };
    assert_eq!(seen.requester, status, "{name}");
    assert!(seen.resent <= most, "{name}");
    match status {
        WcStatus::Success => {
            assert_eq!(seen.states, [QpState::Rts; 2], "{name}");
            assert_eq!(seen.event, None, "{name}");
        }
        WcStatus::RetryExcErr => {
            // The other end does not learn of it.
            assert_eq!(seen.states, [QpState::Error, QpState::Rts], "{name}");
            assert_eq!(seen.event, None, "{name}");
            assert_eq!(seen.timeouts, 8, "{name}");
            let executed = op.takes_receive() && matches!(position, Position::Ack);
            assert_eq!(seen.received.len(), usize::from(executed), "{name}");
        }
        _ => {
            assert_eq!(seen.states, [QpState::Error; 2], "{name}");
            let tells = [seen.event.is_some(), seen.received.iter().any(|it| *it != WcStatus::WrFlushErr)];
            assert!(tells == [true, false] || tells == [false, true], "one of both: {name}");
        }
    }
}

const MODES: [SelectiveRepeat; 2] = [SelectiveRepeat::Off, SelectiveRepeat::Agreed];

/// Each cell, by operation, position and fault: in both modes.
type Table = BTreeMap<(Op, Position, Fault), [Option<Seen>; 2]>;

fn table() -> Table {
    let mut table = Table::new();
    for op in Op::ALL {
        for position in op.positions() {
            for fault in Fault::ALL.into_iter().chain([Fault::OtherKey]) {
                let seen = MODES.map(|mode| cell(op, *position, fault, mode));
                assert!(
                    fault == Fault::OtherKey || seen.iter().all(Option::is_some),
                    "{op:?} {position:?} {fault:?}"
                );
                for seen in seen.iter().flatten() {
                    check(op, *position, fault, seen);
                }
                table.insert((op, *position, fault), seen);
            }
        }
    }
    table
}

/// All cells hold, and the book's page says the same.
#[test]
fn fault_matrix() {
    let table = table();
    let text = page::text(&table, &rnr::table(), &refusals::table());
    page::compare(&text);
}
