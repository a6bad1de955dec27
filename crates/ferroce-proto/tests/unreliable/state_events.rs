//! Every state and every event of UC and UD queue pairs, as text that was looked at.

use std::fmt::Write;

use ferroce_proto::{QpState, RecvWr, SendOp, Service};
use ferroce_wire::{Lkey, Qkey, Request};

use crate::probe::{DATA, Probe, UC, UD, local, reth, send_only, write_only};
use crate::snapshot;
use crate::world::{QKEY, Setup};

const STATES: [(&str, QpState); 7] = [
    ("RESET", QpState::Reset),
    ("INIT", QpState::Init),
    ("RTR", QpState::Rtr),
    ("RTS", QpState::Rts),
    ("SQD", QpState::Sqd),
    ("SQE", QpState::Sqe),
    ("ERROR", QpState::Error),
];

/// A queue pair in a state, with a receive posted where that is possible.
fn prepare(setup: Setup, state: QpState) -> Probe {
    let via = if matches!(state, QpState::Error | QpState::Sqe) { QpState::Rts } else { state };
    let mut probe = Probe::in_state(setup, via);
    if state != QpState::Reset {
        probe.post_recv(11, &[local(0, 2000)]);
    }
    match state {
        QpState::Sqe => {
            probe.post(1, SendOp::Send, &[ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..local(0, 4) }]);
            probe.out();
        }
        QpState::Error => probe.modify(state, ferroce_proto::QpAttrMask::empty()).unwrap(),
        _ => {}
    }
    assert_eq!(probe.end.qp.state(), state);
    probe.sends();
    probe.recvs();
    probe
}

fn result(result: Result<(), impl std::fmt::Display>) -> String {
    result.map_or_else(|error| format!("{error}"), |()| "ok".into())
}

fn post(probe: &mut Probe, op: SendOp, bad: bool) -> String {
    let sge = local(0, 4);
    let sges = [if bad { ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..sge } } else { sge }];
    let wr = probe.wr(3, op, &sges);
    result(probe.end.qp.post_send(&wr, &probe.end.mem))
}

type Event = (&'static str, fn(&mut Probe) -> String);

fn to(probe: &mut Probe, state: QpState) -> String {
    result(probe.modify(state, probe.setup.mask(state)))
}

const COMMON: &[Event] = &[
    ("modify RESET", |probe| to(probe, QpState::Reset)),
    ("modify INIT", |probe| to(probe, QpState::Init)),
    ("modify RTR", |probe| to(probe, QpState::Rtr)),
    ("modify RTS from RTR", |probe| to(probe, QpState::Rts)),
    ("modify RTS", |probe| result(probe.modify(QpState::Rts, ferroce_proto::QpAttrMask::empty()))),
    ("modify SQD", |probe| {
        result(probe.modify(QpState::Sqd, ferroce_proto::QpAttrMask::EN_SQD_ASYNC_NOTIFY))
    }),
    ("modify SQE", |probe| to(probe, QpState::Sqe)),
    ("modify ERROR", |probe| to(probe, QpState::Error)),
    ("post_send", |probe| post(probe, SendOp::Send, false)),
    ("post_send of a bad key", |probe| post(probe, SendOp::Send, true)),
    ("post_send of a write", |probe| post(probe, SendOp::Write { remote: crate::probe::remote(0) }, false)),
    ("post_send of a read", |probe| post(probe, SendOp::Read { remote: crate::probe::remote(0) }, false)),
    ("post_recv", |probe| result(probe.end.qp.post_recv(&RecvWr { wr_id: 12, sges: &[] }))),
    ("set_fatal", |probe| {
        probe.end.qp.set_fatal();
        String::new()
    }),
];

const OF_UC: &[Event] = &[
    ("send", |probe| result(probe.request(0, send_only(&DATA[..4])))),
    ("send ahead", |probe| result(probe.request(5, send_only(&DATA[..4])))),
    ("send too long", |probe| {
        result(probe.request(0, Request::SendFirst { payload: &DATA[..1024] }))
            + "; "
            + &result(probe.request(1, Request::SendMiddle { payload: &DATA[..1024] }))
    }),
    ("send without receive", |probe| {
        result(probe.request(0, send_only(&[]))) + "; " + &result(probe.request(1, send_only(&[])))
    }),
    ("write", |probe| result(probe.request(0, write_only(reth(0, 4), &DATA[..4])))),
    ("write out of range", |probe| result(probe.request(0, write_only(reth(1 << 20, 4), &DATA[..4])))),
    ("middle of nothing", |probe| result(probe.request(0, Request::SendMiddle { payload: &[] }))),
    ("datagram", |probe| result(probe.datagram(QKEY, &[], None))),
];

const OF_UD: &[Event] = &[
    ("datagram", |probe| result(probe.datagram(QKEY, &DATA[..4], None))),
    ("datagram with a wrong key", |probe| result(probe.datagram(Qkey::new(1), &[], None))),
    ("datagram too long", |probe| result(probe.datagram(QKEY, &DATA[..1961], None))),
    ("datagram without receive", |probe| {
        result(probe.datagram(QKEY, &[], None)) + "; " + &result(probe.datagram(QKEY, &[], None))
    }),
    ("send of UC", |probe| result(probe.request(0, send_only(&[])))),
];

fn every_state_and_event(setup: Setup, name: &str) {
    let own = if setup.service == Service::Ud { OF_UD } else { OF_UC };
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{}", line.trim_end()).unwrap();
    line("What an event does to a queue pair: its result, the state after it if that changed, then what it sends,".into());
    line("completes and reports. No answer is ever sent.".into());
    for (name, state) in STATES {
        line(format!("\n{name}"));
        for (event, act) in COMMON.iter().chain(own) {
            let mut probe = prepare(setup, state);
            let mut said = act(&mut probe);
            let sent = probe.out();
            let after = probe.end.qp.state();
            if after != state {
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
            line(format!("  {event:<26} {said}"));
        }
    }
    snapshot::check(name, &text);
}

#[test]
fn every_state_and_event_of_uc() {
    every_state_and_event(UC, "uc_state_events.txt");
}

#[test]
fn every_state_and_event_of_ud() {
    every_state_and_event(UD, "ud_state_events.txt");
}
