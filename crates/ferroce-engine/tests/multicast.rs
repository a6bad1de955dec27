//! Multicast groups over real sockets on lo.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::error::{AttachError, Busy, NotAttached, PathError};
use ferroce_engine::{
    Ah, AhAttr, DeviceCounters, MAX_MCAST_QP_ATTACH, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendOp,
    SendWr, Service, WcOpcode, WcStatus,
};
use ferroce_wire::{Flow, Gid, Imm, Psn, Qkey, Qpn};

fn ud() -> End {
    let end = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
    ud_to_rts(&end.qp);
    end
}

/// Of 239.192/14, another one for every process and number.
fn group(number: u8) -> Gid {
    let [.., high, low] = std::process::id().to_be_bytes();
    Gid::from(Ipv4Addr::new(239, 192 | number >> 6, high ^ (number << 2), low))
}

fn handle(end: &End, dgid: Gid) -> Arc<Ah> {
    end.pd.create_ah(AhAttr { dgid, hop_limit: 3, traffic_class: 0x40, ..AhAttr::default() }).unwrap()
}

fn post(from: &End, ah: &Ah, qkey: Qkey, wr_id: u64, len: usize) {
    let sges = [from.sge(0, len)];
    let wr = send(wr_id, SendOp::SendImm(Imm([1, 2, 3, 4])), &sges);
    from.qp.post_send([SendWr { to: ah.to(Qpn::MULTICAST, qkey).unwrap(), ..wr }]).unwrap();
    from.expect(wr_id, WcOpcode::Send);
}

fn assert_quiet(end: &End) {
    let mut one = [blank()];
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        assert_eq!(end.cq.poll(&mut one).unwrap(), 0, "{:?}", one[0]);
    }
}

fn count(end: &End, which: impl Fn(&DeviceCounters) -> &AtomicU64) -> u64 {
    which(end.context.counters()).load(Ordering::Relaxed)
}

/// A member without a receive, with another Q_Key, with a short buffer or in another state loses only its own copy.
#[test]
fn each_ready_group_member_gets_exactly_one_copy() {
    let mgid = group(0);
    let sender = ud();
    let ah = handle(&sender, mgid);
    let members: Vec<End> = (0..6).map(|_| ud()).collect();
    members.iter().for_each(|member| member.qp.attach(mgid).unwrap());
    let not_ready = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
    to_init(&not_ready.qp);
    not_ready.receive(9, not_ready.sge(0, 4096));
    not_ready.qp.attach(mgid).unwrap();
    let other_key = Qkey::new(0x2222_2222);
    let attr = QpAttr { qkey: other_key, ..QpAttr::default() };
    members[2].qp.modify(&attr, QpAttrMask::QKEY).unwrap();
    for (index, member) in members.iter().enumerate() {
        match index {
            1 => {}
            4 => member.receive(1, member.sge(0, 40 + 99)),
            _ => (1..4).for_each(|id| member.receive(id, member.sge(0, 40 + 100))),
        }
    }
    sender.memory.fill(5, 100);
    post(&sender, &ah, QKEY, 1, 100);
    for (index, member) in members.iter().enumerate() {
        match index {
            // The datagram is longer than the WQE of 4, which it leaves alone.
            1 | 2 | 4 => assert_eq!(member.qp.state(), QpState::Rts),
            _ => {
                let got = member.expect(1, WcOpcode::Recv);
                assert_eq!((got.byte_len, got.src_qp, got.grh), (140, sender.qp.qpn(), true));
                assert_eq!((got.qpn, got.imm), (member.qp.qpn(), Some(Imm([1, 2, 3, 4]))));
                member.memory.check_at(40, 5, 100);
                let header: [u8; Flow::GRH_AREA] = std::array::from_fn(|i| member.memory.get(i));
                let came = Flow::from_grh_area(&header).unwrap();
                assert_eq!((came.source, came.destination), (Ipv4Addr::LOCALHOST.into(), mgid.to_ip()));
                assert_eq!((came.traffic_class, came.hop_limit), (0x40, 3));
            }
        }
    }
    members.iter().for_each(assert_quiet);
    assert_quiet(&not_ready);
    assert_quiet(&sender);
    // The member with the other key receives only packets with that key.
    post(&sender, &ah, other_key, 2, 100);
    members[2].expect(1, WcOpcode::Recv);
    members.iter().for_each(assert_quiet);
}

/// rxe cannot join IPv6 groups; ours is a real member, as the kernel's list says. (Linux has no route for IPv6 groups over
/// `lo`, so what is sent to them is tested where there is another interface.)
#[test]
fn ipv6_groups_are_joined() {
    let [.., a, b] = std::process::id().to_be_bytes();
    let mut address = [0; 16];
    (address[0], address[1], address[14], address[15]) = (0xff, 0x15, a, b);
    let mgid = Gid(address);
    let hex: String = address.iter().map(|octet| format!("{octet:02x}")).collect();
    let joined = || std::fs::read_to_string("/proc/self/net/igmp6").unwrap().contains(&hex);
    let member = ud();
    assert!(!joined());
    member.qp.attach(mgid).unwrap();
    assert!(joined());
    member.qp.detach(mgid).unwrap();
    assert!(!joined());
}

/// A sender attached to its own group receives its packets, as with the IP stack and cards.
#[test]
fn senders_hear_themselves_and_doubly_attached_is_attached() {
    let mgid = group(1);
    let (a, b) = (ud(), ud());
    for _ in 0..3 {
        a.qp.attach(mgid).unwrap();
        b.qp.attach(mgid).unwrap();
    }
    for end in [&a, &b] {
        (1..4).for_each(|id| end.receive(id, end.sge(0, 100)));
    }
    let ah = handle(&a, mgid);
    let sges = [a.sge(200, 10)];
    let wr = send(77, SendOp::Send, &sges);
    a.qp.post_send([SendWr { to: ah.to(Qpn::MULTICAST, QKEY).unwrap(), ..wr }]).unwrap();
    let mut ids = [a.complete().wr_id, a.complete().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 77]);
    b.expect(1, WcOpcode::Recv);
    assert_quiet(&a);
    assert_quiet(&b);
    // Once attached, once detached: nothing is left.
    b.qp.detach(mgid).unwrap();
    assert_eq!(b.qp.detach(mgid), Err(NotAttached { mgid }));
    post(&a, &ah, QKEY, 78, 10);
    a.expect(2, WcOpcode::Recv);
    assert_quiet(&b);
    // The last one to go ends the membership, and attaching begins it anew.
    a.qp.detach(mgid).unwrap();
    post(&a, &ah, QKEY, 79, 10);
    assert_quiet(&a);
    b.qp.attach(mgid).unwrap();
    post(&a, &ah, QKEY, 80, 10);
    b.expect(2, WcOpcode::Recv);
    assert_quiet(&a);
}

#[test]
fn attach_detach_and_destroy_in_every_order() {
    let [first, second] = [group(2), group(3)];
    let end = ud();
    let not_attached = |mgid| Err(NotAttached { mgid });
    assert_eq!(end.qp.detach(first), not_attached(first));
    end.qp.attach(first).unwrap();
    assert_eq!(end.qp.detach(second), not_attached(second));
    end.qp.attach(second).unwrap();
    assert_eq!(end.qp.try_destroy(), Err(Busy { users: 2 }));
    end.qp.detach(first).unwrap();
    assert_eq!(end.qp.try_destroy(), Err(Busy { users: 1 }));
    // The refused call changed nothing.
    let sender = ud();
    end.receive(1, end.sge(0, 100));
    post(&sender, &handle(&sender, second), QKEY, 5, 1);
    end.expect(1, WcOpcode::Recv);
    end.qp.detach(second).unwrap();
    assert_eq!(end.qp.try_destroy(), Ok(()));
    assert_eq!(end.qp.try_destroy(), Ok(()), "a second time");
    assert!(matches!(end.qp.attach(first), Err(AttachError::Destroyed)));
    assert_eq!(end.qp.detach(first), not_attached(first));
    // The failed attach left nothing that would be in the way.
    sender.qp.attach(first).unwrap();
    sender.qp.detach(first).unwrap();
    // Closing the device ends everything.
    let context = ferroce_engine::Context::open("fr0").unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, 0, None, 0).unwrap();
    let qp = pd.create_qp(QpInit { service: Service::Ud, ..init(&cq, &cq, 4) }).unwrap();
    qp.attach(first).unwrap();
    context.close();
    assert_eq!(qp.try_destroy(), Ok(()));
    assert!(matches!(qp.attach(first), Err(AttachError::Destroyed)));
}

#[test]
fn what_is_no_group_or_no_datagram_is_refused() {
    let end = ud();
    for ip in ["10.0.0.1", "127.0.0.1", "255.255.255.255", "0.0.0.0", "fe80::1", "::1", "::"] {
        let mgid = Gid::from_ip(ip.parse().unwrap());
        assert!(matches!(end.qp.attach(mgid), Err(AttachError::NotAGroup { .. })), "{ip}");
        assert_eq!(end.qp.detach(mgid), Err(NotAttached { mgid }));
    }
    for service in [Service::Rc, Service::Uc] {
        let other = End::new(Wanted { service, ..Wanted::default() });
        assert!(matches!(other.qp.attach(group(4)), Err(AttachError::Service)), "{service:?}");
    }
    // A connection does not lead to a group, nor an IPv6 group over an IPv4 address.
    let rc = End::new(Wanted::default());
    to_init(&rc.qp);
    let ah = AhAttr { dgid: group(4), ..AhAttr::default() };
    let attr = QpAttr { state: QpState::Rtr, ah, rq_psn: Psn::new(0), ..QpAttr::default() };
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    assert!(rc.qp.modify(&attr, mask).is_err());
    let v6 = AhAttr { dgid: "ff0e::1".parse::<std::net::Ipv6Addr>().unwrap().into(), ..AhAttr::default() };
    let refused = end.pd.create_ah(v6).map(drop).unwrap_err();
    assert!(
        matches!(refused, ferroce_engine::error::CreateAhError::Path(PathError::Dgid { .. })),
        "{refused}"
    );
}

/// Packets to a group under another number, and to the number without the group.
#[test]
fn address_and_number_belong_together() {
    let mgid = group(5);
    let (a, b) = (ud(), ud());
    b.qp.attach(mgid).unwrap();
    (0..4).for_each(|id| b.receive(id, b.sge(0, 100)));
    let to_group = handle(&a, mgid);
    let local = a.context.gid(0).unwrap().unwrap().gid;
    let to_b = handle(&a, local);
    let stray = count(&a, |counters| &counters.rx_stray_slot);
    for (ah, qpn) in [(&to_group, b.qp.qpn()), (&to_group, Qpn::new(1))] {
        let wr = send(1, SendOp::Send, &[]);
        a.qp.post_send([SendWr { to: ah.to(qpn, QKEY).unwrap(), ..wr }]).unwrap();
        a.expect(1, WcOpcode::Send);
    }
    post(&a, &to_b, QKEY, 2, 0);
    assert_quiet(&b);
    // The third went to whichever socket the kernel's hash chose, perhaps this process's.
    assert!(count(&a, |counters| &counters.rx_stray_slot) >= stray + 2);
    post(&a, &to_group, QKEY, 3, 0);
    b.expect(0, WcOpcode::Recv);
}

#[test]
fn a_group_takes_as_many_members_as_reported() {
    let end = ud();
    let mgid = group(6);
    let make = || end.pd.create_qp(QpInit { service: Service::Ud, ..init(&end.cq, &end.cq, 1) }).unwrap();
    let members: Vec<_> = (0..=MAX_MCAST_QP_ATTACH).map(|_| make()).collect();
    let (last, fitting) = members.split_last().unwrap();
    fitting.iter().for_each(|qp| qp.attach(mgid).unwrap());
    assert!(matches!(last.attach(mgid), Err(AttachError::Members { max: MAX_MCAST_QP_ATTACH })));
    fitting[7].attach(mgid).unwrap();
    fitting[0].detach(mgid).unwrap();
    last.attach(mgid).unwrap();
    members.iter().for_each(|qp| qp.destroy());
}

/// A thread that sleeps on its channel gets packets of a group joined before, and of one joined during the sleep.
#[test]
fn sleepers_are_woken_by_groups() {
    let [before, meanwhile] = [group(7), group(8)];
    let end = End::new(Wanted { service: Service::Ud, events: true, ..Wanted::default() });
    ud_to_rts(&end.qp);
    let sender = ud();
    end.qp.attach(before).unwrap();
    for mgid in [before, meanwhile] {
        end.receive(1, end.sge(0, 100));
        end.cq.req_notify(false);
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| {
                end.channel.as_ref().unwrap().get_event().map(|_| ()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(20));
            if mgid == meanwhile {
                end.qp.attach(mgid).unwrap();
            }
            post(&sender, &handle(&sender, mgid), QKEY, 5, 0);
            asleep.join().unwrap();
        });
        end.cq.ack_events(1);
        end.expect(1, WcOpcode::Recv);
    }
}

/// A flood of a group is dropped and counted, and a connection of the same process goes on.
#[test]
fn a_flood_harms_no_connection() {
    let mgid = group(9);
    let (a, b) = pair();
    let members: Vec<End> = (0..8).map(|_| ud()).collect();
    members.iter().for_each(|member| member.qp.attach(mgid).unwrap());
    let flooder = ud();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ah = handle(&flooder, mgid);
            let to = ah.to(Qpn::MULTICAST, QKEY).unwrap();
            let sges = [flooder.sge(0, 64)];
            while !done.load(Ordering::Relaxed) {
                let wrs = (0..32).map(|id| SendWr { to, ..send(id, SendOp::Send, &sges) });
                flooder.qp.post_send(wrs).unwrap();
                (0..32).for_each(|_| assert_eq!(poll_one(&flooder.cq).status, WcStatus::Success));
            }
        });
        let _stop = SetOnDrop(&done);
        // Without this, the rounds may be over before the kernel lets the flooder begin.
        let dropped = || members.iter().map(|member| member.qp.counters().dropped_pkts).sum::<u64>();
        let start = Instant::now();
        while dropped() == 0 {
            assert!(start.elapsed() < PATIENCE, "members without a receive count what they lose");
            assert_eq!(b.cq.poll(&mut [blank()]).unwrap(), 0);
        }
        for round in 0..500_u64 {
            a.memory.fill(round as usize, 4096);
            b.receive(round, b.sge(0, 4096));
            a.post(round, SendOp::Send, a.sge(0, 4096));
            b.expect(round, WcOpcode::Recv);
            a.expect(round, WcOpcode::Send);
            b.memory.check(round as usize, 4096);
        }
    });
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(a.qp.counters().retry_exceeded_err, 0);
    // They still take what comes when they can.
    let member = &members[3];
    member.qp.post_recv([RecvWr { wr_id: 1, sges: &[member.sge(0, 200)] }]).unwrap();
    post(&flooder, &handle(&flooder, mgid), QKEY, 5, 0);
    member.expect(1, WcOpcode::Recv);
}
