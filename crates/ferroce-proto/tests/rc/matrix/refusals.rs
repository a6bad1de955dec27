//! What the responder refuses, and what a packet makes the requester believe that its peer did not send.

use std::cell::Cell;
use std::time::Duration;

use ferroce_proto::{AsyncEventKind, MemoryError, QpAccess, QpState, SelectiveRepeat, WcStatus};
use ferroce_wire::{
    Aeth, BatchLimits, Bth, IcrcStatus, Msn, NakCode, Operation, Packet, Psn, RcPacket, Response, Sink,
    Syndrome, TxBatch,
};

use super::{MODES, OTHER, Op, Run, Seen, TARGET};
use crate::probe::{ACK, nak, rnr};
use crate::world::{Frame, QPNS, Setup, flow};

/// A reason to refuse, or a forged answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Case {
    /// No receive is posted at first, but one a millisecond later.
    ReceiveLate,
    /// That, and the first RNR NAK is lost.
    RnrNakLost,
    /// No receive is ever posted, and `rnr_retry` is 2.
    ReceiveNever,
    ReceiveShort,
    KeyUnknown,
    KeyOfOthers,
    NotPermitted,
    MemoryGone,
    /// The first packet of the message is lost, and the first sequence NAK as well.
    NakLost,
    /// A sequence NAK of the first PSN that the peer did not send.
    ForgedSequenceNak,
    ForgedRnrNak,
    ForgedInvalid,
    ForgedAccess,
    ForgedOperational,
    /// An ACK of a PSN that is not outstanding.
    ForgedOldAck,
    /// An ACK of everything, while all requests are lost.
    ForgedAck,
}

impl Case {
    pub const ALL: [Self; 16] = [
        Self::ReceiveLate,
        Self::RnrNakLost,
        Self::ReceiveNever,
        Self::ReceiveShort,
        Self::KeyUnknown,
        Self::KeyOfOthers,
        Self::NotPermitted,
        Self::MemoryGone,
        Self::NakLost,
        Self::ForgedSequenceNak,
        Self::ForgedRnrNak,
        Self::ForgedInvalid,
        Self::ForgedAccess,
        Self::ForgedOperational,
        Self::ForgedOldAck,
        Self::ForgedAck,
    ];

    fn concerns(self, op: Op) -> bool {
        match self {
            Self::ReceiveLate | Self::RnrNakLost | Self::ReceiveNever => op.takes_receive(),
            Self::ReceiveShort => matches!(op, Op::Send | Op::SendImm),
            Self::KeyUnknown | Self::NotPermitted => !matches!(op, Op::Send | Op::SendImm),
            Self::NakLost => op.is_cut() && op != Op::Read,
            // A flush reads and writes no octets of the region.
            Self::KeyOfOthers | Self::MemoryGone => !matches!(op, Op::Send | Op::SendImm | Op::Flush),
            _ => true,
        }
    }

    /// The answer that is forged, and its distance from the first PSN.
    const fn forged(self, op: Op) -> Option<(i32, Forged)> {
        let last = if op.is_cut() { 3 } else { 0 };
        match self {
            Self::ForgedSequenceNak => Some((0, Forged::Nak(NakCode::PsnSequenceError))),
            Self::ForgedRnrNak => Some((0, Forged::Rnr)),
            Self::ForgedInvalid => Some((0, Forged::Nak(NakCode::InvalidRequest))),
            Self::ForgedAccess => Some((0, Forged::Nak(NakCode::RemoteAccessError))),
            Self::ForgedOperational => Some((0, Forged::Nak(NakCode::RemoteOperationalError))),
            Self::ForgedOldAck => Some((-2, Forged::Ack)),
            Self::ForgedAck => Some((last, Forged::Ack)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Forged {
    Ack,
    Nak(NakCode),
    Rnr,
}

impl Forged {
    fn syndrome(self) -> Syndrome {
        match self {
            Self::Ack => ACK,
            Self::Nak(code) => nak(code),
            Self::Rnr => rnr(14),
        }
    }
}

/// An answer of side 1 that it did not send.
fn answer(setup: &Setup, behind: i32, syndrome: Syndrome) -> Frame {
    let psn = Psn::new(setup.psn[0].wrapping_add_signed(behind));
    let aeth = Aeth { syndrome, msn: Msn::new(0) };
    let op = Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth }));
    let head = Packet { bth: Bth::new(QPNS[0], psn), op, icrc: IcrcStatus::Checked };
    let mut buffer = vec![0; 256];
    let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 1, gso: false });
    batch.push(&flow(1), &head, 0, |_| Ok::<(), MemoryError>(())).unwrap();
    let bytes = batch.segments().next().unwrap().to_vec();
    Frame { flow: flow(1), ip_id: 0, bytes: bytes.into() }
}

fn run(op: Op, case: Case, mode: SelectiveRepeat) -> Seen {
    let mut run = Run::new(op, true, mode);
    match case {
        Case::ReceiveLate | Case::RnrNakLost => {
            (run.receives, run.receive_later) = (0, Some(Duration::from_millis(1)));
        }
        Case::ReceiveNever => (run.receives, run.setup.rnr_retry) = (0, 2),
        Case::ReceiveShort => run.receive_length = 99,
        Case::KeyUnknown => run.rkey = TARGET + 1,
        Case::KeyOfOthers => run.rkey = OTHER,
        Case::NotPermitted => run.setup.access = QpAccess::empty(),
        Case::MemoryGone => run.gone = true,
        // The requester is made to believe what is not so.
        Case::ForgedAck => run.once = false,
        _ => {}
    }
    let setup = run.setup;
    let forged = case.forged(op);
    let done = Cell::new(false);
    let lost = Cell::new(0);
    run.run(|_, to, frame| {
        let op = frame.packet().map(|packet| packet.op);
        let is_rnr = matches!(op, Some(Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth }))) if matches!(aeth.syndrome, Syndrome::RnrNak(_)));
        let is_gap = matches!(op, Some(Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth }))) if aeth.syndrome == nak(NakCode::PsnSequenceError));
        if case == Case::RnrNakLost && is_rnr && !done.replace(true) {
            return vec![];
        }
        if case == Case::NakLost && (to == 1 && lost.get() == 0 || is_gap && lost.get() == 1) {
            lost.set(lost.get() + 1);
            return vec![];
        }
        if case == Case::ForgedAck && to == 1 {
            let forged = forged.filter(|_| !done.replace(true));
            return forged
                .map(|(behind, forged)| (Duration::ZERO, 0, answer(&setup, behind, forged.syndrome())))
                .into_iter()
                .collect();
        }
        let mut all = vec![(Duration::ZERO, to, frame)];
        if let Some((behind, forged)) = forged
            && to == 1
            && !done.replace(true)
        {
            // It arrives before the responder's own answer.
            all.push((Duration::ZERO, 0, answer(&setup, behind, forged.syndrome())));
        }
        all
    })
}

/// The status that the requester gets, by the rule.
const fn rule(op: Op, case: Case) -> WcStatus {
    match case {
        Case::ReceiveLate | Case::RnrNakLost | Case::NakLost => WcStatus::Success,
        Case::ForgedSequenceNak | Case::ForgedRnrNak | Case::ForgedOldAck => WcStatus::Success,
        Case::ReceiveNever => WcStatus::RnrRetryExcErr,
        Case::ReceiveShort | Case::NotPermitted | Case::ForgedInvalid => WcStatus::RemInvReqErr,
        Case::KeyUnknown | Case::KeyOfOthers | Case::MemoryGone | Case::ForgedAccess => {
            WcStatus::RemAccessErr
        }
        Case::ForgedOperational => WcStatus::RemOpErr,
        // A READ or atomic needs its data.
        Case::ForgedAck if matches!(op, Op::Send | Op::SendImm | Op::Write | Op::WriteImm) => {
            WcStatus::Success
        }
        Case::ForgedAck => WcStatus::RetryExcErr,
    }
}

fn check(op: Op, case: Case, seen: &Seen) {
    let name = format!("{op:?} {case:?}: {seen:?}");
    assert_eq!(seen.requester, rule(op, case), "{name}");
    let requester = if seen.requester == WcStatus::Success { QpState::Rts } else { QpState::Error };
    let refused = matches!(
        case,
        Case::ReceiveShort | Case::KeyUnknown | Case::KeyOfOthers | Case::NotPermitted | Case::MemoryGone
    );
    let responder = if refused { QpState::Error } else { QpState::Rts };
    assert_eq!(seen.states, [requester, responder], "{name}");
    let blamed: Vec<_> = seen
        .received
        .iter()
        .filter(|status| !matches!(status, WcStatus::Success | WcStatus::WrFlushErr))
        .copied()
        .collect();
    match case {
        Case::ReceiveShort => {
            assert_eq!((&blamed[..], seen.event), (&[WcStatus::LocLenErr][..], None), "{name}")
        }
        Case::NotPermitted => assert_eq!(seen.event, Some(AsyncEventKind::QpReqErr), "{name}"),
        _ => assert_eq!(seen.event.is_some() || !blamed.is_empty(), refused, "{name}"),
    }
    assert!(seen.resent <= if case == Case::ForgedAck { 150 } else { 8 }, "{name}");
}

/// A case with each operation that it concerns: in both modes.
pub type Row = (Case, Vec<(Op, [Seen; 2])>);

/// All cases.
pub fn table() -> Vec<Row> {
    let row = |case: Case| {
        let ops = Op::ALL.into_iter().filter(|op| case.concerns(*op));
        let seen = ops.map(|op| {
            let seen = MODES.map(|mode| run(op, case, mode));
            seen.iter().for_each(|seen| check(op, case, seen));
            (op, seen)
        });
        (case, seen.collect())
    };
    Case::ALL.into_iter().map(row).collect()
}
