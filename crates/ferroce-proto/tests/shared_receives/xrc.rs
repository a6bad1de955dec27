//! XRC: initiators, targets, and the queues that requests name (IBTA A14).

use std::sync::Arc;

use ferroce_proto::{
    CreateQpError, DropReason, PostRecvError, QpAttrMask, QpState, QueuePair, RecvWr, SendOp, SendTo,
    Service, SharedReceives,
};
use ferroce_wire::{
    Aeth, AtomicEth, Bth, CreditCode, Imm, Msn, Operation, Psn, RcPacket, Request, Response, Rkey, SendTail,
    SrqNumber, Syndrome,
};

use crate::probe::{BASE, DATA, HOME, KEY, Probe, QPN, Source, THEIRS, Xrcd, attr, mask, remote, reth};

pub fn target_in(xrcd: &Arc<Xrcd>, own_memory: bool, state: QpState) -> Probe {
    let source = Source::Xrc { xrcd: Arc::clone(xrcd), own_memory };
    Probe::new(Service::XrcTarget, source, &[HOME, 8, 9]).bring(Service::XrcTarget, state)
}

fn target(xrcd: &Arc<Xrcd>, own_memory: bool) -> Probe {
    target_in(xrcd, own_memory, QpState::Rtr)
}

pub fn initiator_in(state: QpState) -> Probe {
    Probe::new(Service::XrcInitiator, Source::Own, &[HOME]).bring(Service::XrcInitiator, state)
}

fn send(payload: &[u8]) -> Request<'_> {
    Request::SendOnly { payload, tail: SendTail::None }
}

fn to(number: u32) -> SendTo {
    SendTo::XrcSrq(SrqNumber::new(number))
}

fn ack() -> Response<'static> {
    Response::Acknowledge {
        aeth: Aeth { syndrome: Syndrome::Ack { credits: CreditCode::UNLIMITED }, msn: Msn::new(1) },
    }
}

#[test]
fn each_request_takes_from_the_queue_it_names() {
    let xrcd = Arc::new(Xrcd::default());
    let (first, second) = (xrcd.add(5, HOME), xrcd.add(6, 9));
    let mut a = target(&xrcd, true);
    first.post(50, 4096);
    second.post(60, 64);
    a.request(0, Some(6), send(&DATA[..64])).unwrap();
    a.request(1, Some(5), Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    a.request(2, Some(5), Request::SendLast { payload: &DATA[..8], tail: SendTail::Imm(Imm([1; 4])) })
        .unwrap();
    assert_eq!(a.events(), ["recv 60 Success on 6", "recv 50 Success on 5"]);
    assert_eq!(a.mem.of(9).bytes(KEY)[..64], DATA[..64]);
    assert_eq!(a.mem.of(HOME).bytes(KEY)[..1024], DATA[..1024]);
    assert_eq!(a.out(), ["xrc: Ack 2"]);
    assert_eq!(a.request(3, Some(5), send(&[])), Err(DropReason::ReceiverNotReady));
    assert_eq!(a.out(), ["xrc: Rnr 12 3"]);
}

/// The peer gets NAK 0x61, and the program an access event where no WQE can report it (IBTA A14).
#[test]
fn a_queue_that_is_not_there_is_an_invalid_request() {
    let write = Request::WriteOnly { reth: reth(0, 4), payload: &DATA[..4], imm: None };
    for request in [send(&[]), write, Request::ReadRequest { reth: reth(0, 4) }] {
        let xrcd = Arc::new(Xrcd::default());
        xrcd.add(5, HOME).post(1, 64);
        let mut a = target(&xrcd, true);
        assert_eq!(a.request(0, Some(7), request), Err(DropReason::Refused));
        assert_eq!(a.out(), ["xrc: Nak 0x61 0"]);
        assert_eq!(a.events(), ["QpAccessErr", "QpLastWqeReached"]);
        assert_eq!(a.qp.state(), QpState::Error);
        assert_eq!(a.mem.of(HOME).bytes(KEY)[..4], [0; 4]);
    }
}

/// A message goes on in the queue it began in; one that ended takes the message with it.
#[test]
fn a_message_cannot_change_its_queue() {
    for (gone, next) in [(false, 6), (true, 5)] {
        let xrcd = Arc::new(Xrcd::default());
        let (first, second) = (xrcd.add(5, HOME), xrcd.add(6, HOME));
        first.post(50, 4096);
        second.post(60, 4096);
        let mut a = target(&xrcd, true);
        a.request(0, Some(5), Request::SendFirst { payload: &DATA[..1024] }).unwrap();
        if gone {
            xrcd.0.lock().unwrap().remove(&5);
        }
        let last = Request::SendLast { payload: &DATA[..8], tail: SendTail::None };
        assert_eq!(a.request(1, Some(next), last), Err(DropReason::Refused));
        assert_eq!(a.out().last().unwrap(), "xrc: Nak 0x61 1");
        assert_eq!(a.events(), ["recv 50 WrFlushErr on 5", "QpLastWqeReached"]);
        assert_eq!(second.len(), 1);
        assert_eq!(a.mem.of(HOME).bytes(KEY)[1024..1032], [0; 8]);
    }
}

/// Without a protection domain of its own, a target looks for keys in that of the queue: also when it answers READs
/// later, or again.
#[test]
fn remote_keys_are_of_the_queue_s_domain_where_the_target_has_none() {
    let xrcd = Arc::new(Xrcd::default());
    xrcd.add(5, 8);
    xrcd.add(6, 9);
    let mut a = target(&xrcd, false);
    a.mem.of(HOME).deregister(KEY);
    for (psn, number) in [(0, 5), (1, 6)] {
        let payload = &DATA[psn as usize * 8..][..8];
        a.request(psn, Some(number), Request::WriteOnly { reth: reth(0, 8), payload, imm: None }).unwrap();
    }
    assert_eq!(a.mem.of(8).bytes(KEY)[..8], DATA[..8]);
    assert_eq!(a.mem.of(9).bytes(KEY)[..8], DATA[8..16]);
    // Two READs of different domains wait for their answers together.
    a.mem.of(8).deregister(KEY);
    a.mem.of(8).register(KEY, BASE, vec![8; 64]);
    a.mem.of(9).deregister(KEY);
    a.mem.of(9).register(KEY, BASE, vec![9; 2048]);
    a.request(2, Some(5), Request::ReadRequest { reth: reth(0, 64) }).unwrap();
    a.request(3, Some(6), Request::ReadRequest { reth: reth(0, 2048) }).unwrap();
    let answers = ["xrc: ReadOnly[64] 2", "xrc: ReadFirst[1024] 3", "xrc: ReadLast[1024] 4"];
    assert_eq!(a.out(), ["xrc: Ack 1", answers[0], answers[1], answers[2]]);
    assert_eq!(
        a.request(2, Some(5), Request::ReadRequest { reth: reth(0, 64) }),
        Err(DropReason::DuplicateRequest)
    );
    assert_eq!(a.out(), [answers[0]]);
    let atomic = AtomicEth { va: BASE, rkey: Rkey::new(KEY), swap_or_add: 1, compare: 0 };
    a.request(5, Some(6), Request::FetchAdd { atomic }).unwrap();
    assert_eq!(a.mem.of(9).bytes(KEY)[0], 10);
    assert_eq!(a.mem.of(8).bytes(KEY)[0], 8);
}

/// The key that a send ends is looked for where the queue's memory is, behind the data.
#[test]
fn send_with_invalidate_ends_a_key_of_the_queue_s_domain() {
    let xrcd = Arc::new(Xrcd::default());
    xrcd.add(5, 8).post(1, 64);
    let mut a = target(&xrcd, false);
    a.mem.of(8).register(77, 0, vec![0; 8]).window = true;
    let tail = SendTail::Invalidate(Rkey::new(77));
    a.request(0, Some(5), Request::SendOnly { payload: &DATA[..8], tail }).unwrap();
    assert_eq!(a.events(), ["recv 1 Success on 5"]);
    assert!(a.mem.of(8).regions.iter().all(|region| region.key != 77));
}

#[test]
fn an_initiator_names_the_queue_in_every_request() {
    let mut a = initiator_in(QpState::Rts);
    a.post(1, SendOp::Send, to(5), 2000).unwrap();
    a.post(2, SendOp::WriteImm { remote: remote(0), imm: Imm([0; 4]) }, to(6), 8).unwrap();
    a.post(3, SendOp::Read { remote: remote(0) }, to(5), 1500).unwrap();
    a.post(4, SendOp::FetchAdd { remote: remote(0), add: 1 }, to(0xff_ffff), 8).unwrap();
    assert_eq!(
        a.out(),
        [
            "xrc 5: SendFirst[1024] 0",
            "xrc 5: SendLast[976] 1",
            "xrc 6: WriteOnlyImm[8] 2",
            "xrc 5: ReadRequest[0] 3",
            "xrc 16777215: FetchAdd[0] 5",
        ]
    );
    a.response(2, ack()).unwrap();
    assert_eq!(a.events(), ["send 1 Success", "send 2 Success"]);
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: CreditCode::UNLIMITED }, msn: Msn::new(3) };
    a.response(3, Response::ReadFirst { aeth, payload: &DATA[..1024] }).unwrap();
    a.response(4, Response::ReadLast { aeth, payload: &DATA[1024..1500] }).unwrap();
    a.response(5, Response::AtomicAcknowledge { aeth, original: 3 }).unwrap();
    assert_eq!(a.events(), ["send 3 Success", "send 4 Success"]);
    // Local operations go to nobody.
    a.mem.of(HOME).register(77, 0, vec![0; 8]).window = true;
    a.post(5, SendOp::LocalInvalidate(Rkey::new(77)), SendTo::Peer, 0).unwrap();
    assert_eq!((a.out(), a.events()), (vec![], vec!["send 5 Success".to_owned()]));
}

/// Each half has its direction; what goes the other way, or is RC's, is dropped and counted.
#[test]
fn halves_take_only_their_half() {
    let xrcd = Arc::new(Xrcd::default());
    xrcd.add(5, HOME).post(1, 64);
    let mut target = target(&xrcd, true);
    assert_eq!(target.response(0, ack()), Err(DropReason::WrongService));
    assert_eq!(target.request(0, None, send(&[])), Err(DropReason::WrongService));
    let mut initiator = initiator_in(QpState::Rts);
    initiator.post(1, SendOp::Send, to(5), 8).unwrap();
    initiator.out();
    assert_eq!(initiator.request(0, Some(5), send(&[])), Err(DropReason::WrongService));
    let rc = Operation::Rc(RcPacket::Response(ack()));
    assert_eq!(
        initiator.give(Bth::new(QPN, Psn::new(crate::probe::OURS)), rc),
        Err(DropReason::WrongService)
    );
    let mut rc = Probe::new(Service::Rc, Source::Own, &[HOME]).bring(Service::Rc, QpState::Rts);
    assert_eq!(rc.request(0, Some(5), send(&[])), Err(DropReason::WrongService));
    let uc = Bth::new(QPN, Psn::new(THEIRS));
    assert_eq!(target.give(uc, Operation::Uc(send(&[]))), Err(DropReason::WrongService));
    for probe in [&mut target, &mut initiator, &mut rc] {
        assert_eq!((probe.out(), probe.events()), (vec![], vec![]));
    }
}

#[test]
fn what_cannot_be_posted_or_made() {
    let xrcd = Arc::new(Xrcd::default());
    let recv = RecvWr { wr_id: 0, sges: &[] };
    let (mut target, mut initiator) = (target_in(&xrcd, true, QpState::Rts), initiator_in(QpState::Rts));
    assert_eq!(target.qp.post_recv(&recv), Err(PostRecvError::Xrc));
    assert_eq!(initiator.qp.post_recv(&recv), Err(PostRecvError::Xrc));
    assert!(target.post(1, SendOp::Send, to(5), 0).is_err());
    assert!(initiator.post(1, SendOp::Send, SendTo::Peer, 0).is_err(), "it names no queue");
    let mut rc = Probe::new(Service::Rc, Source::Own, &[HOME]).bring(Service::Rc, QpState::Rts);
    assert!(rc.post(1, SendOp::Send, to(5), 0).is_err());
    let named = Some(SharedReceives::XrcDomain { max_sge: 2, own_memory: true });
    let shared = Some(SharedReceives::Queue { max_sge: 2 });
    for (service, srq) in [
        (Service::Rc, named),
        (Service::Ud, named),
        (Service::XrcInitiator, named),
        (Service::XrcInitiator, shared),
        (Service::XrcTarget, shared),
        (Service::XrcTarget, None),
    ] {
        let config = ferroce_proto::QpConfig {
            qpn: QPN,
            service,
            caps: ferroce_proto::QpCaps::default(),
            srq,
            sq_sig_all: false,
            port_mtu: ferroce_wire::PathMtu::B1024,
            seed: 0,
            early_resends: true,
            budget: Arc::new(ferroce_proto::Budget::new(0)),
        };
        assert_eq!(QueuePair::new(config).unwrap_err(), CreateQpError::SharedReceives(service));
    }
}

/// Programs name RC's attributes for both halves; those of the other half have no effect, as on Linux.
#[test]
fn attributes_of_the_other_half_are_dropped() {
    let xrcd = Arc::new(Xrcd::default());
    let source = Source::Xrc { xrcd: Arc::clone(&xrcd), own_memory: true };
    let mut target = Probe::new(Service::XrcTarget, source, &[HOME]);
    let mut initiator = Probe::new(Service::XrcInitiator, Source::Own, &[HOME]);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        for (probe, service) in [(&mut target, Service::XrcTarget), (&mut initiator, Service::XrcInitiator)] {
            assert_eq!(probe.qp.modify(&attr(state), mask(Service::Rc, state)), Ok(()), "{service:?}");
        }
    }
    let (target, initiator) = (target.qp.query(), initiator.qp.query());
    assert_eq!((target.max_dest_rd_atomic, target.max_rd_atomic), (4, 0));
    assert_eq!((initiator.max_dest_rd_atomic, initiator.max_rd_atomic), (0, 4));
    // Nothing else is let through.
    let xrcd = Arc::new(Xrcd::default());
    let mut target = target_in(&xrcd, true, QpState::Rtr);
    let bad = mask(Service::Rc, QpState::Rts) | QpAttrMask::QKEY;
    assert!(target.qp.modify(&attr(QpState::Rts), bad).is_err());
}
