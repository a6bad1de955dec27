//! Every state and every event of the queue pair's state machine, as text that was looked at.

use std::fmt::Write;
use std::time::Duration;

use ferroce_proto::{QpAttr, QpAttrMask, QpState, RecvWr, SendOp, SendWr};
use ferroce_wire::{NakCode, Request, Response};

use crate::probe::{ACK, DATA, Probe, aeth, local, nak, remote, reth, rnr, send_only, write_only};
use crate::snapshot;
use crate::world::Setup;

/// The states, RTS and SQD also with something outstanding.
const STATES: [(&str, QpState, bool); 8] = [
    ("RESET", QpState::Reset, false),
    ("INIT", QpState::Init, false),
    ("RTR", QpState::Rtr, false),
    ("RTS", QpState::Rts, false),
    ("RTS, a send and a read out", QpState::Rts, true),
    ("SQD", QpState::Sqd, false),
    ("SQD, draining a send and a read", QpState::Sqd, true),
    ("ERROR", QpState::Error, false),
];

/// A queue pair in a state, with a receive posted where that is possible.
fn prepare(state: QpState, busy: bool) -> Probe {
    let setup = Setup { early_resends: false, retry_cnt: 0, rnr_retry: 0, ..Setup::default() };
    let via = if state == QpState::Error || busy { QpState::Rts } else { state };
    let mut probe = Probe::in_state(setup, via);
    if state != QpState::Reset {
        probe.post_recv(11, &[local(0, 2000)]);
    }
    if busy {
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
        probe.out();
        if state == QpState::Sqd {
            let attr = QpAttr { state, en_sqd_async_notify: true, ..setup.attr(0) };
            probe.modify(attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY);
        }
    }
    if state == QpState::Error {
        probe.to(state);
        probe.recvs();
    }
    probe.end.recvs.clear();
    probe
}

fn modify(probe: &mut Probe, state: QpState, mask: QpAttrMask) -> String {
    let attr = QpAttr { state, ..probe.setup.attr(0) };
    match probe.end.qp.modify(&attr, mask | QpAttrMask::STATE) {
        Ok(()) => "ok".into(),
        Err(error) => format!("{error}"),
    }
}

fn result(result: Result<(), impl std::fmt::Display>) -> String {
    result.map_or_else(|error| format!("{error}"), |()| "ok".into())
}

type Event = (&'static str, fn(&mut Probe) -> String);

const EVENTS: &[Event] = &[
    ("modify RESET", |probe| modify(probe, QpState::Reset, QpAttrMask::empty())),
    ("modify INIT", |probe| {
        use QpAttrMask as M;
        modify(probe, QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS)
    }),
    ("modify RTR", |probe| {
        use QpAttrMask as M;
        let mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        modify(probe, QpState::Rtr, mask)
    }),
    ("modify RTS from RTR", |probe| {
        use QpAttrMask as M;
        modify(
            probe,
            QpState::Rts,
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
        )
    }),
    ("modify RTS", |probe| modify(probe, QpState::Rts, QpAttrMask::empty())),
    ("modify SQD", |probe| modify(probe, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY)),
    ("modify SQE", |probe| modify(probe, QpState::Sqe, QpAttrMask::empty())),
    ("modify ERROR", |probe| modify(probe, QpState::Error, QpAttrMask::empty())),
    ("post_send", |probe| {
        let wr = SendWr::signaled(3, SendOp::Send, &[]);
        result(probe.end.qp.post_send(&wr, &probe.end.mem))
    }),
    ("post_send of a bad key", |probe| {
        let bad = ferroce_proto::Sge { lkey: ferroce_wire::Lkey::new(0xbad), ..local(0, 4) };
        let sges = [bad];
        let wr = SendWr::signaled(3, SendOp::Send, &sges);
        result(probe.end.qp.post_send(&wr, &probe.end.mem))
    }),
    ("post_recv", |probe| result(probe.end.qp.post_recv(&RecvWr { wr_id: 12, sges: &[] }))),
    ("request: send", |probe| result(probe.request(0, send_only(&DATA[..4])))),
    ("request: send too long", |probe| {
        result(probe.request(0, Request::SendFirst { payload: &DATA[..1024] })).to_string()
            + "; "
            + &result(probe.request(1, Request::SendMiddle { payload: &DATA[..1024] }))
    }),
    ("request: send without receive", |probe| {
        result(probe.request(0, send_only(&[]))) + "; " + &result(probe.request(1, send_only(&[])))
    }),
    ("request: write", |probe| result(probe.request(0, write_only(reth(0, 4), &DATA[..4])))),
    ("request: write out of range", |probe| {
        result(probe.request(0, write_only(reth(1 << 20, 4), &DATA[..4])))
    }),
    ("request: read", |probe| result(probe.request(0, Request::ReadRequest { reth: reth(0, 4) }))),
    ("request: middle of nothing", |probe| result(probe.request(0, Request::SendMiddle { payload: &[] }))),
    ("request: ahead", |probe| result(probe.request(1, send_only(&[])))),
    ("request: behind", |probe| result(probe.request(0xff_ffff, send_only(&[])))),
    ("response: ack of the send", |probe| result(probe.ack(0, ACK))),
    ("response: ack of nothing", |probe| result(probe.ack(2, ACK))),
    ("response: all answers", |probe| {
        let answer = Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..4] };
        result(probe.ack(0, ACK)) + "; " + &result(probe.response(1, answer))
    }),
    ("response: bad answer", |probe| {
        result(probe.response(0, Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..4] }))
    }),
    ("response: sequence NAK", |probe| result(probe.ack(0, nak(NakCode::PsnSequenceError)))),
    ("response: access NAK", |probe| result(probe.ack(1, nak(NakCode::RemoteAccessError)))),
    ("response: RNR NAK", |probe| result(probe.ack(0, rnr(12)))),
    ("silence", |probe| {
        let sent = probe.wait(Duration::from_secs(10));
        sent.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
    }),
    ("set_fatal", |probe| {
        probe.end.qp.set_fatal();
        String::new()
    }),
];

#[test]
fn every_state_and_event() {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{}", line.trim_end()).unwrap();
    line("What an event does to a queue pair: its result, the state after it if that changed, then what it sends,".into());
    line("completes and reports. retry_cnt and rnr_retry are 0.".into());
    for (name, state, busy) in STATES {
        line(format!("\n{name}"));
        for (event, act) in EVENTS {
            let mut probe = prepare(state, busy);
            let before = probe.end.qp.state();
            let mut said = act(&mut probe);
            let sent = probe.out();
            let after = probe.end.qp.state();
            if after != before {
                write!(said, " -> {after:?}").unwrap();
            }
            for packet in sent {
                write!(said, " | {packet}").unwrap();
            }
            for (id, status) in probe.sends() {
                write!(said, " | send {id} {status:?}").unwrap();
            }
            for (id, status) in probe.recvs() {
                write!(said, " | recv {id} {status:?}").unwrap();
            }
            for asynchronous in probe.asyncs() {
                write!(said, " | {asynchronous:?}").unwrap();
            }
            line(format!("  {event:<31} {said}"));
        }
    }
    snapshot::check("state_events.txt", &text);
}
