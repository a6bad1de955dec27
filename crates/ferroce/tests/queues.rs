//! Completion queues and events from Rust, in a network namespace of the test's own.

mod common;

use common::{in_namespace, pair};
use ferroce::{Access, Context, EventKind, Moderation, RemoteMemory, Rkey, Status};

#[test]
fn completions_have_times_and_events_wait_for_company() {
    if !in_namespace("completions_have_times_and_events_wait_for_company") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(16, None).unwrap();
    let received = device.completion_queue(4, Some(&channel)).unwrap();
    let (a, b) = pair(&device.protection_domain().unwrap(), [&sent, &received]);
    received.resize(64).unwrap();
    received.moderate(Moderation { count: 2, period: u16::MAX });
    received.request_event();
    let before = device.clock();
    for wr_id in 0..2 {
        b.post_recv(wr_id, &[]).unwrap();
        a.send(wr_id, &[]).unwrap();
    }
    channel.wait().unwrap();
    let mut last = before;
    for wr_id in 0..2 {
        let (completion, at) = received.poll_timed().unwrap().expect("both are there");
        assert_eq!((completion.wr_id, completion.status), (wr_id, Status::Success));
        assert!(last <= at && at <= device.clock());
        last = at;
    }
    assert!(received.poll_timed().unwrap().is_none());
    assert!(received.resize(0).is_err());
}

#[test]
fn what_the_peer_does_wrong_is_an_event() {
    if !in_namespace("what_the_peer_does_wrong_is_an_event") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let queues = [device.completion_queue(16, None).unwrap(), device.completion_queue(16, None).unwrap()];
    let domain = device.protection_domain().unwrap();
    let (a, b) = pair(&domain, [&queues[0], &queues[1]]);
    let memory = domain.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
    let nowhere = RemoteMemory { addr: 0x1000, rkey: Rkey::new(0x1234_5678) };
    a.write(1, &[memory.slice(..)], nowhere).unwrap();
    assert_eq!(queues[0].wait().unwrap().status, Status::RemAccessErr);
    let event = device.wait_event().unwrap();
    assert_eq!((event.kind, event.queue_pair), (EventKind::QpAccessErr, Some(b.qpn())));
}
