//! Every state and every event of loss recovery, as text that was looked at.

use std::fmt::Write;
use std::time::Duration;

use ferroce_proto::{NoSharedQueue, SelectiveRepeat, SendOp};
use ferroce_wire::{Bth, IcrcStatus, NakCode, Operation, Packet, PathMtu, Psn, Response};

use crate::probe::{ACK, DATA, Probe, aeth, local, nak, remote, rnr};
use crate::snapshot;
use crate::world::{QPNS, Setup, flow};

/// A state: its name, whether it is one of selective repeat, the oldest PSN in it, and the way to it.
type State = (&'static str, Option<bool>, u32, fn(&mut Probe));
type Event = (&'static str, fn(&mut Probe, u32) -> String);

const STATES: &[State] = &[
    ("Open", None, 0, |_| {}),
    ("TailLossProbe sent", None, 0, |probe| tick(probe, 1)),
    ("Probing", None, 0, |probe| tick(probe, 2)),
    ("Parked", None, 0, |probe| tick(probe, 4)),
    ("WentBack", Some(false), 0, |probe| drop(sequence_nak(probe, 0))),
    ("WentBack", Some(true), 3, |probe| drop(said(probe.ack(6, ACK)))),
    ("WentBack, Probing", Some(false), 0, |probe| {
        sequence_nak(probe, 0);
        tick(probe, 1);
    }),
    ("Reread", None, 3, |probe| drop(read_middle(probe, 4))),
    ("Reread, Probing", None, 3, |probe| {
        read_middle(probe, 4);
        tick(probe, 2);
    }),
    ("receiver not ready", None, 0, |probe| drop(said(probe.ack(0, rnr(12))))),
    ("a request is suspected", Some(true), 0, |probe| drop(sack(probe, 0, 0b1))),
    ("a request is retransmitted", Some(true), 0, |probe| {
        sack(probe, 0, 0b1);
        tick(probe, 1);
    }),
    ("Postponed", Some(true), 0, |probe| {
        let room = probe.setup.caps.max_send_wr - 5;
        (0..room).for_each(|wr_id| probe.post(wr_id.into(), SendOp::Send, &[local(0, 1024)]));
        probe.out();
        sequence_nak(probe, 0);
    }),
];

const EVENTS: &[Event] = &[
    ("ACK of the oldest", |probe, oldest| said(probe.ack(oldest, ACK))),
    ("ACK of the newest", |probe, _| said(probe.ack(6, ACK))),
    ("ACK of what is answered", |probe, oldest| said(probe.ack(oldest.wrapping_sub(1), ACK))),
    ("sequence NAK of the oldest", sequence_nak),
    ("sequence NAK of the next", |probe, oldest| sequence_nak(probe, oldest + 1)),
    ("RNR NAK of the oldest", |probe, oldest| said(probe.ack(oldest, rnr(12)))),
    ("SACK of one behind the oldest", |probe, oldest| sack(probe, oldest, 0b1)),
    ("SACK of three behind the oldest", |probe, oldest| sack(probe, oldest, 0b111)),
    ("first response", |probe, _| {
        said(probe.response(3, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..256] }))
    }),
    ("second response", |probe, _| read_middle(probe, 4)),
    ("next timer", |probe, _| {
        let due = probe.end.qp.poll_timeout().unwrap();
        probe.now = due;
        probe.end.qp.handle_timeout(due);
        String::new()
    }),
    ("ACK timeout", |probe, _| {
        probe.now += Duration::from_millis(70);
        probe.end.qp.handle_timeout(probe.now);
        String::new()
    }),
];

fn said(result: Result<(), impl std::fmt::Display>) -> String {
    result.map_or_else(|error| format!("{error}"), |()| String::new())
}

fn sequence_nak(probe: &mut Probe, psn: u32) -> String {
    said(probe.ack(psn, nak(NakCode::PsnSequenceError)))
}

fn read_middle(probe: &mut Probe, psn: u32) -> String {
    said(probe.response(psn, Response::ReadMiddle { payload: &DATA[..256] }))
}

fn sack(probe: &mut Probe, psn: u32, held: u128) -> String {
    let bth = Bth::new(QPNS[0], Psn::new(probe.setup.psn[0]).add(psn));
    let op = Operation::Sack { aeth: aeth(ACK), held };
    let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
    let end = &mut probe.end;
    said(end.qp.handle_datagram(probe.now, &flow(1), &packet, &mut NoSharedQueue, &mut end.mem))
}

/// Lets a number of timers expire.
fn tick(probe: &mut Probe, timers: u32) {
    for _ in 0..timers {
        probe.out();
        probe.now = probe.end.qp.poll_timeout().unwrap();
        probe.end.qp.handle_timeout(probe.now);
    }
}

/// Three sends, a read of three packets and a send are out.
fn prepare(selective: bool, way: fn(&mut Probe)) -> Probe {
    let selective_repeat = if selective { SelectiveRepeat::Agreed } else { SelectiveRepeat::Off };
    let setup = Setup { selective_repeat, mtu: PathMtu::B256, ..Setup::default() };
    let mut probe = Probe::new(setup);
    (0..3).for_each(|wr_id| probe.post(wr_id, SendOp::Send, &[local(0, 4)]));
    probe.post(3, SendOp::Read { remote: remote(0) }, &[local(0, 700)]);
    probe.post(4, SendOp::Send, &[local(0, 4)]);
    probe.out();
    probe.now += Duration::from_micros(50);
    way(&mut probe);
    probe.out();
    probe.sends();
    probe.now += Duration::from_micros(50);
    probe
}

#[test]
fn every_state_and_event_of_loss_recovery() {
    let mut text =
        "What an event does to loss recovery: its result, the packets sent, completions, and microseconds \
        until the next timer.\n"
            .to_owned();
    for selective in [false, true] {
        let states = STATES.iter().filter(|(_, only, ..)| only.is_none_or(|only| only == selective));
        for (name, _, oldest, way) in states {
            let protocol = if selective { "selective repeat" } else { "go-back-N" };
            writeln!(text, "\n{name} ({protocol})").unwrap();
            for (event, act) in EVENTS {
                let mut probe = prepare(selective, *way);
                let mut said = act(&mut probe, *oldest);
                let sent = probe.out();
                match &sent[..] {
                    [first, .., last] if sent.len() > 8 => {
                        write!(said, " | {first} .. {last}, {} packets", sent.len()).unwrap();
                    }
                    few => few.iter().for_each(|packet| write!(said, " | {packet}").unwrap()),
                }
                for (id, status) in probe.sends() {
                    write!(said, " | {id} {status:?}").unwrap();
                }
                let timer = probe.end.qp.poll_timeout();
                let timer = timer.map_or(0, |at| at.saturating_since(probe.now).as_micros());
                writeln!(text, "  {event:<31} {}", format!("{said} | {timer}").trim()).unwrap();
            }
        }
    }
    snapshot::check("recovery_events.txt", &text);
}
