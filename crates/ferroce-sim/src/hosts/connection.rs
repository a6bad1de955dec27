//! Sockets of hosts, and connections between them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroce_proto::{
    Budget, CongestionControl, CreateQpError, ModifyQpError, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig,
    QpState, QueuePair, SelectiveRepeat, Service,
};
use ferroce_wire::{Flow, PathMtu, Psn, Qpn};

/// The receive socket of a host and the process behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// Octets that may wait for the process, each packet with 256 more; a packet that finds more is dropped.
    /// The queue pairs of the process are told this number (`SO_RCVBUF`).
    pub buffer: usize,
    /// The time that the process takes for a packet.
    pub per_packet: Duration,
    /// The most packets that it takes at a time.
    pub batch: usize,
    /// Longest additional time for a batch; the time is drawn anew for each batch.
    pub jitter: Duration,
    /// Blocks of 64 KiB in which the process holds requests that come too early, at most 128.
    pub hold_blocks: usize,
}

impl Default for Socket {
    /// 4 MiB, and a process that takes no time.
    fn default() -> Self {
        Self {
            buffer: 4 << 20,
            per_packet: Duration::ZERO,
            batch: 64,
            jitter: Duration::ZERO,
            hold_blocks: 128,
        }
    }
}

/// The attributes of a connection. One value is for both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Octets of payload of a packet.
    pub mtu: PathMtu,
    /// Sizes of the queues of each end.
    pub caps: QpCaps,
    /// READs and atomics that may be outstanding, 1 to 128.
    pub rd_atomic: u8,
    /// ACK timeout code, 0 (none) to 31: 4.096 µs × 2^code.
    pub timeout: u8,
    /// Resends without an answer before the queue pair fails (`RETRY_EXC_ERR`), 0 to 7.
    pub retry_cnt: u8,
    /// Resends after RNR NAKs, 0 to 6; 7 means without end.
    pub rnr_retry: u8,
    /// The code of the time that an RNR NAK asks for, 0 to 31.
    pub min_rnr_timer: u8,
    /// The first PSN of each end.
    pub psn: [u32; 2],
    /// How lost requests are repeated, of each end.
    pub selective_repeat: [SelectiveRepeat; 2],
    /// The congestion control of each end.
    pub congestion: [CongestionControl; 2],
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            mtu: PathMtu::B1024,
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 256,
            },
            rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            psn: [0x123456, 0x654321],
            selective_repeat: [SelectiveRepeat::Off; 2],
            congestion: [CongestionControl::React; 2],
        }
    }
}

/// A queue pair was not created or connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The sizes of the queues are not possible.
    #[error(transparent)]
    Create(#[from] CreateQpError),
    /// An attribute is out of range.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// There are queue pairs for all numbers.
    #[error("at most {} queue pairs", super::MAX_ENDS)]
    TooMany,
}

impl Connection {
    /// The queue pair of one side, with these addresses and queue pair numbers, in RTS.
    pub(super) fn queue_pair(
        &self,
        side: usize,
        seed: u64,
        [source, destination]: [IpAddr; 2],
        [qpn, dest_qp]: [Qpn; 2],
        budget: Arc<Budget>,
    ) -> Result<QueuePair, ConnectError> {
        let mut qp = QueuePair::new(QpConfig {
            qpn,
            service: Service::Rc,
            caps: self.caps,
            srq: None,
            sq_sig_all: false,
            port_mtu: PathMtu::B4096,
            seed,
            early_resends: true,
            budget,
        })?;
        qp.set_selective_repeat(self.selective_repeat[side]);
        qp.set_congestion_control(self.congestion[side]);
        let capable = self.congestion[side] == CongestionControl::Full;
        let attr = QpAttr {
            path_mtu: self.mtu,
            rq_psn: Psn::new(self.psn[1 - side]),
            sq_psn: Psn::new(self.psn[side]),
            dest_qp,
            access: QpAccess::all(),
            path: Flow {
                source,
                destination,
                source_port: 0xc000 | seed as u16 & 0x3fff,
                traffic_class: if capable { Flow::ECN_CAPABLE } else { 0 },
                hop_limit: 64,
                link: Default::default(),
            },
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        };
        use QpAttrMask as M;
        let to_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let to_rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (QpState::Rtr, to_rtr),
            (QpState::Rts, to_rts),
        ] {
            qp.modify(&QpAttr { state, ..attr }, mask | M::STATE)?;
        }
        Ok(qp)
    }
}
