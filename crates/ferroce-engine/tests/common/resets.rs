//! Queue pairs that are reset and connected again with the same numbers, while packets of before are on their way.

use super::*;

const ROUNDS: usize = 30;
/// Sends of before, and behind the reset.
const OLD: u64 = 8;
const NEW: u64 = 16;
const LEN: usize = 64;
/// The octet that only old messages have.
const STALE: u8 = 0xee;
/// Where receives are, and what a WRITE reaches.
const RECEIVED: usize = 1 << 16;
const WRITTEN: usize = 1 << 18;

pub fn reset(end: &End) {
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    end.qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

fn ends(service: Service) -> (End, End) {
    let ends = [(); 2].map(|()| End::new(Wanted { service, ..Wanted::default() }));
    let [a, b] = ends;
    connect(&a, &b, 0, PathMtu::B1024);
    (a, b)
}

/// Posts messages with old data.
fn post_old(a: &End, op: SendOp) {
    (0..LEN).for_each(|i| a.memory.set(i, STALE));
    (0..OLD).for_each(|i| a.post(900 + i, op, a.sge(0, LEN)));
}

/// Exchanges new messages, each with octets of its own.
fn exchange_new(a: &End, b: &End) {
    for i in 0..NEW {
        let at = RECEIVED + LEN * i as usize;
        b.memory.set(at, 0);
        b.receive(i, b.sge(at, LEN));
    }
    for i in 0..NEW {
        let at = LEN * (1 + i as usize);
        (0..LEN).for_each(|j| a.memory.set(at + j, 1 + i as u8));
        a.post(i, SendOp::Send, a.sge(at, LEN));
    }
    for i in 0..NEW {
        let received = b.complete();
        let octet = b.memory.get(RECEIVED + LEN * i as usize);
        assert_eq!((received.status, received.wr_id, octet), (WcStatus::Success, i, 1 + i as u8));
    }
    for i in 0..NEW {
        let sent = a.complete();
        assert_eq!((sent.status, sent.wr_id), (WcStatus::Success, i));
    }
}

/// How the second connection comes about.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Both are reset, the sender first, then connected.
    SenderFirst,
    /// The receiver is reset and connected again before the sender is reset.
    ReceiverFirst,
    /// Both enter the error state before they are reset.
    Error,
}

/// Messages of before the reset are received by no receive of the new connection.
pub fn old_messages_are_dropped(service: Service) {
    let (a, b) = ends(service);
    for _ in 0..ROUNDS {
        for order in [Order::SenderFirst, Order::ReceiverFirst, Order::Error] {
            post_old(&a, SendOp::Send);
            match order {
                Order::SenderFirst => {
                    reset(&a);
                    reset(&b);
                    connect(&a, &b, 0, PathMtu::B1024);
                }
                Order::ReceiverFirst => {
                    reset(&b);
                    to_init(&b.qp);
                    reset(&a);
                    to_rts(&b.qp, address(&a.context, &a.qp, 0), 0, PathMtu::B1024);
                    to_init(&a.qp);
                    to_rts(&a.qp, address(&b.context, &b.qp, 0), 0, PathMtu::B1024);
                }
                Order::Error => {
                    for end in [&b, &a] {
                        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
                        end.qp.modify(&attr, QpAttrMask::STATE).unwrap();
                        reset(end);
                    }
                    connect(&a, &b, 0, PathMtu::B1024);
                }
            }
            exchange_new(&a, &b);
            reset(&a);
            reset(&b);
            connect(&a, &b, 0, PathMtu::B1024);
        }
    }
}

/// A WRITE of before the reset changes no memory behind it.
pub fn old_writes_are_dropped() {
    let (a, b) = ends(Service::Rc);
    for _ in 0..ROUNDS {
        post_old(&a, SendOp::Write { remote: b.remote(WRITTEN) });
        reset(&a);
        reset(&b);
        connect(&a, &b, 0, PathMtu::B1024);
        b.memory.set(WRITTEN, 1);
        exchange_new(&a, &b);
        assert_eq!(b.memory.get(WRITTEN), 1);
        reset(&a);
        reset(&b);
        connect(&a, &b, 0, PathMtu::B1024);
    }
}

/// Acknowledgements of before the reset complete no send behind it: the peer stays in RESET.
pub fn old_acknowledgements_are_dropped() {
    let (a, b) = ends(Service::Rc);
    for _ in 0..ROUNDS {
        (0..OLD).for_each(|i| b.receive(i, b.sge(RECEIVED, LEN)));
        post_old(&a, SendOp::Send);
        for _ in 0..OLD {
            b.complete();
        }
        reset(&a);
        reset(&b);
        to_init(&a.qp);
        let peer = address(&b.context, &b.qp, 0);
        to_rts(&a.qp, peer, 0, PathMtu::B1024);
        (0..OLD).for_each(|i| a.post(i, SendOp::Send, a.sge(0, LEN)));
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        a.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        for _ in 0..OLD {
            assert_eq!(a.complete().status, WcStatus::WrFlushErr);
        }
        reset(&a);
        connect(&a, &b, 0, PathMtu::B1024);
    }
}

/// The next queue pair with a number of before receives nothing that was sent to the last one.
pub fn a_number_that_is_used_again_brings_nothing() {
    let (a, mut b) = ends(Service::Uc);
    let mut again = 0;
    for _ in 0..ROUNDS {
        post_old(&a, SendOp::Send);
        let qpn = b.qp.qpn();
        b.qp.destroy();
        b.qp = b.pd.create_qp(QpInit { service: Service::Uc, ..init(&b.cq, &b.cq, 128) }).unwrap();
        again += usize::from(b.qp.qpn() == qpn);
        reset(&a);
        connect(&a, &b, 0, PathMtu::B1024);
        exchange_new(&a, &b);
        reset(&a);
        reset(&b);
        connect(&a, &b, 0, PathMtu::B1024);
    }
    println!("{again} of {ROUNDS} numbers were used again at once");
}

/// Datagrams that came before RTR are not received.
pub fn old_datagrams_are_dropped() {
    let [a, b] = [(); 2].map(|()| End::new(Wanted { service: Service::Ud, ..Wanted::default() }));
    let ah = |end: &End, peer: &End| {
        let dgid = address(&peer.context, &peer.qp, 0).gid;
        end.pd.create_ah(AhAttr { dgid, sgid_index: 0, ..AhAttr::default() }).unwrap()
    };
    let to_b = ah(&a, &b);
    ud_to_rts(&a.qp);
    for _ in 0..ROUNDS {
        to_init(&b.qp);
        b.receive(1, b.sge(RECEIVED, 4096));
        let sge = [a.sge(0, LEN)];
        for seq in 0..2_u64 {
            if seq == 1 {
                for state in [QpState::Rtr, QpState::Rts] {
                    let attr = QpAttr { state, ..QpAttr::default() };
                    let psn = if state == QpState::Rts { QpAttrMask::SQ_PSN } else { QpAttrMask::empty() };
                    b.qp.modify(&attr, QpAttrMask::STATE | psn).unwrap();
                }
            }
            a.memory.set(0, seq as u8);
            let to = to_b.to(b.qp.qpn(), QKEY).unwrap();
            let wr = SendWr { to, ..send(seq, SendOp::Send, &sge) };
            a.qp.post_send([wr]).unwrap();
            a.expect(seq, WcOpcode::Send);
        }
        let received = b.complete();
        assert_eq!((received.status, b.memory.get(RECEIVED + 40)), (WcStatus::Success, 1));
        reset(&b);
    }
}
