//! RC, UC and UD on a shared receive queue (IBTA 10.2.9).

use std::sync::Arc;

use ferroce_proto::{DropReason, PostRecvError, QpState, RecvWr, Service};
use ferroce_wire::{Bth, Deth, Operation, Psn, Qkey, Request, SendTail, UdPacket};

use crate::probe::{DATA, HOME, KEY, PEER, Probe, QPN, Queue, Source, THEIRS};

fn on(queue: &Arc<Queue>, service: Service) -> Probe {
    let source = Source::Queue(Arc::clone(queue));
    Probe::new(service, source, &[HOME, 9]).bring(service, QpState::Rts)
}

fn send(payload: &[u8]) -> Request<'_> {
    Request::SendOnly { payload, tail: SendTail::None }
}

#[test]
fn wqes_are_taken_in_order_by_whoever_asks() {
    let queue = Queue::new(8, HOME);
    let (mut a, mut b) = (on(&queue, Service::Rc), on(&queue, Service::Rc));
    (0..4).for_each(|wr_id| queue.post(wr_id, 2048));
    // A message takes its WQE with its first packet: the other's message comes between.
    a.request(0, None, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    b.request(0, None, send(&DATA[..10])).unwrap();
    a.request(1, None, Request::SendLast { payload: &DATA[..10], tail: SendTail::None }).unwrap();
    a.request(2, None, send(&[])).unwrap();
    assert_eq!(b.events(), ["recv 1 Success"]);
    assert_eq!(a.events(), ["recv 0 Success", "recv 2 Success"]);
    assert_eq!((a.out(), b.out()), (vec!["rc: Ack 2".to_owned()], vec!["rc: Ack 0".to_owned()]));
    assert_eq!(queue.len(), 1);
}

#[test]
fn an_empty_queue_is_an_rnr_nak_and_nothing_is_lost() {
    let queue = Queue::new(8, HOME);
    let mut a = on(&queue, Service::Rc);
    assert_eq!(a.request(0, None, send(&DATA[..4])), Err(DropReason::ReceiverNotReady));
    assert_eq!(a.out(), ["rc: Rnr 12 0"]);
    queue.post(5, 4);
    assert_eq!(a.request(0, None, send(&DATA[..4])), Ok(()));
    assert_eq!((a.events(), a.out()), (vec!["recv 5 Success".to_owned()], vec!["rc: Ack 0".to_owned()]));
}

/// The queue's memory is of its own protection domain, the queue pair's other memory of its own.
#[test]
fn memory_is_of_the_queue_s_domain() {
    let queue = Queue::new(8, 9);
    let mut a = on(&queue, Service::Rc);
    queue.post(1, 64);
    a.request(0, None, send(&DATA[..64])).unwrap();
    assert_eq!(a.events(), ["recv 1 Success"]);
    assert_eq!(a.mem.of(9).bytes(KEY)[..64], DATA[..64]);
    a.request(
        1,
        None,
        Request::WriteOnly { reth: crate::probe::reth(100, 4), payload: &DATA[4..8], imm: None },
    )
    .unwrap();
    assert_eq!(a.mem.of(HOME).bytes(KEY)[100..104], DATA[4..8]);
    assert_eq!(a.mem.of(HOME).bytes(KEY)[..64], [0; 64]);
    a.mem.of(9).deregister(KEY);
    queue.post(2, 64);
    queue.post(3, 64);
    assert_eq!(a.request(2, None, send(&DATA[..64])), Err(DropReason::Refused));
    assert_eq!(a.out(), ["rc: Ack 1", "rc: Nak 0x63 2"]);
    assert_eq!(a.events(), ["recv 2 LocProtErr", "QpLastWqeReached"]);
    assert_eq!(queue.len(), 1, "those not in use stay");
}

/// One LAST_WQE_REACHED comes behind the flush of the WQE in use, which is not given back.
#[test]
fn only_the_wqe_in_use_flushes_and_last_wqe_reached_comes_once() {
    let queue = Queue::new(8, HOME);
    let mut a = on(&queue, Service::Rc);
    (0..3).for_each(|wr_id| queue.post(wr_id, 4096));
    a.request(0, None, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    a.to(QpState::Error);
    a.to(QpState::Error);
    assert_eq!(a.events(), ["recv 0 WrFlushErr", "QpLastWqeReached"]);
    assert_eq!(queue.len(), 2);
    assert_eq!(a.qp.post_recv(&RecvWr { wr_id: 9, sges: &[] }), Err(PostRecvError::Shared));
    assert_eq!(a.events(), [""; 0]);
    // RESET forgets, a new life has its own.
    a.to(QpState::Reset);
    let mut a = a.bring(Service::Rc, QpState::Init);
    a.to(QpState::Error);
    assert_eq!(a.events(), ["QpLastWqeReached"]);
    a.to(QpState::Reset);
    assert_eq!(a.events(), [""; 0]);
}

/// A bound WQE is not given back when its message turns out bad either.
#[test]
fn a_message_too_long_uses_up_its_wqe() {
    let queue = Queue::new(8, HOME);
    let mut a = on(&queue, Service::Rc);
    (0..2).for_each(|wr_id| queue.post(wr_id, 8));
    assert_eq!(a.request(0, None, send(&DATA[..9])), Err(DropReason::Refused));
    assert_eq!(a.out(), ["rc: Nak 0x61 0"]);
    assert_eq!(a.events(), ["recv 0 LocLenErr", "QpLastWqeReached"]);
    assert_eq!(queue.len(), 1);
}

#[test]
fn a_failed_queue_is_our_fault() {
    let queue = Queue::new(8, HOME);
    let mut a = on(&queue, Service::Rc);
    queue.post(0, 8);
    queue.0.lock().unwrap().fail();
    assert_eq!(a.request(0, None, send(&DATA[..4])), Err(DropReason::Refused));
    assert_eq!(a.out(), ["rc: Nak 0x63 0"]);
    assert_eq!(a.events(), ["QpLastWqeReached"]);
}

#[test]
fn uc_drops_without_a_wqe() {
    let queue = Queue::new(8, 9);
    let mut a = on(&queue, Service::Uc);
    let bth = |psn| Bth::new(QPN, Psn::new(THEIRS).add(psn));
    assert_eq!(a.give(bth(0), Operation::Uc(send(&DATA[..4]))), Err(DropReason::NoReceiveWqe));
    queue.post(1, 8);
    assert_eq!(a.give(bth(1), Operation::Uc(send(&DATA[..4]))), Ok(()));
    assert_eq!(a.events(), ["recv 1 Success"]);
    assert_eq!(a.mem.of(9).bytes(KEY)[..4], DATA[..4]);
    a.to(QpState::Error);
    assert_eq!(a.events(), ["QpLastWqeReached"]);
}

#[test]
fn ud_drops_without_a_wqe() {
    let queue = Queue::new(8, 9);
    let mut a = on(&queue, Service::Ud);
    let deth = Deth { qkey: Qkey::new(7), src_qp: PEER };
    let datagram = UdPacket { deth, payload: &DATA[..4], imm: None };
    let give = |a: &mut Probe| a.give(Bth::new(QPN, Psn::new(0)), Operation::Ud(datagram));
    assert_eq!(give(&mut a), Err(DropReason::NoReceiveWqe));
    queue.post(1, 44);
    assert_eq!(give(&mut a), Ok(()));
    assert_eq!(a.events(), ["recv 1 Success"]);
    assert_eq!(a.mem.of(9).bytes(KEY)[40..44], DATA[..4]);
    queue.post(2, 43);
    assert_eq!(give(&mut a), Err(DropReason::TooLong));
    assert_eq!(queue.len(), 1, "the WQE is there for the next datagram, of any queue pair");
    a.to(QpState::Error);
    assert_eq!(a.events(), ["QpLastWqeReached"]);
}
