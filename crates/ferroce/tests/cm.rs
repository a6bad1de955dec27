//! Connections by IP address from Rust, in a network namespace of the test's own.

mod common;

use std::net::SocketAddr;
use std::thread;

use common::{address, in_namespace, readable, ready};
use ferroce::cm::{Connected, Connector, EndOptions, Listener};
use ferroce::error::{Device, Peer, System, Usage};
use ferroce::{Access, ErrorKind, EventKind, QpOptions, QpState, RejReason, RemoteMemory, Rkey, Status};

#[path = "../examples/rdma_echo.rs"]
#[allow(dead_code, reason = "its flags are not tried here")]
mod rdma_echo;

fn options() -> EndOptions {
    EndOptions::default().queues(QpOptions::default().max_recv_wr(4))
}

/// Connects both ends in this thread, without blocking calls.
fn pair(listener: &Listener, to: SocketAddr) -> (Connected, Connected) {
    let mut asking = Connector::new(to, &options()).unwrap().start(b"hello").unwrap();
    readable(listener);
    let request = listener.poll().unwrap();
    assert_eq!(&request.private_data()[..6], b"hello\0");
    assert_eq!(request.private_data().len(), ferroce::cm::REQUEST_PRIVATE_DATA);
    assert_eq!(request.local_addr().port(), listener.local_addr().port());
    let mut answering = request.prepare(&options()).unwrap().start(b"welcome").unwrap();
    readable(&asking);
    let active = asking.poll().unwrap().unwrap();
    assert_eq!(asking.poll().unwrap_err().kind(), ErrorKind::Peer(Peer::Ended));
    assert_eq!(&active.private_data()[..8], b"welcome\0");
    assert_eq!(active.private_data().len(), ferroce::cm::ACCEPT_PRIVATE_DATA);
    readable(&answering);
    let passive = answering.poll().unwrap().unwrap();
    assert_eq!(active.peer_addr().port(), listener.local_addr().port());
    assert_eq!((active.local_addr(), active.peer_addr()), (passive.peer_addr(), passive.local_addr()));
    (active, passive)
}

/// The code of the timer reaches the queue pair, which refuses one that IBTA table 45 does not have.
#[test]
fn the_rnr_timer_is_the_options() {
    if !in_namespace("the_rnr_timer_is_the_options") {
        return;
    }
    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    for (code, accepted) in [(31, true), (32, false)] {
        let mut asking = Connector::new(listener.local_addr(), &options().min_rnr_timer(code))
            .unwrap()
            .start(b"")
            .unwrap();
        readable(&listener);
        let _answering = listener.poll().unwrap().prepare(&options()).unwrap().start(b"").unwrap();
        readable(&asking);
        match asking.poll() {
            Ok(connected) => assert!(accepted && connected.is_some(), "{code}"),
            Err(error) => assert_eq!((accepted, error.kind()), (false, ErrorKind::Usage(Usage::Invalid))),
        }
    }
}

#[test]
fn both_ends_by_descriptors() {
    if !in_namespace("both_ends_by_descriptors") {
        return;
    }
    for (at, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        let listener = Listener::bind(address(at)).unwrap();
        assert!(listener.poll().is_none() && !ready(&listener));
        let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().port());
        let (mut active, mut passive) = pair(&listener, to);

        // Messages, and the peer's access rights.
        let target =
            passive.domain().register(vec![7; 64], Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        let buffer = active.domain().register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        active.queue_pair().read(1, &[buffer.slice(..)], target.remote(0)).unwrap();
        assert_eq!(active.queue_pair().send_queue().wait().unwrap().status, Status::Success);
        assert_eq!(buffer.to_vec(), [7; 64]);

        // One end disconnects, and the other is notified; a second call changes nothing.
        passive.queue_pair().post_recv(3, &[target.slice(..)]).unwrap();
        assert!(!active.poll_disconnected() && !passive.poll_disconnected());
        active.disconnect().unwrap();
        active.disconnect().unwrap();
        assert_eq!(active.queue_pair().state(), QpState::Error);
        let flushed = passive.queue_pair().receive_queue().wait().unwrap();
        passive.wait_disconnected().unwrap();
        assert!(passive.poll_disconnected());
        passive.disconnect().unwrap();
        assert_eq!((flushed.wr_id, flushed.status), (3, Status::WrFlushErr));
        active.wait_disconnected().unwrap();
    }
}

#[test]
fn refusals() {
    if !in_namespace("refusals") {
        return;
    }
    let nobody = Connector::new(address("127.0.0.1:4"), &options()).unwrap().connect(b"").unwrap_err();
    let rejected = |reason| ErrorKind::Peer(Peer::Rejected { reason });
    assert_eq!(nobody.kind(), rejected(RejReason::INVALID_SERVICE_ID));

    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    let to = listener.local_addr();
    let asking = Connector::new(to, &options()).unwrap();
    assert_ne!(asking.local_addr().port(), 0);
    let mut asking = asking.start(&[1; 56]).unwrap();
    listener.accept().unwrap().reject(b"no").unwrap();
    let error = asking.wait().unwrap_err();
    let private = error.private_data();
    assert_eq!(error.kind(), rejected(RejReason::CONSUMER));
    assert_eq!((&private[..3], private.len()), (&b"no\0"[..], ferroce::cm::REJECT_PRIVATE_DATA));
    // Dropping rejects the request, at each stage.
    for stage in 0..2 {
        let mut asking = Connector::new(to, &options()).unwrap().start(b"").unwrap();
        let request = listener.accept().unwrap();
        if stage == 0 {
            drop(request);
        } else {
            drop(request.prepare(&options()).unwrap());
        }
        assert_eq!(asking.wait().unwrap_err().kind(), rejected(RejReason::CONSUMER));
    }

    let long = Connector::new(to, &options()).unwrap().start(&[0; 57]).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Usage(Usage::TooLarge { given: 57, max: 56 }));
    let deep = Connector::new(to, &options().responder_resources(129)).unwrap_err();
    assert_eq!(deep.kind(), ErrorKind::Usage(Usage::TooLarge { given: 129, max: 128 }));
    let taken = Listener::bind(to).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Usage(Usage::AddressInUse));
    let foreign = Listener::bind(address("192.0.2.1:0")).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Device(Device::NoAddress));
    let nowhere = Connector::new(address("192.0.2.1:7"), &options()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::System(System::NoRoute));
    assert!(nowhere.raw_os_error().is_some(), "{nowhere:?}");
}

/// Dropping a connection disconnects the other end; domains and queues may be shared.
#[test]
fn dropped_connections_and_shared_queues() {
    if !in_namespace("dropped_connections_and_shared_queues") {
        return;
    }
    let listener = Listener::with_backlog(address("127.0.0.1:0"), 2).unwrap();
    let to = listener.local_addr();
    let device = Connector::device_for(to).unwrap();
    let domain = device.protection_domain().unwrap();
    let queue = device.completion_queue(64, None).unwrap();
    let shared = options().domain(domain.clone()).send_queue(queue.clone()).receive_queue(queue.clone());
    let server = thread::spawn(move || {
        let mut all = Vec::new();
        for _ in 0..3 {
            let request = listener.accept().unwrap();
            assert_eq!(request.device().unwrap().attributes().node_guid.len(), 8);
            all.push(request.prepare(&options()).unwrap().accept(b"").unwrap());
        }
        all.iter_mut().for_each(|connection| connection.wait_disconnected().unwrap());
    });
    let bound = Connector::bound(address("127.0.0.1:7999"), to, &shared).unwrap();
    assert_eq!(bound.local_addr(), address("127.0.0.1:7999"));
    let mut all = vec![bound.connect(b"").unwrap()];
    all.extend((0..2).map(|_| Connector::new(to, &shared).unwrap().connect(b"").unwrap()));
    drop(all);
    server.join().unwrap();
}

/// Connections over a device share a context, so that one thread can receive the asynchronous events of all.
#[test]
fn connections_share_a_context() {
    if !in_namespace("connections_share_a_context") {
        return;
    }
    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    let to = listener.local_addr();
    let (one, _one) = pair(&listener, to);
    let (two, peer) = pair(&listener, to);
    let events = one.domain().context();
    // A forbidden write is an event of the target's queue pair, on the first connection's context.
    let memory = two.domain().allocate(8, Access::LOCAL_WRITE).unwrap();
    let nowhere = RemoteMemory { addr: 0x1000, rkey: Rkey::new(0x1234_5678) };
    two.queue_pair().write(1, &[memory.slice(..)], nowhere).unwrap();
    assert_eq!(two.queue_pair().send_queue().wait().unwrap().status, Status::RemAccessErr);
    let event = loop {
        let event = events.wait_event().unwrap();
        if event.kind != EventKind::CommEst {
            break event;
        }
    };
    assert_eq!((event.kind, event.queue_pair()), (EventKind::QpAccessErr, Some(peer.queue_pair().qpn())));
}

#[test]
fn the_echo_example() {
    if !in_namespace("the_echo_example") {
        return;
    }
    let listener = Listener::bind(address("[::]:0")).unwrap();
    let port = listener.local_addr().port();
    let server = thread::spawn(move || rdma_echo::serve(&listener, 3).map_err(|error| error.to_string()));
    for to in ["127.0.0.1", "::1"] {
        rdma_echo::talk(SocketAddr::new(to.parse().unwrap(), port), 5000, 100).unwrap();
    }
    let refused = rdma_echo::talk(SocketAddr::new("::1".parse().unwrap(), port), 0, 1).unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");
    server.join().unwrap().unwrap();
}
