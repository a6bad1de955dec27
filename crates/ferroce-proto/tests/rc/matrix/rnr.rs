//! A receiver that is not ready, and one fault: of its RNR NAK, of the request that comes again, or of what is behind that.

use std::cell::Cell;
use std::time::Duration;

use ferroce_proto::{QpState, SelectiveRepeat, WcStatus};
use ferroce_wire::{RcPacket, Response, Syndrome};

use super::{Fault, MODES, Misfortune, Op, Run, Seen};

/// The packet that the fault meets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The RNR NAK.
    Nak,
    /// The first request packet that comes again because of it.
    Again,
    /// The WRITE behind the message, when it comes after the RNR NAK.
    Behind,
}

/// When the receive is posted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Receive {
    /// A millisecond later.
    Late,
    /// Never, and `rnr_retry` is 2.
    Never,
}

pub const PLACES: [Place; 3] = [Place::Nak, Place::Again, Place::Behind];
pub const RECEIVES: [Receive; 2] = [Receive::Late, Receive::Never];
const OPS: [Op; 3] = [Op::Send, Op::SendImm, Op::WriteImm];

/// A row: each fault, in both modes. `None` where the packet is not sent.
pub struct Row {
    pub receive: Receive,
    pub op: Op,
    pub place: Place,
    pub cells: Vec<[Option<Seen>; 2]>,
}

fn cell(receive: Receive, op: Op, place: Place, fault: Fault, mode: SelectiveRepeat) -> Option<Seen> {
    let mut run = Run::new(op, true, mode);
    run.receives = 0;
    run.follower = true;
    match receive {
        Receive::Late => run.receive_later = Some(Duration::from_millis(1)),
        Receive::Never => run.setup.rnr_retry = 2,
    }
    let misfortune = Misfortune::new(fault);
    let refused = Cell::new(false);
    // The first packet of a SEND asks for a receive, the last one of a WRITE with immediate.
    let asks = if op == Op::WriteImm { 3 } else { 0 };
    let seen = run.run(|now, to, frame| {
        misfortune.meet(&run.setup, (now, to, frame), |behind, rc| {
            let is_nak = matches!(rc, RcPacket::Response(Response::Acknowledge { aeth }) if matches!(aeth.syndrome, Syndrome::RnrNak(_)));
            let refused = refused.replace(refused.get() || is_nak);
            match place {
                Place::Nak => is_nak,
                Place::Again => refused && to == 1 && behind == asks,
                Place::Behind => refused && to == 1 && behind == 4,
            }
        })
    });
    misfortune.has_hit().then_some(seen)
}

/// The statuses that the requester gets of the operation and of the WRITE behind it, by the rule.
const fn rule(receive: Receive, place: Place, fault: Fault) -> [WcStatus; 2] {
    use WcStatus::{RetryExcErr, RnrRetryExcErr, Success, WrFlushErr};
    let never = matches!(fault, Fault::Never);
    match (receive, place) {
        // A requester that hears no RNR NAK asks again when the ACK timeout is over.
        (Receive::Late, Place::Nak) => [Success, Success],
        (Receive::Late, Place::Behind) if never => [Success, RetryExcErr],
        (_, Place::Again) | (Receive::Never, Place::Nak) if never => [RetryExcErr, WrFlushErr],
        (Receive::Late, _) => [Success, Success],
        (Receive::Never, _) => [RnrRetryExcErr, WrFlushErr],
    }
}

fn check(receive: Receive, op: Op, place: Place, fault: Fault, seen: &Seen) {
    let name = format!("{receive:?} {op:?} {place:?} {fault:?}: {seen:?}");
    let [first, behind] = rule(receive, place, fault);
    assert_eq!((seen.requester, seen.behind), (first, Some(behind)), "{name}");
    let good = behind == WcStatus::Success;
    let requester = if good { QpState::Rts } else { QpState::Error };
    // An RNR NAK is no error of the responder, which learns nothing of a requester that gives up.
    assert_eq!(seen.states, [requester, QpState::Rts], "{name}");
    assert_eq!(seen.event, None, "{name}");
    let executed = first == WcStatus::Success;
    let received = if executed { &[WcStatus::Success][..] } else { &[] };
    assert!(seen.received == received || !executed && receive == Receive::Late, "{name}");
    assert!(seen.resent <= if good { 40 } else { 200 }, "{name}");
}

/// All rows.
pub fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    for receive in RECEIVES {
        for op in OPS {
            for place in PLACES {
                let cells = Fault::ALL.into_iter().map(|fault| {
                    let seen = MODES.map(|mode| cell(receive, op, place, fault, mode));
                    assert!(
                        place == Place::Behind || seen.iter().all(Option::is_some),
                        "{receive:?} {op:?} {place:?} {fault:?}"
                    );
                    seen.iter().flatten().for_each(|seen| check(receive, op, place, fault, seen));
                    seen
                });
                rows.push(Row { receive, op, place, cells: cells.collect() });
            }
        }
    }
    rows
}
