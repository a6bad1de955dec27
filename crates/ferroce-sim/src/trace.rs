//! Events of a run as text.

use std::fmt::Debug;

use ferroce_fault::Facts;
use ferroce_wire::Instant;

use crate::hosts::{EndId, Event};
use crate::{Datagram, Frame};

/// The line of an event: its time in nanoseconds, the queue pair by its number, the packet, and the reason if
/// it was dropped.
pub fn line(now: Instant, event: &Event<'_>) -> String {
    let at = now.as_nanos();
    let packet = |frame: &Frame| match frame.facts(0) {
        Some(facts) => {
            let Facts { op, pos, psn, msn, len, ack, .. } = facts;
            let ack = if ack { " A" } else { "" };
            let mark = if frame.flow.is_marked() { " CE" } else { "" };
            format!("{op:?} {pos:?} psn {:#08x} msn {msn} [{len}]{ack}{mark}", psn.value())
        }
        None => format!("{} octets that are no packet", frame.bytes.len()),
    };
    let number = |end: &EndId| end.number();
    match event {
        Event::Sent(end, frame) => format!("{at} end {} sends {}", number(end), packet(frame)),
        Event::Received(end, frame, reason) => {
            let dropped = reason.map_or_else(String::new, |reason: &dyn Debug| format!(": {reason:?}"));
            format!("{at} end {} receives {}{dropped}", number(end), packet(frame))
        }
        Event::Timer(end) => format!("{at} end {} timer", number(end)),
    }
}
