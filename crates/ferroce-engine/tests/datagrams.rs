//! UC and UD over real sockets on lo.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use common::*;
use ferroce_engine::error::{AnswerError, CreateAhError, ModifyQpError, PathError, PostSendError};
use ferroce_engine::{
    Ah, AhAttr, QpAttr, QpAttrMask, QpState, RecvWr, SendOp, SendTo, SendWr, Service, WcOpcode, WcStatus,
};
use ferroce_wire::{Flow, Gid, Imm, PathMtu, Qkey, Qpn};

fn uc() -> End {
    End::new(Wanted { service: Service::Uc, ..Wanted::default() })
}

fn ud() -> End {
    let end = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
    ud_to_rts(&end.qp);
    end
}

/// From `end` to the address of GID `gid_index`.
fn handle(end: &End, gid_index: u8) -> Arc<Ah> {
    let dgid = end.context.gid(u32::from(gid_index)).unwrap().unwrap().gid;
    let attr = AhAttr { dgid, sgid_index: gid_index, hop_limit: 7, traffic_class: 0x20, ..AhAttr::default() };
    end.pd.create_ah(attr).unwrap()
}

fn datagram<'a>(ah: &Ah, to: Qpn, qkey: Qkey, wr: SendWr<'a>) -> SendWr<'a> {
    SendWr { to: ah.to(to, qkey).unwrap(), ..wr }
}

/// Nothing more arrives.
fn assert_quiet(end: &End) {
    let mut one = [blank()];
    let start = Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(20) {
        assert_eq!(end.cq.poll(&mut one).unwrap(), 0, "{:?}", one[0]);
    }
}

#[test]
fn uc_messages_of_every_size_arrive() {
    for gid_index in [0, 1] {
        let (a, b) = (uc(), uc());
        connect(&a, &b, gid_index, PathMtu::B1024);
        for (id, len) in [0, 1, 3, 1023, 1024, 1025, 4096, 65_537].into_iter().enumerate() {
            a.memory.fill(id, len);
            b.receive(id as u64, b.sge(0, 1 << 20));
            a.post(100, SendOp::SendImm(Imm([1, 2, 3, id as u8])), a.sge(0, len));
            // Complete when it left, whether or not it arrived.
            a.expect(100, WcOpcode::Send);
            let received = b.expect(id as u64, WcOpcode::Recv);
            assert_eq!((received.byte_len as usize, received.imm), (len, Some(Imm([1, 2, 3, id as u8]))));
            assert!(received.grh && received.header.is_none());
            b.memory.check(id, len);
            b.receive(id as u64, b.sge(0, 0));
            a.memory.fill(id + 50, len);
            a.post(101, SendOp::WriteImm { remote: b.remote(7), imm: Imm([4; 4]) }, a.sge(0, len));
            a.expect(101, WcOpcode::RdmaWrite);
            let received = b.expect(id as u64, WcOpcode::RecvRdmaWithImm);
            assert_eq!(received.byte_len as usize, len);
            b.memory.check_at(7, id + 50, len);
        }
    }
}

#[test]
fn operations_that_uc_and_ud_lack_are_refused() {
    let (a, b) = (uc(), uc());
    connect(&a, &b, 0, PathMtu::B1024);
    let remote = b.remote(0);
    for op in [
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 1, swap: 2 },
        SendOp::SendInvalidate(remote.rkey),
    ] {
        let refused = a.qp.post_send([send(1, op, &[a.sge(0, 8)])]).unwrap_err();
        assert_eq!(refused, (0, PostSendError::Operation(Service::Uc)));
    }
    let end = ud();
    let ah = handle(&end, 0);
    let write = datagram(&ah, end.qp.qpn(), QKEY, send(1, SendOp::Write { remote }, &[]));
    assert_eq!(end.qp.post_send([write]).unwrap_err(), (0, PostSendError::Operation(Service::Ud)));
    let nowhere = send(1, SendOp::Send, &[]);
    assert_eq!(end.qp.post_send([nowhere]).unwrap_err(), (0, PostSendError::Destination(Service::Ud)));
    let to_a_peer = datagram(&ah, end.qp.qpn(), QKEY, send(1, SendOp::Send, &[]));
    assert_eq!(a.qp.post_send([to_a_peer]).unwrap_err(), (0, PostSendError::Destination(Service::Uc)));
    assert_quiet(&end);
}

#[test]
fn a_bad_key_ends_the_send_queue_of_uc_alone() {
    let (a, b) = (uc(), uc());
    connect(&a, &b, 0, PathMtu::B1024);
    let bad = ferroce_engine::Sge { lkey: ferroce_wire::Lkey::new(0), ..a.sge(0, 5000) };
    a.qp.post_send([send(1, SendOp::Send, &[bad]), send(2, SendOp::Send, &[a.sge(0, 1)])]).unwrap();
    assert_eq!(
        [a.complete(), a.complete()].map(|c| (c.wr_id, c.status)),
        [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(a.qp.state(), QpState::Sqe);
    // It still receives.
    a.receive(3, a.sge(0, 16));
    b.post(4, SendOp::Send, b.sge(0, 16));
    a.expect(3, WcOpcode::Recv);
    // And sends again when told to.
    let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    a.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    b.receive(5, b.sge(0, 16));
    a.post(6, SendOp::Send, a.sge(0, 16));
    a.expect(6, WcOpcode::Send);
    b.expect(4, WcOpcode::Send);
    b.expect(5, WcOpcode::Recv);
}

/// The receive buffer begins with the GRH, for datagrams to oneself as well.
#[test]
fn datagrams_arrive_behind_their_grh() {
    for gid_index in [0, 1] {
        let (a, b) = (ud(), ud());
        let ah = handle(&a, gid_index);
        for (id, len) in [0, 1, 2, 3, 4, 1000, 4096].into_iter().enumerate() {
            a.memory.fill(id, len);
            b.receive(id as u64, b.sge(0, 40 + len));
            let op = if id % 2 == 0 { SendOp::Send } else { SendOp::SendImm(Imm([9; 4])) };
            a.qp.post_send([datagram(&ah, b.qp.qpn(), QKEY, send(77, op, &[a.sge(0, len)]))]).unwrap();
            a.expect(77, WcOpcode::Send);
            let got = b.expect(id as u64, WcOpcode::Recv);
            assert_eq!(got.byte_len as usize, len + 40);
            assert_eq!((got.src_qp, got.grh, got.imm.is_some()), (a.qp.qpn(), true, id % 2 == 1));
            b.memory.check_at(40, id, len);
            let header: [u8; Flow::GRH_AREA] = std::array::from_fn(|i| b.memory.get(i));
            if gid_index == 0 {
                assert_eq!(header[..20], [0; 20]);
            }
            let came = Flow::from_grh_area(&header).unwrap();
            let ip = b.context.gid(u32::from(gid_index)).unwrap().unwrap().gid.to_ip();
            assert_eq!((came.source, came.destination), (ip, ip));
            assert_eq!((came.traffic_class, came.hop_limit), (0x20, 64));
            let answer = b.context.answering(&header).unwrap();
            assert_eq!((answer.sgid_index, answer.dgid.to_ip()), (gid_index, ip));
            let back = b.pd.create_ah(answer).unwrap();
            a.receive(5, a.sge(0, 100));
            b.qp.post_send([datagram(&back, got.src_qp, QKEY, send(78, SendOp::Send, &[]))]).unwrap();
            b.expect(78, WcOpcode::Send);
            assert_eq!(a.expect(5, WcOpcode::Recv).byte_len, 40);
        }
    }
}

/// The kernel fills in the route's hop limit, so programs give any.
#[test]
fn unicast_takes_the_hop_limit_of_the_route() {
    for (gid_index, hop_limit) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 255)] {
        let (a, b) = (ud(), ud());
        let dgid = a.context.gid(u32::from(gid_index)).unwrap().unwrap().gid;
        let attr = AhAttr { dgid, sgid_index: gid_index, hop_limit, ..AhAttr::default() };
        let ah = a.pd.create_ah(attr).unwrap();
        b.receive(1, b.sge(0, 40));
        a.qp.post_send([datagram(&ah, b.qp.qpn(), QKEY, send(2, SendOp::Send, &[]))]).unwrap();
        b.expect(1, WcOpcode::Recv);
        let header: [u8; Flow::GRH_AREA] = std::array::from_fn(|i| b.memory.get(i));
        assert_eq!(Flow::from_grh_area(&header).unwrap().hop_limit, 64);
    }
}

#[test]
fn datagrams_to_oneself_and_to_many_at_once() {
    let ends: Vec<End> = (0..5).map(|_| ud()).collect();
    let ah = handle(&ends[0], 0);
    let ah6 = handle(&ends[0], 1);
    for (to, end) in ends.iter().enumerate() {
        end.receive(to as u64, end.sge(0, 64));
        end.receive(to as u64 + 100, end.sge(64, 64));
    }
    // One list, to everybody in turn over both families, and to itself.
    let sges = [ends[0].sge(0, 8)];
    let wrs = ends.iter().flat_map(|end| {
        [&ah, &ah6].map(|ah| {
            datagram(ah, end.qp.qpn(), QKEY, SendWr { inline: true, ..send(1, SendOp::Send, &sges) })
        })
    });
    ends[0].qp.post_send(wrs).unwrap();
    let mut seen = Vec::new();
    for _ in 0..12 {
        seen.push(poll_one(&ends[0].cq));
    }
    assert_eq!(seen.iter().filter(|c| c.opcode == WcOpcode::Send).count(), 10);
    assert_eq!(seen.iter().filter(|c| c.opcode == WcOpcode::Recv).count(), 2, "to itself");
    for (to, end) in ends.iter().enumerate().skip(1) {
        let mut ids = [end.complete().wr_id, end.complete().wr_id];
        ids.sort_unstable();
        assert_eq!(ids, [to as u64, to as u64 + 100]);
    }
}

fn count(end: &End, which: impl Fn(&ferroce_engine::DeviceCounters) -> &std::sync::atomic::AtomicU64) -> u64 {
    which(end.context.counters()).load(Ordering::Relaxed)
}

/// A datagram that does not fit is dropped and counted, and takes no receive WQE; the queue pair lives in every case.
#[test]
fn datagrams_that_cannot_be_taken() {
    let (a, b) = (ud(), ud());
    let ah = handle(&a, 0);
    let send_to_b = |qkey, len| {
        a.qp.post_send([datagram(&ah, b.qp.qpn(), qkey, send(1, SendOp::Send, &[a.sge(0, len)]))]).unwrap();
        a.expect(1, WcOpcode::Send);
    };
    let before = count(&b, |c| &c.rx_wrong_qkey);
    b.receive(10, b.sge(0, 41));
    send_to_b(Qkey::new(0x1234), 1);
    assert_quiet(&b);
    assert!(count(&b, |c| &c.rx_wrong_qkey) > before);
    // Bit 31: our own key, which is theirs as well.
    send_to_b(Qkey::new(0x8000_0000), 1);
    assert_eq!(b.expect(10, WcOpcode::Recv).byte_len, 41);
    // Too small for it: the WQE serves the next one.
    let before = count(&b, |c| &c.rx_too_long);
    b.receive(11, b.sge(0, 41));
    send_to_b(QKEY, 2);
    assert_quiet(&b);
    assert!(count(&b, |c| &c.rx_too_long) > before);
    assert_eq!(b.qp.state(), QpState::Rts);
    send_to_b(QKEY, 1);
    b.expect(11, WcOpcode::Recv);
    // None at all.
    let before = count(&b, |c| &c.rx_no_recv_wqe);
    send_to_b(QKEY, 2);
    assert_quiet(&b);
    assert!(count(&b, |c| &c.rx_no_recv_wqe) > before);
    b.receive(12, b.sge(0, 100));
    send_to_b(QKEY, 2);
    b.expect(12, WcOpcode::Recv);
}

#[test]
fn a_datagram_beyond_the_mtu_is_refused() {
    let a = ud();
    let ah = handle(&a, 0);
    let sges = [a.sge(0, 4097)];
    let long = datagram(&ah, a.qp.qpn(), QKEY, send(1, SendOp::Send, &sges));
    let refused = a.qp.post_send([long]).unwrap_err();
    assert_eq!(refused, (0, PostSendError::DatagramTooLong { given: 4097, max: 4096 }));
    assert_eq!(a.qp.state(), QpState::Rts);
    assert_quiet(&a);
}

#[test]
fn address_handles_that_lead_nowhere_are_not_made() {
    let end = ud();
    let good = handle(&end, 0).attr();
    let v6 = end.context.gid(1).unwrap().unwrap().gid;
    let link_local = Gid::from_ip(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xdead, 0xbeef).into());
    let meant = end.context.gid(0).unwrap().unwrap();
    let bad = [
        (AhAttr { is_global: false, ..good }, PathError::NotGlobal),
        (AhAttr { port_num: 0, ..good }, PathError::Port { port: 0 }),
        (AhAttr { port_num: 2, ..good }, PathError::Port { port: 2 }),
        (AhAttr { sgid_index: 200, ..good }, PathError::SgidIndex { index: 200, there: Some(meant) }),
        (AhAttr { dgid: v6, ..good }, PathError::Dgid { dgid: v6, sgid: good.dgid }),
        (AhAttr { dgid: Gid::ZERO, ..good }, PathError::Dgid { dgid: Gid::ZERO, sgid: good.dgid }),
        // rust-ibverbs expects such a destination to be refused when the queue pair is modified to RTR.
        (
            AhAttr { dgid: link_local, sgid_index: 1, ..good },
            PathError::LinkLocal { dgid: link_local, sgid: v6 },
        ),
    ];
    for (attr, why) in bad {
        assert_eq!(end.pd.create_ah(attr).err(), Some(CreateAhError::Path(why)));
    }
    let area = Flow {
        source: [127, 0, 0, 1].into(),
        destination: [224, 0, 0, 1].into(),
        source_port: 0,
        traffic_class: 0,
        hop_limit: 1,
        link: Default::default(),
    };
    assert_eq!(end.context.answering(&area.grh_area(16)), Err(AnswerError::Multicast));
    assert_eq!(end.context.answering(&[0; 40]), Err(AnswerError::NoHeader));
    let foreign = Flow { destination: [192, 0, 2, 9].into(), ..area }.grh_area(16);
    let gid = Gid::from_ip([192, 0, 2, 9].into());
    assert_eq!(end.context.answering(&foreign), Err(AnswerError::NoSuchGid { gid }));
}

#[test]
fn a_domain_with_address_handles_is_busy() {
    let end = ud();
    let pd = end.context.alloc_pd().unwrap();
    let ah = pd.create_ah(handle(&end, 0).attr()).unwrap();
    assert_eq!(pd.dealloc().unwrap_err().users, 1);
    // It ends while something may be under way; no crash, no leak.
    end.receive(1, end.sge(0, 64));
    end.qp.post_send([datagram(&ah, end.qp.qpn(), QKEY, send(2, SendOp::Send, &[]))]).unwrap();
    ah.destroy();
    ah.destroy();
    pd.dealloc().unwrap();
    let mut ids = [end.complete().wr_id, end.complete().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

/// A flood for a queue pair that takes nothing: counted, and a connection of the same process goes on.
#[test]
fn a_flood_harms_no_other_queue_pair() {
    let (a, b) = (ud(), ud());
    let (x, y) = pair();
    let ah = handle(&a, 0);
    let to_b = ah.to(b.qp.qpn(), QKEY).unwrap();
    let before = count(&b, |c| &c.rx_no_recv_wqe);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sges = [a.sge(0, 4000)];
            let mut posted = 0;
            while !stop.load(Ordering::Relaxed) {
                let wr = SendWr { to: to_b, signaled: posted % 64 == 63, ..send(1, SendOp::Send, &sges) };
                if a.qp.post_send([wr]).is_ok() {
                    posted += 1;
                }
                let _ = a.cq.poll(&mut [blank()]).unwrap();
            }
        });
        for round in 0..300 {
            x.memory.fill(round, 20_000);
            y.receive(1, y.sge(0, 20_000));
            x.post(2, SendOp::Send, x.sge(0, 20_000));
            x.expect(2, WcOpcode::Send);
            y.expect(1, WcOpcode::Recv);
            y.memory.check(round, 20_000);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(count(&b, |c| &c.rx_no_recv_wqe) > before);
    assert_eq!((b.qp.state(), a.qp.state()), (QpState::Rts, QpState::Rts));
    b.receive(9, b.sge(0, 64));
    loop {
        a.qp.post_send([SendWr { to: to_b, ..send(3, SendOp::Send, &[]) }]).unwrap();
        let mut one = [blank()];
        if b.cq.poll(&mut one).unwrap() == 1 {
            assert_eq!(one[0].wr_id, 9);
            break;
        }
        let _ = a.cq.poll(&mut one).unwrap();
    }
}

#[test]
fn what_a_queue_pair_of_datagrams_is_not_told() {
    let end = ud();
    let attr = QpAttr::default();
    for mask in [QpAttrMask::ACCESS_FLAGS, QpAttrMask::PATH_MTU, QpAttrMask::DEST_QPN] {
        let refused = end.qp.modify(&attr, mask).unwrap_err();
        assert!(matches!(refused, ModifyQpError::Transport(_)), "{mask:?}");
    }
    let queried = end.qp.query();
    assert_eq!((queried.qkey, queried.path_mtu), (QKEY, PathMtu::B4096));
    let qkey = Qkey::new(5);
    end.qp.modify(&QpAttr { qkey, ..attr }, QpAttrMask::QKEY).unwrap();
    assert_eq!(end.qp.query().qkey, qkey);
    // After RESET and a return to RTS, it receives again.
    end.qp.modify(&QpAttr { state: QpState::Reset, ..attr }, QpAttrMask::STATE).unwrap();
    let refused = end.qp.post_recv([RecvWr { wr_id: 1, sges: &[] }]).unwrap_err();
    assert_eq!(refused.0, 0);
    ud_to_rts(&end.qp);
    let ah = handle(&end, 0);
    end.receive(1, end.sge(0, 64));
    let to = ah.to(end.qp.qpn(), QKEY).unwrap();
    assert!(matches!(to, SendTo::Datagram { .. }));
    end.qp.post_send([SendWr { to, ..send(1, SendOp::Send, &[]) }]).unwrap();
    end.complete();
    end.complete();
}
