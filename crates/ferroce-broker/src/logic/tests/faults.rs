//! Orders about faults to running programs.

use ferroce_ipc::{FaultCounts, FaultOrder, FaultReport};

use super::*;

const ANN: u32 = 2001;

/// A client of a process and user.
fn join(bench: &mut Bench, client: u64, uid: u32) {
    let pid = client as u32 + 100;
    bench.broker.connected(ClientId(client), Peer { pid, uid }, ProcessId(pid.into()), true);
    bench.say(client, Message::Hello(Hello::ours("")), vec![]);
}

/// Client 1 gives orders, client 2 is a program with slot 16 of process 102.
fn bench() -> Bench {
    let mut bench = Bench::loopback();
    bench.broker.serve_all_users();
    join(&mut bench, 1, UID);
    join(&mut bench, 2, UID);
    assert_eq!(bench.lease(2, 1).unwrap().0, [1]);
    bench
}

fn request(slot: u16, pid: u32, order: FaultOrder) -> Message {
    Message::FaultRequest { slot, pid, order }
}

fn apply() -> FaultOrder {
    FaultOrder::Apply { rules: "drop 1%".to_owned(), seed: Some(7) }
}

/// Has client 1 give an order to the program of slot 16, and returns the number by which the program knows
/// it.
fn passed(bench: &mut Bench, order: FaultOrder) -> u32 {
    bench.broker.message(bench.now, ClientId(1), 5, request(16, 102, order.clone()), vec![]);
    match bench.output().as_slice() {
        [(2, sent)] => match sent.as_slice() {
            [(0, Message::FaultOrder { number, order: got }, _)] if *got == order => *number,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The refusal that client 1 gets for its request.
fn refusal_of(sent: Sent) -> (RefusalCode, String) {
    match sent.as_slice() {
        [(5, Message::Refused(refusal), _)] => (refusal.code, refusal.sentence.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_order_reaches_its_program_and_the_report_its_asker() {
    let mut bench = bench();
    let number = passed(&mut bench, apply());
    let rule = FaultCounts { text: "drop 1%".to_owned(), hits: 1, seen: 9, ..FaultCounts::default() };
    let report = FaultReport { seed: 7, unlogged: 0, rules: vec![rule] };
    // Another program cannot answer in its place.
    join(&mut bench, 3, UID);
    bench.say(3, Message::FaultReport { number, result: Ok(FaultReport::default()) }, vec![]);
    assert!(bench.heard(1).is_empty());
    let answer = Message::FaultReport { number, result: Ok(report) };
    bench.broker.message(bench.now, ClientId(2), 0, answer.clone(), vec![]);
    let sent = bench.heard(1);
    assert!(matches!(sent.as_slice(), [(5, message, _)] if *message == answer), "{sent:?}");
    // The answer is given once.
    bench.broker.message(bench.now, ClientId(2), 0, answer, vec![]);
    assert!(bench.heard(1).is_empty());
    let number = passed(&mut bench, FaultOrder::Show);
    let answer = Message::FaultReport { number, result: Err("AT_SECURE".to_owned()) };
    bench.broker.message(bench.now, ClientId(2), 0, answer, vec![]);
    assert_eq!(refusal_of(bench.heard(1)), (RefusalCode::Failed, "AT_SECURE".to_owned()));
}

#[test]
fn nobody_orders_faults_for_a_program_of_another_user() {
    let mut bench = bench();
    join(&mut bench, 4, ANN);
    let ann = bench.lease_slots(4, 1).unwrap()[0];
    // Ann, root, and the broker's user towards Ann.
    join(&mut bench, 5, ANN);
    join(&mut bench, 6, 0);
    for (asker, slot, pid) in [(5, 16, 102), (6, 16, 102), (6, ann, 104), (1, ann, 104)] {
        for order in [apply(), FaultOrder::Clear, FaultOrder::Show] {
            bench.broker.message(bench.now, ClientId(asker), 5, request(slot, pid, order), vec![]);
            let sent = bench.output();
            let [(to, sent)] = <[_; 1]>::try_from(sent).unwrap();
            assert_eq!(
                (to, refusal_of(sent).0),
                (asker, RefusalCode::Permission),
                "the program heard nothing"
            );
        }
    }
    bench.broker.message(bench.now, ClientId(5), 5, request(ann, 104, apply()), vec![]);
    let sent = bench.output();
    assert!(matches!(&sent[0].1[0].1, Message::FaultOrder { .. }) && sent[0].0 == 4, "her own");
}

#[test]
fn a_program_that_is_gone_or_another_is_named() {
    let mut bench = bench();
    for (slot, pid) in [(32, 102), (16, 103), (0, 0), (u16::MAX, 102)] {
        let (code, sentence) = refusal_of(bench.say(1, request(slot, pid, FaultOrder::Show), vec![]));
        assert_eq!(code, RefusalCode::UnknownId);
        assert!(sentence.contains(&pid.to_string()), "{sentence}");
    }
}

#[test]
fn a_program_that_ends_or_is_silent_makes_nobody_wait() {
    let mut bench = bench();
    let number = passed(&mut bench, apply());
    assert_eq!(bench.broker.deadline(), Some(bench.now + Duration::from_secs(2)));
    bench.after(Duration::from_secs(2));
    assert_eq!(refusal_of(bench.heard(1)).0, RefusalCode::Busy);
    assert_eq!(bench.broker.deadline(), None, "once");
    // The late answer is nobody's.
    let late = Message::FaultReport { number, result: Ok(FaultReport::default()) };
    bench.broker.message(bench.now, ClientId(2), 0, late, vec![]);
    assert!(bench.output().is_empty());
    // Few orders wait for a program that answers none.
    for _ in 0..8 {
        passed(&mut bench, FaultOrder::Show);
    }
    assert_eq!(refusal_of(bench.say(1, request(16, 102, FaultOrder::Show), vec![])).0, RefusalCode::Busy);
    bench.broker.died(bench.now, ProcessId(102));
    let sent = bench.heard(1);
    assert_eq!(sent.len(), 8);
    for message in sent {
        assert_eq!(refusal_of(vec![message]).0, RefusalCode::UnknownId);
    }
}

#[test]
fn an_asker_that_is_gone_is_forgotten() {
    let mut bench = bench();
    let number = passed(&mut bench, apply());
    bench.broker.disconnected(bench.now, ClientId(1));
    assert_eq!(bench.broker.deadline(), None);
    let report = Message::FaultReport { number, result: Ok(FaultReport::default()) };
    bench.broker.message(bench.now, ClientId(2), 0, report, vec![]);
    assert!(bench.output().is_empty());
}
