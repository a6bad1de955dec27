//! Memory windows, atomic write and flush: what the state machines of a queue pair make of them.

use ferroce_proto::{Bind, PostSendError, QpState, SendOp, SendTo, SendWr, WcOpcode, WcStatus, WindowAccess};
use ferroce_wire::{Lkey, Rkey};

use crate::probe::{ACK, BASE, KEY, Probe};
use crate::world::Setup;

/// Resends only when the ACK timeout expires.
fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

/// Binding takes effect in the order of the queue, behind what may still be sent again.
#[test]
fn d10_a_bind_takes_effect_in_its_turn() {
    let bind = |window: u32, octet: u32, region: u32, length: u64| {
        SendOp::BindMw(Bind {
            window: Rkey::new(window),
            rkey: Rkey::new(window & !0xff | octet),
            region: Lkey::new(region),
            addr: BASE,
            length,
            access: WindowAccess::REMOTE_WRITE,
        })
    };
    let mut probe = Probe::new(plain());
    let is_bound = |probe: &Probe, key: u32| probe.end.mem.regions.iter().any(|region| region.key == key);
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, bind(0xabc00, 7, KEY, 64), &[]);
    probe.post(3, SendOp::Send, &[]);
    probe.post(4, SendOp::LocalInvalidate(Rkey::new(0xabc07)), &[]);
    probe.post(5, bind(0xabc00, 8, KEY, 64), &[]);
    assert_eq!(probe.out(), ["send_only 0 [0] A"]);
    assert!(!is_bound(&probe, 0xabc07));
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.out(), ["send_only 1 [0] A"]);
    assert!(is_bound(&probe, 0xabc07));
    let completed = probe.end.sends.last().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len));
    assert_eq!(completed, Some((2, WcOpcode::BindMw, 0)));
    probe.ack(1, ACK).unwrap();
    probe.out();
    assert!(!is_bound(&probe, 0xabc07) && is_bound(&probe, 0xabc08));
    probe.sends();
    // A region that is not there; inline makes no sense.
    let inline = SendWr {
        wr_id: 6,
        op: bind(0xdef00, 1, KEY, 1),
        to: SendTo::Peer,
        sges: &[],
        signaled: true,
        solicited: false,
        fence: false,
        inline: true,
    };
    let refused = probe.end.qp.post_send(probe.now, &inline, &probe.end.mem);
    assert_eq!(refused, Err(PostSendError::InlineNotAllowed));
    probe.post(7, bind(0xdef00, 1, 77, 64), &[]);
    probe.post(8, SendOp::Send, &[]);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.sends(), [(7, WcStatus::MwBindErr), (8, WcStatus::WrFlushErr)]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
}
