//! The story of one queue pair: what failed, why, and the packets before it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use ferroce_ipc::ledger::recorder::Recording;
use ferroce_ipc::ledger::records::Ends;
use ferroce_proto::history::{Cause, Event, Head, What};
use ferroce_proto::{DropReason, QpState, Service, WcOpcode, WcStatus};
use ferroce_wire::{Gid, Syndrome};
use serde::Serialize;

use super::Program;
use crate::args::Style;

/// Failures of a queue pair that are told: the first one, and what is no flush.
const MOST_FAILURES: usize = 8;

/// The story of a queue pair.
#[derive(Serialize, Debug)]
pub struct Story {
    pid: u32,
    program: String,
    ended: bool,
    device: String,
    service: &'static str,
    lqpn: u32,
    rqpn: u32,
    src_addr: String,
    dst_addr: String,
    failures: Vec<Failure>,
    /// Others were flushed after those.
    flushed: bool,
    /// The last sign of life, where nothing failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<String>,
    /// The record of the other end, if it is a program of this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// Events that were overwritten by later ones.
    lost: u64,
    events: Vec<Line>,
    #[serde(skip)]
    ends: Ends,
}

/// A work request that failed.
#[derive(Serialize, Debug)]
struct Failure {
    opcode: &'static str,
    wr_id: u64,
    status: &'static str,
    cause: String,
    rule: &'static str,
    cure: &'static str,
}

/// An event: its time in UTC, and what happened.
#[derive(Serialize, Debug)]
struct Line {
    time: String,
    what: String,
}

impl Story {
    /// `None` if nothing but its creation happened to the queue pair.
    pub fn of(program: &Program, recording: &Recording) -> Option<Self> {
        let ends = recording.ends;
        let events = decoded(recording);
        let mut failures = Vec::new();
        let mut flushed = false;
        for (index, event) in events.iter().enumerate() {
            let What::Failed { status, opcode, wr_id } = event.what else { continue };
            let Some((status, opcode)) = WcStatus::of_number(status).zip(WcOpcode::of_number(opcode)) else {
                continue;
            };
            if status == WcStatus::WrFlushErr && !failures.is_empty() {
                flushed = true;
                continue;
            }
            let before = events.iter().take(index).copied();
            let cause = Cause::of(before, status, opcode).with_hops(ends.hop_limit);
            failures.push(Failure {
                opcode: opcode.name(),
                wr_id,
                status: status.name(),
                cause: cause.to_string(),
                rule: cause.rule(),
                cure: cause.cure(),
            });
        }
        failures.truncate(MOST_FAILURES);
        let device = program.devices.iter().find(|(block, _)| *block == ends.block.number());
        let address = |gid: [u8; 16]| Gid(gid).to_ip().to_string();
        Some(Self {
            pid: program.pid,
            program: program.name.clone(),
            ended: program.ended,
            device: device.map_or_else(String::new, |(_, name)| name.clone()),
            service: service_of(ends.service),
            lqpn: ends.qpn,
            rqpn: ends.remote_qpn,
            src_addr: address(ends.local),
            dst_addr: address(ends.remote),
            waits: failures.is_empty().then(|| waits_for(&events)),
            failures,
            flushed,
            peer: None,
            ends,
            lost: recording.lost,
            events: lines(program, &events),
        })
        .filter(|_| !events.is_empty())
    }

    /// Adds the record of the other end.
    pub fn with_peer(self, peers: &Peers<'_>) -> Self {
        Self { peer: peers.tell(&self.ends), ..self }
    }

    pub fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }
}

/// The events, with the time of a post being that of the event behind it.
fn decoded(recording: &Recording) -> Vec<Event> {
    let mut events: Vec<Event> = recording.events.iter().copied().filter_map(Event::from_words).collect();
    let mut later = events.iter().rev().find(|event| event.time != 0).map_or(0, |event| event.time);
    for event in events.iter_mut().rev() {
        if event.time == 0 { event.time = later } else { later = event.time }
    }
    events
}

const fn service_of(service: u8) -> &'static str {
    const NAMES: [(Service, &str); 4] =
        [(Service::Rc, "RC"), (Service::Uc, "UC"), (Service::Ud, "UD"), (Service::Iwarp, "iWARP")];
    let mut index = 0;
    while index < NAMES.len() {
        if NAMES[index].0 as u8 == service {
            return NAMES[index].1;
        }
        index += 1;
    }
    "XRC or raw"
}

/// The event that a queue pair without a failure waits for.
fn waits_for(events: &[Event]) -> String {
    let place = |is: fn(&What) -> bool| events.iter().rposition(|event| is(&event.what));
    let state = events.iter().rev().find_map(|event| match event.what {
        What::State(state) => Some(state),
        _ => None,
    });
    let answer = place(|what| matches!(what, What::Received(head) if head.syndrome().is_some()));
    let asked = place(|what| matches!(what, What::Sent(head) if head.is_request() && head.asks));
    if asked.is_some() && answer < asked {
        let again = events.iter().skip(answer.unwrap_or(0)).map(|event| match event.what {
            What::TimedOut { count } => u64::from(count),
            _ => 0,
        });
        return match again.sum() {
            0_u64 => "it waits for the answer to its last packet".to_owned(),
            count => format!("it waits for an answer, and has sent again {count} times"),
        };
    }
    if let Some(answer) = answer
        && let What::Received(head) = events[answer].what
        && matches!(head.syndrome(), Some(Syndrome::RnrNak(_)))
    {
        return "the peer has no receive posted (RNR NAK): it waits to send again".to_owned();
    }
    match state.and_then(state_of) {
        Some(state @ (QpState::Reset | QpState::Init)) => {
            format!("it is in {state}: a program takes it to RTR and RTS by ibv_modify_qp")
        }
        Some(state) => format!("nothing is under way; it is in {state}"),
        None => "nothing is under way".to_owned(),
    }
}

fn state_of(number: u8) -> Option<QpState> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].into_iter().find(|state| *state as u8 == number)
}

/// All recordings, by the number of the queue pair.
pub struct Peers<'a>(BTreeMap<u32, Vec<(&'a Program, &'a Recording)>>);

impl<'a> Peers<'a> {
    pub fn of(programs: &'a [Program]) -> Self {
        let mut peers = BTreeMap::<u32, Vec<_>>::new();
        for program in programs {
            for ring in &program.recordings {
                peers.entry(ring.ends.qpn).or_default().push((program, ring));
            }
        }
        Self(peers)
    }

    /// The record of a program of this host at the other end.
    fn tell(&self, ends: &Ends) -> Option<String> {
        if ends.remote_qpn == 0 || ends.remote == [0; 16] {
            return None;
        }
        let fits =
            |(_, ring): &&(&Program, &Recording)| ring.ends.local == ends.remote || ring.ends.remote_qpn == 0;
        let (program, ring) = self.0.get(&ends.remote_qpn)?.iter().find(fits)?;
        peer_of(ends, program, ring)
    }
}

fn peer_of(ends: &Ends, program: &Program, ring: &Recording) -> Option<String> {
    let mut text = format!("{} (PID {})", program.name, program.pid);
    let events = decoded(ring);
    if ring.ends.remote_qpn != ends.qpn {
        let _ = write!(
            text,
            ": its queue pair {:#08x} is connected to {:#08x}, not to this one",
            ring.ends.qpn, ring.ends.remote_qpn
        );
        return Some(text);
    }
    let state = events.iter().rev().find_map(|event| match event.what {
        What::State(state) => state_of(state),
        _ => None,
    });
    if let Some(state) = state {
        let _ = write!(text, ": last taken to {state}");
    }
    if program.ended {
        text.push_str("; the program has ended");
    }
    let drops = Event::each(events.iter().copied()).filter_map(|event| match event.what {
        What::Dropped(head, reason) => Some((head, reason)),
        _ => None,
    });
    if let Some((head, reason)) = drops.clone().last() {
        let (count, psn, why) = (drops.count(), head.psn.value(), reason_of(reason));
        let _ = write!(text, "; it dropped {count} packets, PSN {psn} as the last: {why}");
    }
    let failure = events.iter().find_map(|event| match event.what {
        What::Failed { status, .. } => WcStatus::of_number(status),
        _ => None,
    });
    if let Some(status) = failure {
        let _ = write!(text, "; its own first error is {}", status.name());
    }
    Some(text)
}

fn reason_of(number: u8) -> String {
    let known = DropReason::ALL.into_iter().find(|reason| *reason as u8 == number);
    known.map_or_else(|| format!("reason {number}"), |reason| reason.to_string())
}

fn lines(program: &Program, events: &[Event]) -> Vec<Line> {
    events.iter().map(|event| Line { time: time_of(program, event), what: text_of(&event.what) }).collect()
}

/// The time of day, in UTC. Events carry the lower part of their time alone.
fn time_of(program: &Program, event: &Event) -> String {
    let clocks = program.clocks;
    let begin = clocks.monotonic / Event::UNIT;
    let units = begin.saturating_add(event.time.wrapping_sub(begin) % Event::TURN);
    let since = Duration::from_nanos(units.saturating_mul(Event::UNIT))
        .saturating_sub(Duration::from_nanos(clocks.monotonic));
    let real = Duration::from_nanos(clocks.real).saturating_add(since);
    let (seconds, micros) = (real.as_secs() % 86_400, real.subsec_micros());
    format!("{:02}:{:02}:{:02}.{micros:06}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn text_of(what: &What) -> String {
    match what {
        What::Posted { opcode, wr_id, count } => {
            let name = WcOpcode::of_number(*opcode).map_or("a work request", WcOpcode::name);
            let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            format!("posted {name}, wr_id {wr_id}{more}")
        }
        What::Sent(head) => format!("-> {}", packet(head)),
        What::Received(head) => format!("<- {}", packet(head)),
        What::Dropped(head, reason) => format!("<- {}: dropped, {}", packet(head), reason_of(*reason)),
        What::Failed { status, opcode, wr_id } => {
            let status = WcStatus::of_number(*status).map_or("an error", WcStatus::name);
            let name = WcOpcode::of_number(*opcode).map_or("a work request", WcOpcode::name);
            format!("{name} with wr_id {wr_id} completed: {status}")
        }
        What::State(state) => match state_of(*state) {
            Some(state) => format!("to {state}"),
            None => "to an unknown state".to_owned(),
        },
        What::Again { count: 1 } => "the same again".to_owned(),
        What::Again { count } => format!("the same again, {count} times up to here"),
        What::TimedOut { count: 1 } => "the ACK timeout is over".to_owned(),
        What::TimedOut { count } => format!("the ACK timeout is over, {count} times up to here"),
        What::Copied => "copied directly between the processes, without packets".to_owned(),
    }
}

fn packet(head: &Head) -> String {
    let operation = head.opcode.info().and_then(|info| info.operation);
    let mut text = match operation {
        Some(operation) => format!("{operation:?}"),
        None => format!("opcode {:#04x}", head.opcode.0),
    };
    let _ = write!(text, " PSN {}", head.psn.value());
    if head.len > 0 {
        let _ = write!(text, ", {} octets", head.len);
    }
    match head.syndrome() {
        Some(Syndrome::Ack { .. }) => {}
        Some(Syndrome::RnrNak(_)) => text.push_str(", RNR NAK"),
        Some(Syndrome::Nak(code)) => {
            let _ = write!(text, ", NAK: {code:?}");
        }
        Some(Syndrome::Reserved(octet)) => {
            let _ = write!(text, ", reserved syndrome {octet:#04x}");
        }
        None if head.asks => text.push_str(", asks for an ACK"),
        None => {}
    }
    text
}

/// Prints the stories.
pub fn print(stories: &[Story], style: Style) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if style.json || style.pretty {
        let text = match style.pretty {
            true => serde_json::to_string_pretty(stories)?,
            false => serde_json::to_string(stories)?,
        };
        return Ok(writeln!(out, "{text}")?);
    }
    if stories.is_empty() {
        return Ok(writeln!(out, "no work request failed, as far as programs of now and lately recorded")?);
    }
    for story in stories {
        let Story { pid, program, device, service, lqpn, rqpn, src_addr, dst_addr, .. } = story;
        let ended = if story.ended { ", ended" } else { "" };
        write!(out, "{program} (PID {pid}{ended}), {device}: {service} queue pair {lqpn:#08x}")?;
        match rqpn {
            0 => writeln!(out)?,
            _ => writeln!(out, " at {src_addr} to {rqpn:#08x} at {dst_addr}")?,
        }
        for Failure { opcode, wr_id, status, cause, rule, cure } in &story.failures {
            writeln!(out, "  {opcode} with wr_id {wr_id} failed: {status}: {cause}")?;
            writeln!(out, "    rule: {rule}\n    cure: {cure}")?;
        }
        if story.flushed {
            writeln!(out, "  other work requests were flushed after that")?;
        }
        for (name, text) in [("waits", &story.waits), ("peer", &story.peer)] {
            if let Some(text) = text {
                writeln!(out, "  {name}: {text}")?;
            }
        }
        if story.lost > 0 {
            writeln!(out, "  {} earlier events are no longer recorded", story.lost)?;
        }
        for Line { time, what } in &story.events {
            writeln!(out, "  {time}  {what}")?;
        }
    }
    Ok(())
}
