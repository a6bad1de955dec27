//! Datagrams between ends that resolve each other by IP address, in a network namespace of the test's own.

mod common;

use std::net::SocketAddr;
use std::thread;

use common::{address, in_namespace, readable, ready};
use ferroce::cm::{DatagramConnector, DatagramListener, Listener};
use ferroce::error::{Device, Peer, System, Usage};
use ferroce::service::Ud;
use ferroce::{
    Access, Context, Error, ErrorKind, HEADER, ProtectionDomain, Qkey, QpOptions, QueuePair, ReadyToSend,
    SidrStatus, Status,
};

#[path = "../examples/udaddy.rs"]
#[allow(dead_code, reason = "its flags are not tried here")]
mod udaddy;

/// A queue pair with its own Q_Key.
fn queue_pair(device: &Context, key: u32) -> (QueuePair<ReadyToSend, Ud>, ProtectionDomain) {
    let domain = device.protection_domain().unwrap();
    let queue = || device.completion_queue(8, Some(&device.completion_channel().unwrap())).unwrap();
    let sizes = QpOptions::default().max_send_wr(4).max_recv_wr(4);
    let qp = domain.ud_queue_pair(&queue(), &queue(), sizes).unwrap().init(Qkey::new(key)).unwrap();
    (qp.ready_to_receive().unwrap().ready_to_send().unwrap(), domain)
}

#[test]
fn both_ends_by_descriptors() {
    if !in_namespace("both_ends_by_descriptors") {
        return;
    }
    for (at, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        let listener = DatagramListener::bind(address(at)).unwrap();
        assert!(listener.poll().is_none() && !ready(&listener));
        let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().port());

        let connector = DatagramConnector::new(to).unwrap().traffic_class(32);
        let asking_from = connector.local_addr();
        let (asking, domain) = queue_pair(&connector.device().unwrap(), 0x77);
        let mut pending = connector.start(b"hello").unwrap();
        assert!(pending.poll().unwrap().is_none());
        readable(&listener);
        let request = listener.poll().unwrap();
        assert_eq!((request.peer_addr(), request.local_addr()), (asking_from, to));
        assert_eq!(&request.private_data()[..6], b"hello\0");
        assert_eq!(request.private_data().len(), ferroce::cm::DATAGRAM_REQUEST_PRIVATE_DATA);
        let (answering, their_domain) = queue_pair(&request.device().unwrap(), 0x1234);
        let memory = their_domain.register(vec![0; HEADER + 8], Access::LOCAL_WRITE).unwrap();
        answering.post_recv(1, &[memory.slice(..)]).unwrap();
        request.answer(&answering, b"welcome").unwrap();
        readable(&pending);
        let peer = pending.poll().unwrap().unwrap();
        assert_eq!(pending.poll().unwrap_err().kind(), ErrorKind::Peer(Peer::Ended));
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Peer(Peer::Ended));
        assert_eq!((peer.qpn, peer.qkey), (answering.qpn(), Qkey::new(0x1234)));
        assert_eq!((peer.local_addr(), peer.peer_addr()), (asking_from, to));
        assert_eq!(&peer.private_data()[..8], b"welcome\0");
        assert_eq!(peer.private_data().len(), ferroce::cm::DATAGRAM_ANSWER_PRIVATE_DATA);

        // To the peer, and back to the sender.
        let there = peer.address_handle(&domain).unwrap();
        let buffer = domain.register(*b"datagram", Access::LOCAL_WRITE).unwrap();
        asking.send_to(2, &[buffer.slice(..)], &there, peer.qpn, peer.qkey).unwrap();
        let came = answering.receive_queue().wait().unwrap();
        assert_eq!((came.status, came.src_qp), (Status::Success, asking.qpn()));
        let octets = memory.to_vec();
        assert_eq!(&octets[HEADER..], b"datagram");
        let back = their_domain.answer(octets[..HEADER].try_into().unwrap()).unwrap();
        let returned = domain.register(vec![0; HEADER + 8], Access::LOCAL_WRITE).unwrap();
        asking.post_recv(3, &[returned.slice(..)]).unwrap();
        let answer = [memory.slice(HEADER..)];
        answering.send_to(4, &answer, &back, came.src_qp, Qkey::new(0x77)).unwrap();
        assert_eq!(asking.receive_queue().wait().unwrap().status, Status::Success);
        assert_eq!(&returned.to_vec()[HEADER..], b"datagram");
    }
}

#[test]
fn refusals() {
    if !in_namespace("refusals") {
        return;
    }
    let refused = |error: &Error| match error.kind() {
        ErrorKind::Peer(Peer::Refused { status }) => status,
        _ => panic!("{error:?}"),
    };
    let nobody = DatagramConnector::new(address("127.0.0.1:4")).unwrap().ask(b"").unwrap_err();
    assert!(nobody.to_string().starts_with("the peer refused: no program listens"), "{nobody}");
    assert_eq!(refused(&nobody), SidrStatus::UNSUPPORTED);

    // A listener for connections does not answer here, and does not occupy the port.
    let connections = Listener::bind(address("127.0.0.1:0")).unwrap();
    let to = connections.local_addr();
    let nobody = DatagramConnector::new(to).unwrap().ask(b"").unwrap_err();
    assert_eq!(refused(&nobody), SidrStatus::UNSUPPORTED);
    let listener = DatagramListener::with_backlog(to, 2).unwrap();
    let taken = DatagramListener::bind(to).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Usage(Usage::AddressInUse));

    let mut asking = DatagramConnector::new(to).unwrap().start(&[1; 180]).unwrap();
    listener.accept().unwrap().reject(b"no").unwrap();
    let error = asking.wait().unwrap_err();
    let private = error.private_data();
    assert_eq!(refused(&error), SidrStatus::REJECTED);
    assert_eq!((&private[..3], private.len()), (&b"no\0"[..], ferroce::cm::DATAGRAM_ANSWER_PRIVATE_DATA));
    // Dropping rejects the request.
    let mut asking = DatagramConnector::new(to).unwrap().start(b"").unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(refused(&asking.wait().unwrap_err()), SidrStatus::REJECTED);
    // A dropped request releases its port.
    let bound = DatagramConnector::bound(address("127.0.0.1:7999"), to).unwrap();
    assert_eq!(bound.local_addr(), address("127.0.0.1:7999"));
    let twice = DatagramConnector::bound(address("127.0.0.1:7999"), to).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Usage(Usage::AddressInUse));
    drop(bound.start(b"").unwrap());
    drop(DatagramConnector::bound(address("127.0.0.1:7999"), to).unwrap());

    let long = DatagramConnector::new(to).unwrap().start(&[0; 181]).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Usage(Usage::TooLarge { given: 181, max: 180 }));
    let nowhere = DatagramConnector::new(address("192.0.2.1:7")).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::System(System::NoRoute));
    let foreign = DatagramListener::bind(address("192.0.2.1:0")).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Device(Device::NoAddress));
}

#[test]
fn the_udaddy_example() {
    if !in_namespace("the_udaddy_example") {
        return;
    }
    let listener = DatagramListener::bind(address("[::]:0")).unwrap();
    let port = listener.local_addr().port();
    let server = thread::spawn(move || {
        (0..2).try_for_each(|_| udaddy::serve(&listener, 20, 1000)).map_err(|error| error.to_string())
    });
    for to in ["127.0.0.1", "::1"] {
        udaddy::talk(SocketAddr::new(to.parse().unwrap(), port), 20, 1000).unwrap();
    }
    server.join().unwrap().unwrap();
}
