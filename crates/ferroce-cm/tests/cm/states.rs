//! Every state and every event of a connection, as text that was looked at.

use std::fmt::Write;
use std::path::Path;

use ferroce_cm::{AcceptParams, CmDropReason, CmError, CmEventKind};
use ferroce_wire::cm::{About, CmTime, CommId, Info, Message, Mra, PrivateData, RejReason};

use crate::probe::{Probe, THEIRS, drep, dreq, lap, rej, rep, req, rtu};
use crate::world::{connect_params, guid, qpn};

pub const STATES: [&str; 14] = [
    "REQ sent",
    "MRA(REQ) received",
    "REP received",
    "MRA(REP) sent",
    "REQ received",
    "MRA(REQ) sent",
    "REP sent",
    "MRA(REP) received",
    "established, active",
    "established, passive",
    "DREQ sent",
    "DREQ received",
    "time-wait, active",
    "time-wait, passive",
];

fn accept(probe: &mut Probe, id: CommId) -> Result<(), CmError> {
    probe.cm.accept(probe.now, id, &AcceptParams::new(guid(1), qpn(1)))
}

fn mra(id: CommId, about: About) -> Message {
    let (service_timeout, private) = (CmTime::saturating(20), PrivateData::EMPTY);
    Message::Mra(Mra { local_id: THEIRS, remote_id: id, about, service_timeout, private })
}

/// A connection in a state, in the way in which connections get there.
pub fn prepare(state: &str) -> (Probe, CommId) {
    let mut probe = Probe::new();
    let active = |probe: &mut Probe| probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    let long = CmTime::saturating(20);
    let id = match state {
        "REQ sent" => active(&mut probe),
        "MRA(REQ) received" => {
            let id = active(&mut probe);
            probe.give(mra(id, About::REQ)).unwrap();
            id
        }
        "REP received" | "MRA(REP) sent" | "established, active" | "DREQ sent" | "time-wait, active" => {
            let id = active(&mut probe);
            probe.give(Message::Rep(rep(id))).unwrap();
            match state {
                "REP received" => {}
                "MRA(REP) sent" => probe.cm.send_mra(id, long, true).unwrap(),
                _ => probe.cm.establish(id).unwrap(),
            }
            if matches!(state, "DREQ sent" | "time-wait, active") {
                probe.cm.disconnect(probe.now, id).unwrap();
            }
            if state == "time-wait, active" {
                probe.give(drep(id)).unwrap();
            }
            id
        }
        "REQ received" | "MRA(REQ) sent" => {
            let id = probe.request(req());
            if state == "MRA(REQ) sent" {
                probe.cm.send_mra(id, long, true).unwrap();
            }
            id
        }
        "REP sent" | "MRA(REP) received" => {
            let id = probe.request(req());
            accept(&mut probe, id).unwrap();
            if state == "MRA(REP) received" {
                probe.give(mra(id, About::REP)).unwrap();
            }
            id
        }
        "established, passive" | "DREQ received" | "time-wait, passive" => {
            let id = probe.established();
            if state != "established, passive" {
                probe.give(dreq(id)).unwrap();
            }
            if state == "time-wait, passive" {
                probe.cm.disconnect(probe.now, id).unwrap();
            }
            id
        }
        other => panic!("{other}"),
    };
    probe.out();
    probe.events();
    let name = state.split(',').next().unwrap();
    assert_eq!(probe.cm.state(id), Some(name));
    (probe, id)
}

fn command(result: Result<(), CmError>) -> String {
    result.map_or_else(|error| format!("{error}"), |()| "ok".into())
}

fn message(result: Result<(), CmDropReason>) -> String {
    result.map_or_else(|reason| format!("{reason}"), |()| "taken".into())
}

type Event = (&'static str, fn(&mut Probe, CommId) -> String);

const EVENTS: &[Event] = &[
    ("accept", |p, id| command(accept(p, id))),
    ("reject", |p, id| command(p.cm.reject(p.now, id, RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY))),
    ("establish", |p, id| command(p.cm.establish(id))),
    ("send MRA", |p, id| command(p.cm.send_mra(id, CmTime::saturating(20), true))),
    ("disconnect", |p, id| command(p.cm.disconnect(p.now, id))),
    ("close", |p, id| {
        p.cm.close(p.now, id);
        "ok".into()
    }),
    ("timer", |p, _| if p.tick() { "runs".into() } else { "none runs".into() }),
    ("last timer", |p, id| {
        let before = p.cm.state(id);
        while p.cm.state(id) == before && p.tick() {
            let out = p.out();
            if p.cm.state(id) != before {
                return format!("sent {}", names(&out));
            }
        }
        "none".into()
    }),
    ("REQ", |p, _| message(p.give(Message::Req(req())))),
    ("REQ, another", |p, _| {
        message(
            p.give(Message::Req(ferroce_wire::cm::Req { starting_psn: ferroce_wire::Psn::new(1), ..req() })),
        )
    }),
    ("MRA(REQ)", |p, id| message(p.give(mra(id, About::REQ)))),
    ("MRA(REP)", |p, id| message(p.give(mra(id, About::REP)))),
    ("REP", |p, id| message(p.give(Message::Rep(rep(id))))),
    ("REP, another", |p, id| {
        message(p.give(Message::Rep(ferroce_wire::cm::Rep { local_id: CommId(1), ..rep(id) })))
    }),
    ("RTU", |p, id| message(p.give(rtu(id)))),
    ("REJ(REQ) consumer", |p, id| message(p.give(rej(id, About::REQ, RejReason::CONSUMER)))),
    ("REJ(REQ) nobody listens", |p, id| message(p.give(rej(id, About::REQ, RejReason::INVALID_SERVICE_ID)))),
    ("REJ(REQ) stale", |p, id| message(p.give(rej(id, About::REQ, RejReason::STALE_CONNECTION)))),
    ("REJ(REQ) timeout", |p, id| message(p.give(rej(id, About::REQ, RejReason::TIMEOUT)))),
    ("REJ(REP) consumer", |p, id| message(p.give(rej(id, About::REP, RejReason::CONSUMER)))),
    ("REJ(REP) stale", |p, id| message(p.give(rej(id, About::REP, RejReason::STALE_CONNECTION)))),
    ("REJ(REP) timeout", |p, id| message(p.give(rej(id, About::REP, RejReason::TIMEOUT)))),
    ("DREQ", |p, id| message(p.give(dreq(id)))),
    ("DREP", |p, id| message(p.give(drep(id)))),
    ("LAP", |p, id| message(p.give(Message::Lap(lap(id))))),
];

fn names(out: &[Message]) -> String {
    let name = |message: &Message| match message {
        Message::Rej(rej) => format!("REJ {}", rej.reason.0),
        other => other.name().into(),
    };
    out.iter().map(name).collect::<Vec<_>>().join(" ")
}

fn told(kind: &CmEventKind) -> String {
    match kind {
        CmEventKind::Request { .. } => "Request".into(),
        CmEventKind::Reply { .. } => "Reply".into(),
        CmEventKind::Rejected { reason, .. } => format!("Rejected({})", reason.0),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_state_and_every_event() {
    let mut text = String::new();
    for state in STATES {
        writeln!(text, "{state}").unwrap();
        for (name, event) in EVENTS {
            let (mut probe, id) = prepare(state);
            let result = event(&mut probe, id);
            let after = probe.cm.state(id).unwrap_or("idle");
            let mut line = format!("  {name}: {result}");
            if after != state.split(',').next().unwrap() {
                write!(line, " -> {after}").unwrap();
            }
            let out = probe.out();
            if !out.is_empty() {
                write!(line, "; sends {}", names(&out)).unwrap();
            }
            for event in probe.events() {
                write!(line, "; tells {}", told(&event.kind)).unwrap();
            }
            writeln!(text, "{line}").unwrap();
            // After any event the connection can be ended.
            probe.cm.close_owner(probe.now, 9, usize::MAX);
            while probe.tick() {}
            assert!(probe.cm.is_empty(), "{state}, {name}");
        }
    }
    check("states.txt", &text);
}

/// Compares with `tests/cm/snapshots/NAME`. `FERROCE_BLESS=1` writes it instead: look at the diff before committing.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cm/snapshots").join(name);
    if std::env::var_os("FERROCE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (got, want)) in text.lines().zip(want.lines()).enumerate() {
        assert_eq!(got, want, "{name}, line {}; FERROCE_BLESS=1 accepts it", line + 1);
    }
    assert_eq!(text.lines().count(), want.lines().count(), "{name}: FERROCE_BLESS=1 accepts it");
}
