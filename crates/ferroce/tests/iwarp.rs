//! A connection between iWARP devices from Rust, in a network namespace of the test's own.

mod common;

use common::{add_iwarp_device, address, in_namespace};
use ferroce::cm::{Connector, EndOptions, Listener};
use ferroce::error::{ErrorKind, Peer, Usage};
use ferroce::{Access, QpState, RejReason, Status, Transport, WorkRequest};

#[test]
fn both_ends_by_iwarp() {
    if !in_namespace("both_ends_by_iwarp") {
        return;
    }
    add_iwarp_device();
    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    let to = listener.local_addr();
    let options = EndOptions::default();
    let mut asking = Connector::new(to, &options).unwrap().start(b"hello").unwrap();
    let request = listener.accept().unwrap();
    assert_eq!(request.private_data(), b"hello");
    let mut answering = request.prepare(&options).unwrap().start(b"welcome").unwrap();
    let mut active = asking.wait().unwrap();
    let mut passive = answering.wait().unwrap();
    assert_eq!((active.private_data(), passive.private_data()), (&b"welcome"[..], &b""[..]));
    assert_eq!((active.local_addr(), active.peer_addr()), (passive.peer_addr(), passive.local_addr()));
    assert_eq!(active.domain().context().attributes().transport, Transport::Iwarp);

    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let target = passive.domain().register(vec![7; 64], rights).unwrap();
    let buffer = active.domain().register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
    active.queue_pair().read(1, &[buffer.slice(..)], target.remote(0)).unwrap();
    assert_eq!(active.queue_pair().send_queue().wait().unwrap().status, Status::Success);
    assert_eq!(buffer.to_vec(), [7; 64]);
    let add = WorkRequest::fetch_add(2, buffer.slice(..8), target.remote(0), 1);
    active.queue_pair().post_send([&add]).unwrap();
    assert_eq!(active.queue_pair().send_queue().wait().unwrap().status, Status::Success);

    passive.queue_pair().post_recv(3, &[target.slice(..)]).unwrap();
    assert!(!active.poll_disconnected() && !passive.poll_disconnected());
    active.disconnect().unwrap();
    active.disconnect().unwrap();
    assert_eq!(active.queue_pair().state(), QpState::Error);
    let flushed = passive.queue_pair().receive_queue().wait().unwrap();
    passive.wait_disconnected().unwrap();
    passive.disconnect().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (3, Status::WrFlushErr));
    active.wait_disconnected().unwrap();
}

#[test]
fn refusals_by_iwarp() {
    if !in_namespace("refusals_by_iwarp") {
        return;
    }
    add_iwarp_device();
    let options = EndOptions::default();
    let nobody = Connector::new(address("127.0.0.1:4"), &options).unwrap().connect(b"").unwrap_err();
    let rejected = |reason| ErrorKind::Peer(Peer::Rejected { reason });
    assert_eq!(nobody.kind(), rejected(RejReason::INVALID_SERVICE_ID));
    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    let to = listener.local_addr();
    let mut asking = Connector::new(to, &options).unwrap().start(&[1; 251]).unwrap();
    listener.accept().unwrap().reject(b"no").unwrap();
    let error = asking.wait().unwrap_err();
    assert_eq!((error.kind(), error.private_data()), (rejected(RejReason::CONSUMER), &b"no"[..]));
    let long = Connector::new(to, &options).unwrap().start(&[0; 252]).unwrap_err();
    assert!(matches!(long.kind(), ErrorKind::Usage(Usage::TooLarge { given: 252, .. })), "{long}");
}
