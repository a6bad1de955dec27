//! Raw packet queue pairs: frames in, frames out.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use ferroce_proto::{
    Budget, DropReason, MAX_FRAME, NoSharedQueue, PostSendError, QpAttr, QpAttrMask, QpCaps, QpConfig,
    QpEvent, QpState, QueuePair, RecvWr, SendOp, SendTo, SendWr, Service, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use ferroce_sim::ram::Ram;
use ferroce_wire::{Imm, Lkey, PathMtu, Qpn};
use std::sync::Arc;

const KEY: u32 = 7;
const BASE: u64 = 0x1000;

fn queue_pair(state: QpState) -> QueuePair {
    let mut qp = QueuePair::new(QpConfig {
        qpn: Qpn::new(0x01_0001),
        service: Service::RawPacket,
        caps: QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline: 64 },
        srq: None,
        sq_sig_all: false,
        port_mtu: PathMtu::B1024,
        seed: 1,
        early_resends: true,
        budget: Arc::new(Budget::new(1 << 20)),
    })
    .unwrap();
    for (to, mask) in [
        (QpState::Init, QpAttrMask::STATE | QpAttrMask::PORT),
        (QpState::Rtr, QpAttrMask::STATE),
        (QpState::Rts, QpAttrMask::STATE),
    ] {
        if qp.state() == state {
            break;
        }
        qp.modify(&QpAttr { state: to, port_num: 1, ..QpAttr::default() }, mask).unwrap();
    }
    assert_eq!(qp.state(), state);
    qp
}

fn memory() -> Ram {
    let mut ram = Ram::default();
    ram.register(KEY, BASE, (0..100_000_u32).map(|i| i as u8).collect::<Vec<_>>());
    ram
}

fn sge(offset: u64, length: u32) -> Sge {
    Sge { addr: BASE + offset, length, lkey: Lkey::new(KEY) }
}

fn send(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op: SendOp::Send,
        sges,
        signaled: true,
        solicited: false,
        fence: false,
        inline: false,
        to: SendTo::Peer,
    }
}

fn events(qp: &mut QueuePair) -> Vec<QpEvent> {
    std::iter::from_fn(|| qp.poll_event()).collect()
}

fn told(event: &QpEvent) -> (u64, WcStatus, u32) {
    let (QpEvent::Send(WorkCompletion { wr_id, status, byte_len, .. })
    | QpEvent::Recv(WorkCompletion { wr_id, status, byte_len, .. })) = event
    else {
        panic!("{event:?}")
    };
    (*wr_id, *status, *byte_len)
}

#[test]
fn frames_leave_whole_and_in_order() {
    let (mut qp, mem) = (queue_pair(QpState::Rts), memory());
    let mut out = vec![0; MAX_FRAME];
    for (wr_id, sges) in
        [(1, &[sge(0, 60)][..]), (2, &[sge(5, 14), sge(100, 9000)]), (3, &[sge(0, MAX_FRAME as u32)])]
    {
        qp.post_send(&send(wr_id, sges), &mem).unwrap();
    }
    assert_eq!(qp.poll_frame(&mem, &mut out), Some(60));
    assert_eq!(out[..60], mem.bytes(KEY)[..60]);
    assert_eq!(qp.poll_frame(&mem, &mut out), Some(9014));
    assert_eq!((&out[..14], &out[14..9014]), (&mem.bytes(KEY)[5..19], &mem.bytes(KEY)[100..9100]));
    assert_eq!(qp.poll_frame(&mem, &mut out), Some(MAX_FRAME));
    assert_eq!(qp.poll_frame(&mem, &mut out), None);
    let told: Vec<_> = events(&mut qp).iter().map(told).collect();
    let sent = |wr_id, len| (wr_id, WcStatus::Success, len);
    assert_eq!(told, [sent(1, 60), sent(2, 9014), sent(3, MAX_FRAME as u32)]);
}

#[test]
fn frames_fill_one_receive_each() {
    let (mut qp, mut mem) = (queue_pair(QpState::Rtr), memory());
    qp.post_recv(&RecvWr { wr_id: 1, sges: &[sge(0, 10), sge(50, 100)] }).unwrap();
    qp.post_recv(&RecvWr { wr_id: 2, sges: &[sge(200, 59)] }).unwrap();
    qp.post_recv(&RecvWr { wr_id: 3, sges: &[sge(300, 60)] }).unwrap();
    let frame = [0xee; 60];
    assert_eq!(qp.handle_frame(&frame, &mut NoSharedQueue, &mut mem), Ok(()));
    assert_eq!(qp.handle_frame(&frame, &mut NoSharedQueue, &mut mem), Err(DropReason::TooLong));
    assert_eq!(qp.handle_frame(&frame, &mut NoSharedQueue, &mut mem), Ok(()));
    assert_eq!(qp.handle_frame(&frame, &mut NoSharedQueue, &mut mem), Err(DropReason::NoReceiveWqe));
    let bytes = mem.bytes(KEY);
    assert!(bytes[..10].iter().chain(&bytes[50..100]).all(|&byte| byte == 0xee));
    assert_eq!((bytes[10], bytes[100], bytes[200]), (10, 100, 200), "what is not its own");
    let told: Vec<_> = events(&mut qp).iter().map(told).collect();
    assert_eq!(told, [(1, WcStatus::Success, 60), (2, WcStatus::LocLenErr, 0), (3, WcStatus::Success, 60)]);
    assert_eq!((qp.state(), qp.counters().dropped_pkts), (QpState::Rtr, 2));
}

#[test]
fn states_and_operations_are_checked() {
    let mut mem = memory();
    for state in [QpState::Reset, QpState::Init] {
        let mut qp = queue_pair(state);
        assert_eq!(qp.handle_frame(&[0; 60], &mut NoSharedQueue, &mut mem), Err(DropReason::State));
        assert_eq!(qp.post_send(&send(1, &[]), &mem), Err(PostSendError::State(state)));
    }
    let mut qp = queue_pair(QpState::Rts);
    let imm = SendWr { op: SendOp::SendImm(Imm([0; 4])), ..send(1, &[]) };
    assert_eq!(qp.post_send(&imm, &mem), Err(PostSendError::Operation(Service::RawPacket)));
    let long = [sge(0, MAX_FRAME as u32 + 1)];
    let max = MAX_FRAME as u32;
    let too_long = PostSendError::DatagramTooLong { given: u64::from(max) + 1, max };
    assert_eq!(qp.post_send(&send(1, &long), &mem), Err(too_long));
    let state = |state| QpAttr { state, ..QpAttr::default() };
    qp.modify(&state(QpState::Error), QpAttrMask::STATE).unwrap();
    assert_eq!(qp.handle_frame(&[0; 60], &mut NoSharedQueue, &mut mem), Err(DropReason::State));
}

/// An unreliable service: a bad key ends sending alone, until the program goes on from SQE.
#[test]
fn a_bad_key_stops_the_send_queue() {
    let (mut qp, mut mem) = (queue_pair(QpState::Rts), memory());
    let mut out = vec![0; MAX_FRAME];
    let wrong = [Sge { lkey: Lkey::new(99), ..sge(0, 60) }];
    qp.post_send(&send(1, &wrong), &mem).unwrap();
    qp.post_send(&send(2, &[sge(0, 60)]), &mem).unwrap();
    qp.post_recv(&RecvWr { wr_id: 3, sges: &[sge(0, 60)] }).unwrap();
    assert_eq!(qp.poll_frame(&mem, &mut out), None);
    assert_eq!(qp.state(), QpState::Sqe);
    let told_of: Vec<_> = events(&mut qp).iter().map(told).collect();
    assert_eq!(told_of, [(1, WcStatus::LocProtErr, 0), (2, WcStatus::WrFlushErr, 0)]);
    assert_eq!(qp.handle_frame(&[0; 60], &mut NoSharedQueue, &mut mem), Ok(()));
    let rts = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    qp.modify(&rts, QpAttrMask::STATE).unwrap();
    qp.post_send(&send(4, &[sge(0, 60)]), &mem).unwrap();
    assert_eq!(qp.poll_frame(&mem, &mut out), Some(60));
    let opcodes: Vec<_> = events(&mut qp)
        .iter()
        .map(|event| match event {
            QpEvent::Send(completion) | QpEvent::Recv(completion) | QpEvent::RecvXrc(_, completion) => {
                completion.opcode
            }
            QpEvent::Async(event) => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(opcodes, [WcOpcode::Send, WcOpcode::Recv]);
}
