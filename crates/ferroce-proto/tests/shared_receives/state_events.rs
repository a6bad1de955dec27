//! Every state and every event of XRC's two halves, as text that was looked at.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use ferroce_proto::{QpAttrMask, QpState, RecvWr, SendOp, SendTo, Service};
use ferroce_wire::{Aeth, CreditCode, Msn, NakCode, Request, Response, SendTail, SrqNumber, Syndrome};

use crate::probe::{DATA, HOME, Probe, Xrcd, attr, mask, reth};
use crate::xrc::{initiator_in, target_in};

const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Error];

type Event = (&'static str, fn(&mut Probe, Service) -> Result<(), String>);

fn modify(probe: &mut Probe, service: Service, state: QpState) -> Result<(), String> {
    let mask = if matches!(state, QpState::Init | QpState::Rtr | QpState::Rts) {
        mask(service, state)
    } else {
        QpAttrMask::STATE
    };
    probe.qp.modify(&attr(state), mask).map_err(|error| error.to_string())
}

fn request(probe: &mut Probe, srq: u32, request: Request<'_>) -> Result<(), String> {
    probe.request(0, Some(srq), request).map_err(|reason| reason.to_string())
}

fn answer(probe: &mut Probe, psn: u32, syndrome: Syndrome) -> Result<(), String> {
    let aeth = Aeth { syndrome, msn: Msn::new(1) };
    probe.response(psn, Response::Acknowledge { aeth }).map_err(|reason| reason.to_string())
}

fn send(payload: &[u8]) -> Request<'_> {
    Request::SendOnly { payload, tail: SendTail::None }
}

const EVENTS: &[Event] = &[
    ("modify RESET", |probe, service| modify(probe, service, QpState::Reset)),
    ("modify INIT", |probe, service| modify(probe, service, QpState::Init)),
    ("modify RTR", |probe, service| modify(probe, service, QpState::Rtr)),
    ("modify RTS", |probe, service| modify(probe, service, QpState::Rts)),
    ("modify SQD", |probe, service| modify(probe, service, QpState::Sqd)),
    ("modify ERROR", |probe, service| modify(probe, service, QpState::Error)),
    ("post_send", |probe, _| probe.post(1, SendOp::Send, SendTo::XrcSrq(SrqNumber::new(5)), 4)),
    ("post_send to no queue", |probe, _| probe.post(1, SendOp::Send, SendTo::Peer, 4)),
    ("post_recv", |probe, _| {
        probe.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).map_err(|error| error.to_string())
    }),
    ("request: send", |probe, _| request(probe, 5, send(&DATA[..4]))),
    ("request: send, begun", |probe, _| request(probe, 5, Request::SendFirst { payload: &DATA[..1024] })),
    ("request: send to an empty queue", |probe, _| request(probe, 6, send(&DATA[..4]))),
    ("request: send to no queue", |probe, _| request(probe, 7, send(&DATA[..4]))),
    ("request: write", |probe, _| {
        request(probe, 5, Request::WriteOnly { reth: reth(0, 4), payload: &DATA[..4], imm: None })
    }),
    ("request: write of a bad key", |probe, _| {
        let reth = ferroce_wire::Reth { rkey: ferroce_wire::Rkey::new(0xbad), ..reth(0, 4) };
        request(probe, 5, Request::WriteOnly { reth, payload: &DATA[..4], imm: None })
    }),
    ("request: read", |probe, _| request(probe, 5, Request::ReadRequest { reth: reth(0, 4) })),
    ("request: middle of nothing", |probe, _| {
        request(probe, 5, Request::SendMiddle { payload: &DATA[..1024] })
    }),
    ("request: of RC", |probe, _| probe.request(0, None, send(&[])).map_err(|reason| reason.to_string())),
    ("response: ack", |probe, _| answer(probe, 0, Syndrome::Ack { credits: CreditCode::UNLIMITED })),
    ("response: invalid request NAK", |probe, _| answer(probe, 0, Syndrome::Nak(NakCode::InvalidRequest))),
    ("set_fatal", |probe, _| {
        probe.qp.set_fatal();
        Ok(())
    }),
];

/// In a state; where it sends, with one message out.
fn prepare(service: Service, state: QpState) -> Probe {
    let mut probe = if service == Service::XrcTarget {
        let xrcd = Arc::new(Xrcd::default());
        xrcd.add(5, HOME).post(50, 4096);
        xrcd.add(6, HOME);
        target_in(&xrcd, true, state)
    } else {
        let mut probe = initiator_in(if state == QpState::Sqd { QpState::Rts } else { state });
        if matches!(state, QpState::Rts | QpState::Sqd) {
            probe.post(9, SendOp::Send, SendTo::XrcSrq(SrqNumber::new(5)), 4).unwrap();
            probe.out();
        }
        if state == QpState::Sqd {
            probe.to(QpState::Sqd);
        }
        probe
    };
    probe.events();
    probe
}

#[test]
fn every_state_and_event() {
    let mut text = String::from(
        "What an event does to an XRC queue pair: its result, the state after it if that changed, then what it sends\n\
         and reports. An initiator in RTS or SQD has a send of id 9 out; a target's queue 5 has WQE 50, queue 6 none.\n",
    );
    for service in [Service::XrcInitiator, Service::XrcTarget] {
        for state in STATES {
            writeln!(text, "\n{service:?} {state:?}").unwrap();
            for (event, act) in EVENTS {
                let mut probe = prepare(service, state);
                let before = probe.qp.state();
                let mut said = act(&mut probe, service).err().unwrap_or_else(|| "ok".into());
                let sent = probe.out();
                let after = probe.qp.state();
                if after != before {
                    write!(said, " -> {after:?}").unwrap();
                }
                for more in sent.into_iter().chain(probe.events()) {
                    write!(said, " | {more}").unwrap();
                }
                writeln!(text, "  {event:<32} {said}").unwrap();
            }
        }
    }
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shared_receives/snapshots/xrc_state_events.txt");
    if std::env::var_os("FERROCE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (got, want)) in text.lines().zip(want.lines()).enumerate() {
        assert_eq!(got, want, "line {}; FERROCE_BLESS=1 accepts it", line + 1);
    }
    assert_eq!(text.lines().count(), want.lines().count(), "FERROCE_BLESS=1 accepts it");
}
