//! REQ and REP: the two messages with the parameters of a connection.

use super::{CmTime, CommId, Ece, Path, PrivateData, ServiceId, Transport};
use crate::bits::{Bits, Fields};
use crate::{Pkey, Psn, Qkey, Qpn};

/// Request for a connection (IBTA 12.6.5). "Local" is the sender's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Req {
    /// The sender's communication id.
    pub local_id: CommId,
    /// Vendor options.
    pub ece: Ece,
    /// The service that the sender requests.
    pub service_id: ServiceId,
    /// The sender's node GUID.
    pub ca_guid: u64,
    /// Used by RD only.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Reads and atomics that the sender can respond to at a time.
    pub responder_resources: u8,
    /// Reads and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Used by RD only; 24 bits.
    pub local_eecn: Qpn,
    /// Used by RD only; 24 bits.
    pub remote_eecn: Qpn,
    /// The time in which the receiver should answer.
    pub remote_timeout: CmTime,
    /// The time in which the sender answers.
    pub local_timeout: CmTime,
    /// The transport service of the queue pairs.
    pub transport: Transport,
    /// Whether the sender's queue pair gives credits.
    pub flow_control: bool,
    /// The first PSN that the sender expects.
    pub starting_psn: Psn,
    /// `retry_cnt` for the receiver's queue pair, 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: Pkey,
    /// Code of the path MTU, 4 bits: see [`crate::PathMtu`].
    pub path_mtu: u8,
    /// Used by RD only.
    pub rdc_exists: bool,
    /// `rnr_retry` for the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// Repetitions of a message by the receiver, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair takes from a shared receive queue.
    pub srq: bool,
    /// The primary path.
    pub primary: Path,
    /// The alternate path; all zero without an alternate path.
    pub alternate: Path,
    /// The sender knows the alternate path's suggested values.
    pub sap_supported: bool,
    /// Private data of the consumer.
    pub private: PrivateData<92>,
}

impl Fields for Req {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        let (mut transport, mut extended) = self.transport.bits();
        Self {
            local_id: io.id(self.local_id),
            ece: Ece { vendor_id: io.skip(8).u32(24, self.ece.vendor_id), ..self.ece },
            service_id: ServiceId(io.u64(self.service_id.0)),
            ca_guid: io.u64(self.ca_guid),
            qkey: Qkey::new(io.skip(32).u32(32, self.qkey.value())),
            qpn: io.qpn(self.qpn),
            responder_resources: io.u8(8, self.responder_resources),
            local_eecn: io.qpn(self.local_eecn),
            initiator_depth: io.u8(8, self.initiator_depth),
            remote_eecn: io.qpn(self.remote_eecn),
            remote_timeout: io.time(self.remote_timeout),
            flow_control: {
                transport = io.u8(2, transport);
                io.flag(self.flow_control)
            },
            starting_psn: io.psn(self.starting_psn),
            local_timeout: io.time(self.local_timeout),
            retry_count: io.u8(3, self.retry_count),
            pkey: Pkey::new(io.u16(16, self.pkey.value())),
            path_mtu: io.u8(4, self.path_mtu),
            rdc_exists: io.flag(self.rdc_exists),
            rnr_retry_count: io.u8(3, self.rnr_retry_count),
            max_cm_retries: io.u8(4, self.max_cm_retries),
            srq: io.flag(self.srq),
            transport: {
                extended = io.u8(3, extended);
                Transport::from_bits(transport, extended)
            },
            primary: self.primary.pass(io, false),
            alternate: self.alternate.pass(io.skip(3), false),
            sap_supported: io.flag(self.sap_supported),
            private: io.skip(2).private(self.private),
        }
    }
}

/// Reply to a request for a connection (IBTA 12.6.8). "Local" is the sender's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rep {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Used by RD only.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// RD: end-to-end context. XRC: the sender's target queue pair.
    pub eecn: Qpn,
    /// Vendor options.
    pub ece: Ece,
    /// The first PSN that the sender expects.
    pub starting_psn: Psn,
    /// Reads and atomics that the sender can respond to at a time.
    pub responder_resources: u8,
    /// Reads and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Longest time that the sender's queue pair takes to acknowledge.
    pub target_ack_delay: CmTime,
    /// The answer about the alternate path, 2 bits: 0 accepted, 1 not supported, 2 refused.
    pub failover: u8,
    /// Whether the sender's queue pair gives credits.
    pub flow_control: bool,
    /// `rnr_retry` for the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's queue pair takes from a shared receive queue.
    pub srq: bool,
    /// The sender's node GUID.
    pub ca_guid: u64,
    /// Private data of the consumer.
    pub private: PrivateData<196>,
}

impl Fields for Rep {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        let [_, mut high, mut mid, mut low] = self.ece.vendor_id.to_be_bytes();
        Self {
            local_id: io.id(self.local_id),
            remote_id: io.id(self.remote_id),
            qkey: Qkey::new(io.u32(32, self.qkey.value())),
            qpn: io.qpn(self.qpn),
            eecn: {
                high = io.u8(8, high);
                io.qpn(self.eecn)
            },
            starting_psn: {
                mid = io.u8(8, mid);
                io.psn(self.starting_psn)
            },
            ece: {
                low = io.u8(8, low);
                Ece { vendor_id: u32::from_be_bytes([0, high, mid, low]), ..self.ece }
            },
            responder_resources: io.u8(8, self.responder_resources),
            initiator_depth: io.u8(8, self.initiator_depth),
            target_ack_delay: io.time(self.target_ack_delay),
            failover: io.u8(2, self.failover),
            flow_control: io.flag(self.flow_control),
            rnr_retry_count: io.u8(3, self.rnr_retry_count),
            srq: io.flag(self.srq),
            ca_guid: io.skip(4).u64(self.ca_guid),
            private: io.private(self.private),
        }
    }
}
