//! Completion queues and events from Rust, in a network namespace of the test's own.

mod common;

use common::{in_namespace, pair, pair_of};
use ferroce::error::{ErrorKind, Usage};
use ferroce::service::Rc;
use ferroce::{
    Access, Address, Connection, Context, Error, EventKind, EventSource, Imm, Moderation, Opcode, QpOptions,
    RemoteMemory, Rkey, SrqOptions, Status, WorkRequest,
};

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
    received.moderate(Moderation::default().count(2).period(u16::MAX));
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
    assert_eq!((event.kind, event.queue_pair()), (EventKind::QpAccessErr, Some(b.qpn())));
}

/// Events name their completion queue or shared receive queue by a handle.
#[test]
fn events_name_their_queues() {
    if !in_namespace("events_name_their_queues") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let sent = device.completion_queue(16, None).unwrap();
    let received = device.completion_queue(16, None).unwrap();
    let srqs = [0, 1].map(|_| domain.shared_receive_queue(SrqOptions::default()).unwrap());
    assert_ne!(srqs[0], srqs[1]);
    // The second one is below its limit as soon as one receive is taken.
    let options = QpOptions::default().max_send_wr(4);
    let sender = domain.rc_queue_pair(&sent, &sent, options).unwrap().init(Access::empty()).unwrap();
    let receiver = domain.queue_pair_on::<Rc>(&srqs[1], &sent, &received, options).unwrap();
    let receiver = receiver.init(Access::empty()).unwrap();
    let (here, there) = (sender.address(0).unwrap(), receiver.address(0).unwrap());
    let receiver = receiver.ready_to_receive(&Connection::to(there, here)).unwrap();
    let sender = sender.ready_to_receive(&Connection::to(here, there)).unwrap();
    let sender = sender.ready_to_send(Default::default()).unwrap();
    (0..2).for_each(|wr_id| srqs[1].post_recv(wr_id, &[]).unwrap());
    srqs[1].set_limit(2).unwrap();
    sender.send(1, &[]).unwrap();
    assert_eq!(received.wait().unwrap().status, Status::Success);
    let limit = loop {
        let event = device.wait_event().unwrap();
        if event.kind != EventKind::CommEst {
            break event;
        }
        assert_eq!(event.source, EventSource::QueuePair(receiver.qpn()));
    };
    assert_eq!(limit.kind, EventKind::SrqLimitReached);
    assert_eq!(limit.source, EventSource::SharedReceiveQueue(srqs[1].clone()));

    // A program that shrinks the queue below the needs of its queue pairs can overflow it.
    received.resize(1).unwrap();
    for wr_id in 0..3 {
        srqs[1].post_recv(wr_id, &[]).unwrap();
        sender.send(wr_id, &[]).unwrap();
    }
    let overflow = loop {
        sent.poll(&mut Vec::new(), 16).unwrap();
        let event = device.wait_event().unwrap();
        if event.kind == EventKind::CqErr {
            break event;
        }
    };
    assert_eq!(overflow.source, EventSource::CompletionQueue(received.clone()));
    assert!(overflow.source != EventSource::CompletionQueue(sent));
}

/// A completion queue of any size grows to the outstanding requests of its queue pairs.
#[test]
fn completion_queues_fit_their_queue_pairs() {
    if !in_namespace("completion_queues_fit_their_queue_pairs") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let done = device.completion_queue(16, None).unwrap();
    assert_eq!(done.capacity(), 16);
    let options = QpOptions::default();
    let (a, b) = pair(&domain, [&done, &done]);
    assert_eq!(done.capacity(), 2 * (options.max_send_wr + options.max_recv_wr));
    for wr_id in 0..128 {
        b.post_recv(wr_id, &[]).unwrap();
        a.send(wr_id, &[]).unwrap();
    }
    // Only polling shows that all of them completed.
    let mut all = Vec::new();
    while all.len() < 256 {
        done.poll(&mut all, 1).unwrap();
    }
    assert!(all.iter().all(|completion| completion.status == Status::Success));
    // Dropped queue pairs no longer count, and a shared receive queue counts once.
    drop((a, b));
    let srq = domain.shared_receive_queue(SrqOptions::default().max_wr(1000)).unwrap();
    let on_srq = [0, 1].map(|_| domain.queue_pair_on::<Rc>(&srq, &done, &done, options).unwrap());
    assert_eq!(done.capacity(), 1000 + 2 * options.max_send_wr);
    drop(on_srq);
    assert!(domain.rc_queue_pair(&done, &done, options.max_send_wr(1 << 20)).is_err());
    let received = device.completion_queue(1, None).unwrap();
    let xrc = device.xrc_domain().unwrap();
    let _srq = xrc.shared_receive_queue(&domain, &received, SrqOptions::default()).unwrap();
    let initiator = domain.xrc_initiator(&received, options).unwrap();
    assert_eq!(received.capacity(), 256);
    assert_eq!(initiator.send_queue(), &received);
}

/// `max_inline` is the limit of octets in a work request.
#[test]
fn work_requests_carry_octets() {
    if !in_namespace("work_requests_carry_octets") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let done = device.completion_queue(16, None).unwrap();
    let room = domain.allocate(512, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    for max_inline in [0, QpOptions::default().max_inline, 200] {
        let (a, b) = pair_of(&domain, [&done, &done], QpOptions::default().max_inline(max_inline));
        let octets: Vec<u8> = (0..=max_inline as u8).collect();
        let (fits, long) = (&octets[1..], &octets[..]);
        // A clone keeps the octets after the original is dropped.
        let imm = WorkRequest::send_imm(1, &[room.slice(..)], Imm([7; 4])).inline(fits);
        let clone = imm.clone();
        drop(imm);
        b.post_recv(2, &[room.slice(..128)]).unwrap();
        b.post_recv(3, &[room.slice(..)]).unwrap();
        a.post_send([&WorkRequest::write(0, &[], room.remote(512 - fits.len())).inline(fits)]).unwrap();
        a.send_inline(1, b"").unwrap();
        a.post_send([&clone]).unwrap();
        let mut all = Vec::new();
        while all.len() < 5 {
            done.wait_many(&mut all, 5).unwrap();
        }
        assert!(all.iter().all(|completion| completion.status == Status::Success), "{all:?}");
        let received =
            all.iter().find(|completion| completion.opcode == Opcode::Recv && completion.wr_id == 3);
        assert_eq!(received.unwrap().len as usize, fits.len());
        let memory = room.to_vec();
        assert_eq!(&memory[..fits.len()], fits);
        assert_eq!(&memory[512 - fits.len()..], fits);
        let error = a.send_inline(4, long).unwrap_err();
        assert!(!error.is_queue_full());
        let too_large = Usage::TooLarge { given: long.len() as u64, max: max_inline.into() };
        assert_eq!((error.kind(), error.index()), (ErrorKind::Usage(too_large), Some(0)));
    }
}

#[test]
fn a_full_queue_can_be_told() {
    if !in_namespace("a_full_queue_can_be_told") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let done = device.completion_queue(1, None).unwrap();
    let sizes = QpOptions::default().max_send_wr(4).max_recv_wr(3);
    let (a, _b) = pair_of(&domain, [&done, &done], sizes);
    let refused = |post: &dyn Fn() -> Result<(), Error>| {
        for posted in 0.. {
            if let Err(error) = post() {
                return (posted, error);
            }
        }
        unreachable!();
    };
    // The peer has no receive, so nothing completes.
    for (posted, error) in [refused(&|| a.send(1, &[])), refused(&|| a.post_recv(1, &[]))] {
        assert!(error.is_queue_full(), "{error}");
        assert!((3..=4).contains(&posted));
    }
    assert!(!a.send_inline(1, &[0; 65]).unwrap_err().is_queue_full());
}

/// The path MTU is the smaller of both ends.
#[test]
fn addresses_carry_the_mtu() {
    if !in_namespace("addresses_carry_the_mtu") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let done = device.completion_queue(1, None).unwrap();
    let qp = domain.rc_queue_pair(&done, &done, QpOptions::default()).unwrap();
    let local = qp.address(0).unwrap();
    assert_eq!(local.mtu, device.port().unwrap().active_mtu);
    let remote = Address::from_bytes(&local.to_bytes()).unwrap();
    assert_eq!(Connection::to(local, remote).path_mtu, local.mtu);
}

#[test]
fn objects_have_debug() {
    if !in_namespace("objects_have_debug") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let done = device.completion_queue(1, None).unwrap();
    let qp = domain.rc_queue_pair(&done, &done, QpOptions::default()).unwrap();
    let text = format!("{qp:?} {device:?} {domain:?} {done:?}");
    assert!(text.starts_with("QueuePair { qpn: ") && text.contains("device: \"fr0\""), "{text}");
}
