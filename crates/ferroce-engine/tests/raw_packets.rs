//! Raw packet queue pairs on the lo of a network namespace of this test's own.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::error::{Busy, CreateQpError, FlowError};
use ferroce_engine::{
    Layer, Pattern, QpAttr, QpAttrMask, QpInit, QpState, Rule, SendOp, SendWr, Service, WcOpcode, WcStatus,
};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;

/// One thread and one engine, which stays in the namespace that it was made in.
#[test]
fn raw_packets() {
    if !Uid::effective().is_root() || unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!(
            "skipped: raw packets need CAP_NET_RAW, and a network namespace of their own CAP_SYS_ADMIN"
        );
        return;
    }
    let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if !up.is_ok_and(|status| status.success()) {
        eprintln!("skipped: lo cannot be brought up without the program ip");
        return;
    }
    // SAFETY: no other thread runs yet. Packets by shared memory are no frames on lo, so a sniffer does not see them.
    unsafe { std::env::set_var("FERROCE_DATAPATH", "udp") };
    frames_go_to_those_who_ask();
    states_and_destruction();
    a_sniffer_sees_roce_packets();
    an_error_of_the_send_queue();
    sleepers_are_woken();
}

fn raw(state: QpState) -> End {
    raw_with(state, Wanted::default())
}

fn raw_with(state: QpState, wanted: Wanted) -> End {
    let end = End::new(Wanted { service: Service::RawPacket, ..wanted });
    for (next, mask) in [
        (QpState::Init, QpAttrMask::STATE | QpAttrMask::PORT),
        (QpState::Rtr, QpAttrMask::STATE),
        (QpState::Rts, QpAttrMask::STATE),
    ] {
        if end.qp.state() != state {
            end.qp.modify(&QpAttr { state: next, ..QpAttr::default() }, mask).unwrap();
        }
    }
    assert_eq!(end.qp.state(), state);
    end
}

const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Writes a frame of the experimental EtherType to the end's memory and sends it.
fn transmit(from: &End, destination: [u8; 6], mark: u8, len: usize) {
    let head = [&destination[..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5]].concat();
    (0..len).for_each(|i| from.memory.set(i, head.get(i).copied().unwrap_or(mark)));
    from.post(u64::from(mark), SendOp::Send, from.sge(0, len));
    let sent = from.expect(u64::from(mark), WcOpcode::Send);
    assert_eq!(sent.byte_len as usize, len);
}

fn to(destination: [u8; 6]) -> Rule {
    Rule::arriving(vec![Pattern::new(Layer::Ethernet).at(0, &destination, &[0xff; 6])])
}

fn assert_quiet(end: &End) {
    let mut one = [blank()];
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        assert_eq!(end.cq.poll(&mut one).unwrap(), 0, "{:?}", one[0]);
    }
}

fn frames_go_to_those_who_ask() {
    let (sender, a, b, deaf) = (raw(QpState::Rts), raw(QpState::Rtr), raw(QpState::Rtr), raw(QpState::Rtr));
    let other = [2, 0, 0, 0, 0, 2];
    let first = a.qp.add_flow(to(TO)).unwrap();
    // Two rules that ask for the same frame bring it once.
    let again =
        a.qp.add_flow(Rule::arriving(vec![Pattern::new(Layer::Ethernet).at(12, &[0x88, 0xb5], &[0xff; 2])]));
    b.qp.add_flow(to(other)).unwrap();
    for end in [&sender, &a, &b, &deaf] {
        (0..4).for_each(|id| end.receive(id, end.sge(1000, 70_000)));
    }
    for (mark, len) in [(1, 60), (2, 1514), (3, 65_550)] {
        transmit(&sender, TO, mark, len);
        let got = a.expect(u64::from(mark) - 1, WcOpcode::Recv);
        assert_eq!((got.byte_len as usize, got.grh), (len, false));
        assert_eq!((a.memory.get(1000), a.memory.get(1014)), (2, mark));
        assert_eq!(a.memory.get(1000 + len - 1), mark);
    }
    transmit(&sender, other, 4, 100);
    b.expect(0, WcOpcode::Recv);
    a.expect(3, WcOpcode::Recv);
    a.qp.remove_flow(again.unwrap());
    a.receive(9, a.sge(1000, 59));
    transmit(&sender, other, 5, 100);
    b.expect(1, WcOpcode::Recv);
    assert_quiet(&a);
    // A frame that does not fit is that receive's error, and the queue pair lives.
    transmit(&sender, TO, 6, 60);
    let short = a.complete();
    assert_eq!((short.wr_id, short.status), (9, WcStatus::LocLenErr));
    a.receive(10, a.sge(1000, 60));
    transmit(&sender, TO, 7, 60);
    a.expect(10, WcOpcode::Recv);
    a.qp.remove_flow(first);
    a.qp.remove_flow(first);
    transmit(&sender, TO, 8, 60);
    [&sender, &a, &deaf].into_iter().for_each(assert_quiet);
}

fn states_and_destruction() {
    let (sender, end) = (raw(QpState::Rts), raw(QpState::Init));
    let flow = end.qp.add_flow(to(TO)).unwrap();
    end.receive(1, end.sge(0, 100));
    transmit(&sender, TO, 1, 60);
    assert_quiet(&end);
    end.qp.modify(&QpAttr { state: QpState::Rtr, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    transmit(&sender, TO, 2, 60);
    end.expect(1, WcOpcode::Recv);
    assert_eq!(end.qp.try_destroy(), Err(Busy { users: 1 }));
    let extra = end.qp.add_flow(Rule::sniffer()).unwrap();
    assert_eq!(end.qp.try_destroy(), Err(Busy { users: 2 }));
    end.qp.remove_flow(extra);
    end.qp.remove_flow(flow);
    assert_eq!(end.qp.try_destroy(), Ok(()));
    assert!(matches!(end.qp.add_flow(to(TO)), Err(FlowError::Destroyed)));
    // Closing the device takes the rules along.
    let context = ferroce_engine::Context::open("fr0").unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, 0, None, 0).unwrap();
    let qp = pd.create_qp(QpInit { service: Service::RawPacket, ..init(&cq, &cq, 4) }).unwrap();
    qp.add_flow(Rule::all(false)).unwrap();
    context.close();
    assert_eq!(qp.try_destroy(), Ok(()));
    // Only raw packets have flows, and they have no groups.
    assert!(matches!(End::new(Wanted::default()).qp.add_flow(to(TO)), Err(FlowError::Service)));
    assert!(sender.qp.attach(ferroce_wire::Gid::from(std::net::Ipv4Addr::new(239, 1, 1, 1))).is_err());
    let limit = raw(QpState::Init);
    let mut flows = 0;
    let refused = loop {
        match limit.qp.add_flow(to(TO)) {
            Ok(_) => flows += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, FlowError::Limit { max } if max == flows), "{refused}");
    limit.qp.destroy();
}

fn a_sniffer_sees_roce_packets() {
    let sniffer = raw(QpState::Rtr);
    let udp = Pattern::new(Layer::Udp).at(2, &4791_u16.to_be_bytes(), &[0xff; 2]);
    sniffer.qp.add_flow(Rule::arriving(vec![udp])).unwrap();
    (0..100).for_each(|id| sniffer.receive(id, sniffer.sge(id as usize * 4096, 4096)));
    let (a, b) = pair();
    b.receive(1, b.sge(0, 100));
    a.memory.fill(3, 100);
    a.post(2, SendOp::Send, a.sge(0, 100));
    b.expect(1, WcOpcode::Recv);
    a.expect(2, WcOpcode::Send);
    let got = sniffer.expect(0, WcOpcode::Recv);
    // Ethernet, IPv4, UDP, BTH, payload, ICRC.
    assert_eq!(got.byte_len, 14 + 20 + 8 + 12 + 100 + 4);
    sniffer.memory.check_at(14 + 20 + 8 + 12, 3, 100);
}

fn an_error_of_the_send_queue() {
    let end = raw(QpState::Rts);
    let bad = ferroce_engine::Sge { lkey: ferroce_wire::Lkey::new(0), ..end.sge(0, 60) };
    end.qp.post_send([send(1, SendOp::Send, &[bad])]).unwrap();
    assert_eq!(end.complete().status, WcStatus::LocProtErr);
    assert_eq!(end.qp.state(), QpState::Sqe);
    let refused = end.qp.post_send([send(2, SendOp::Write { remote: end.remote(0) }, &[])]);
    assert!(refused.is_err());
    // A frame that the interface refuses is lost, as on a wire.
    end.qp.modify(&QpAttr { state: QpState::Rts, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    let sges = [end.sge(0, 5)];
    end.qp.post_send([SendWr { inline: true, ..send(3, SendOp::Send, &sges) }]).unwrap();
    end.expect(3, WcOpcode::Send);
    let caps = ferroce_engine::QpCaps { max_send_wr: 1 << 20, ..Default::default() };
    let init = QpInit { service: Service::RawPacket, caps, ..init(&end.cq, &end.cq, 4) };
    assert!(matches!(end.pd.create_qp(init), Err(CreateQpError::Capability { .. })));
}

fn sleepers_are_woken() {
    let end = raw_with(QpState::Rtr, Wanted { events: true, ..Wanted::default() });
    end.qp.add_flow(to(TO)).unwrap();
    end.receive(1, end.sge(0, 100));
    end.cq.req_notify(false);
    let sender = raw(QpState::Rts);
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| end.channel.as_ref().unwrap().get_event().map(|_| ()).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        transmit(&sender, TO, 7, 60);
        asleep.join().unwrap();
    });
    end.cq.ack_events(1);
    end.expect(1, WcOpcode::Recv);
}
