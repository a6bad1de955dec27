use super::*;
use crate::history::Posted;
use crate::{DropReason, Remote, SendOp, SendTo, SendWr};
use ferroce_wire::{Instant, Rkey, WireOpcode};

/// A packet of RC: opcode, PSN, syndrome or 0, octets.
fn packet(opcode: u8, psn: u8, syndrome: u8, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len.max(20)];
    (octets[0], octets[8], octets[11], octets[12]) = (opcode, 0x80, psn, syndrome);
    octets
}

const SEND_ONLY: u8 = 0x04;
const ACK: u8 = 0x11;
const RNR: u8 = 0x20;
const NAK: u8 = 0x60;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn sent(psn: u8, len: usize) -> [u64; 2] {
    Event::sent(at(5), &packet(SEND_ONLY, psn, 0, len)).unwrap()
}

fn answer(psn: u8, syndrome: u8) -> [u64; 2] {
    Event::received(at(6), &packet(ACK, psn, syndrome, 20))
}

fn cause(words: &[[u64; 2]], status: WcStatus) -> Cause {
    let begin = Event::entered(at(1), crate::QpState::Init);
    let events = std::iter::once(begin).chain(words.iter().copied()).filter_map(Event::from_words);
    Cause::of(events, status, WcOpcode::Send)
}

#[test]
fn events_are_read_as_they_were_written() {
    let read = |words| Event::from_words(words).unwrap().what;
    let mut posted = Posted::default();
    assert_eq!(posted.event(), None);
    let remote = Remote { addr: 0, rkey: Rkey::new(0) };
    for (wr_id, op) in [(1 << 63, SendOp::Read { remote }), (1, SendOp::Send)] {
        posted.add(&SendWr {
            wr_id,
            op,
            to: SendTo::Peer,
            sges: &[],
            signaled: false,
            solicited: false,
            fence: false,
            inline: false,
        });
    }
    assert_eq!(read(posted.event().unwrap()), What::Posted { opcode: 2, wr_id: 1 << 63, count: 2 });
    let What::Sent(head) = read(sent(9, 4116)) else { panic!("it was sent") };
    assert_eq!((head.opcode, head.psn.value(), head.len, head.asks), (WireOpcode(4), 9, 4116, true));
    assert_eq!(head.syndrome(), None);
    let What::Received(head) = read(answer(9, NAK | 2)) else { panic!("it arrived") };
    assert_eq!(head.nak(), Some(NakCode::RemoteAccessError));
    let dropped = Event::dropped(at(1), &packet(SEND_ONLY, 3, 0, 20), DropReason::WrongPkey);
    let What::Dropped(head, reason) = read(dropped) else { panic!("it was dropped") };
    assert_eq!((head.psn.value(), head.len, reason), (3, 0, DropReason::WrongPkey as u8));
    let failed = Event::failed(at(2), WcStatus::RetryExcErr, WcOpcode::Recv, u64::MAX);
    assert_eq!(read(failed), What::Failed { status: 12, opcode: 128, wr_id: u64::MAX });
    assert_eq!(read(Event::entered(at(2), crate::QpState::Error)), What::State(6));
    assert_eq!(
        [read(Event::timed_out(at(2))), read(Event::copied(at(2)))],
        [What::TimedOut { count: 1 }, What::Copied]
    );
    assert_eq!(Event::from_words([0, 0]), None);
    assert_eq!(Event::from_words(failed).unwrap().time, 2_000_000 / Event::UNIT);
    // Octets that are too few for a packet are no event.
    assert_eq!(Event::from_words(Event::received(at(1), &[1; 15])), None);
    assert_eq!(Event::sent(at(1), &packet(ACK, 1, 0x1f, 20)), None);
    assert!(Event::sent(at(1), &packet(ACK, 1, NAK, 20)).is_some());
}

#[test]
fn a_peer_that_never_answers_one_that_stops_and_one_that_misses_packets() {
    let retries = WcStatus::RetryExcErr;
    let never = cause(&[sent(1, 40), sent(1, 40), sent(1, 40)], retries);
    assert_eq!(never.to_string(), "the peer never answered; PSN 1 was sent 3 times");
    let cut_off = [sent(1, 40), sent(1, 40)].into_iter().filter_map(Event::from_words);
    assert_eq!(Cause::of(cut_off, retries, WcOpcode::Send), Cause::NoAnswer { sent: 2 });
    let ended = cause(&[sent(1, 40), answer(1, 0), sent(2, 40), sent(2, 40)], retries);
    assert_eq!(ended, Cause::AnswersEnded { sent: 2, last: Some(Psn::new(1)) });
    let missed = cause(&[sent(1, 40), sent(2, 40), answer(1, NAK), sent(1, 40), answer(1, NAK)], retries);
    assert_eq!(missed, Cause::PacketsLost { naks: 2, psn: Psn::new(1) });
    let long = cause(&[sent(1, 40), answer(1, 0), sent(2, 4116), sent(2, 4116)], retries);
    assert_eq!(long, Cause::LongPacketsLost { most: 40, lost: 4116 });
    // A gap that was filled is not the cause, and neither is what another connection saw.
    let filled = [sent(1, 40), answer(1, NAK), sent(1, 40), answer(2, 0), sent(3, 40), sent(3, 40)];
    assert_eq!(cause(&filled, retries), Cause::AnswersEnded { sent: 2, last: Some(Psn::new(2)) });
    let again = [&filled[..], &[Event::entered(at(7), crate::QpState::Reset), sent(9, 40)]].concat();
    assert_eq!(cause(&again, retries), Cause::NeverAnswered { sent: 1, psn: Some(Psn::new(9)) });
    // Responses are no requests; a copy shows that the peer was there.
    let response = Event::sent(at(5), &packet(0x10, 77, 0, 4116)).unwrap();
    assert_eq!(cause(&[response], retries), Cause::NeverAnswered { sent: 0, psn: None });
    assert_eq!(cause(&[Event::copied(at(5))], retries), Cause::AnswersEnded { sent: 0, last: None });
    // A long packet was answered as well.
    let ended = cause(&[sent(1, 4116), answer(1, 0), sent(2, 4116), sent(2, 4116)], retries);
    assert_eq!(ended, Cause::AnswersEnded { sent: 2, last: Some(Psn::new(1)) });
}

#[test]
fn a_peer_that_refuses_and_one_that_is_not_ready() {
    let refused = cause(&[sent(4, 40), sent(5, 44), answer(5, NAK | 2)], WcStatus::RemAccessErr);
    let Cause::Refused { code: NakCode::RemoteAccessError, request: Some(head) } = refused else {
        panic!("{refused}")
    };
    assert_eq!((head.psn.value(), head.len), (5, 44));
    let waits = cause(&[sent(4, 40), answer(4, RNR), sent(4, 40), answer(4, RNR)], WcStatus::RnrRetryExcErr);
    assert_eq!(waits, Cause::NotReady { naks: 2 });
    // The NAK has left the record meanwhile.
    let lost = cause(&[sent(4, 40)], WcStatus::RemOpErr);
    assert_eq!(lost, Cause::Refused { code: NakCode::RemoteOperationalError, request: None });
    // A NAK of another kind was for a gap, which was filled.
    let other =
        cause(&[sent(4, 40), answer(4, NAK), sent(4, 40), answer(4, NAK | 1)], WcStatus::RemInvReqErr);
    assert!(matches!(other, Cause::Refused { code: NakCode::InvalidRequest, request: Some(_) }), "{other}");
    // The RNR NAKs of an earlier message do not count.
    let before = [sent(3, 40), answer(3, RNR), sent(3, 40), answer(3, 0)];
    let waits = cause(&[&before[..], &[sent(4, 40), answer(4, RNR)]].concat(), WcStatus::RnrRetryExcErr);
    assert_eq!(waits, Cause::NotReady { naks: 1 });
}

#[test]
fn a_flush_names_the_error_before_it() {
    let first = Event::failed(at(2), WcStatus::LocProtErr, WcOpcode::Send, 1);
    let flush = Event::failed(at(2), WcStatus::WrFlushErr, WcOpcode::Send, 2);
    assert_eq!([first, flush, sent(1, 40), [0, 0]].map(Event::is_flush), [false, true, false, false]);
    let after = cause(&[first, flush], WcStatus::WrFlushErr);
    assert_eq!(after.to_string(), "the queue pair was in the error state after IBV_WC_LOC_PROT_ERR");
    assert_eq!(cause(&[flush], WcStatus::WrFlushErr), Cause::Flushed { after: None });
}

#[test]
fn each_error_has_a_name_a_line_a_rule_and_a_cure() {
    for (status, name) in STATUSES {
        assert_eq!((WcStatus::of_number(status as u8), status.name()), (Some(status), name));
        let cause = cause(&[], status);
        assert!(!cause.to_string().is_empty() && !cause.rule().is_empty() && !cause.cure().is_empty());
    }
    for (opcode, name) in OPCODES {
        assert_eq!((WcOpcode::of_number(opcode as u8), opcode.name()), (Some(opcode), name));
    }
}

/// The events as the recorder merges them.
fn merged(words: impl IntoIterator<Item = [u64; 2]>) -> Vec<[u64; 2]> {
    let mut ring = vec![[0; 2]; 4];
    for event in words {
        let last = *ring.last_chunk::<4>().unwrap();
        let (back, event) = Event::merged(last, event).unwrap_or((0, event));
        match ring.len() - back as usize {
            place if back > 0 => ring[place] = event,
            _ => ring.push(event),
        }
    }
    ring.split_off(4)
}

#[test]
fn packets_that_are_sent_again_for_minutes_do_not_push_out_what_was_before() {
    for each in [5, 2, 1] {
        let again = (0..10_000).flat_map(|time| {
            let sent = Event::sent(at(10 + time), &packet(SEND_ONLY, 2, 0, 40)).unwrap();
            let timeout = (time % each == each - 1).then(|| Event::timed_out(at(10 + time)));
            [Some(sent), timeout].into_iter().flatten()
        });
        let events = merged([sent(1, 40), answer(1, 0)].into_iter().chain(again));
        assert!(events.len() <= 6, "{each}: {events:?}");
        let cause = cause(&events, WcStatus::RetryExcErr);
        let Cause::AnswersEnded { sent: 2048, last: Some(last) } = cause else { panic!("{each}: {cause}") };
        assert_eq!(last, Psn::new(1));
        let what = events.iter().filter_map(|words| Event::from_words(*words)).map(|event| event.what);
        let timeouts: u64 = what
            .map(|what| match what {
                What::TimedOut { count } => count.into(),
                _ => 0,
            })
            .sum();
        assert_eq!(timeouts, (10_000 / each).min(if each == 1 { 2048 } else { 2047 }), "{each}");
    }
}

#[test]
fn what_differs_is_not_merged() {
    let drop = |psn, reason| Event::dropped(at(1), &packet(SEND_ONLY, psn, 0, 20), reason);
    let other = [
        sent(1, 40),
        sent(2, 40),
        sent(2, 44),
        answer(2, 0),
        answer(2, NAK),
        drop(4, DropReason::WrongPkey),
        drop(4, DropReason::IcrcUnchecked),
        Event::copied(at(1)),
        Event::copied(at(2)),
        Event::failed(at(1), WcStatus::WrFlushErr, WcOpcode::Send, 0),
        Event::failed(at(1), WcStatus::WrFlushErr, WcOpcode::Send, 0),
    ];
    assert_eq!(merged(other), other);
    let reasons = [DropReason::WrongPkey, DropReason::WrongPkey, DropReason::IcrcUnchecked];
    let what = |words: &[u64; 2]| Event::from_words(*words).unwrap().what;
    let events: Vec<_> = merged(reasons.map(|reason| drop(4, reason))).iter().map(what).collect();
    assert!(
        matches!(events[..], [What::Dropped(..), What::Again { count: 1 }, What::Dropped(_, other)]
            if other == DropReason::IcrcUnchecked as u8),
        "{events:?}"
    );
    let each = |words: &[[u64; 2]]| Event::each(words.iter().copied().filter_map(Event::from_words)).count();
    assert_eq!(each(&merged(reasons.map(|_| drop(4, DropReason::WrongPkey)))), 3);
    assert_eq!(each(&merged([Event::timed_out(at(1)), Event::timed_out(at(2)), sent(1, 4)])), 3);
}
