//! REQ and REP: the two messages with the parameters of a connection.

use super::{CmTime, CommId, Ece, Path, PrivateData, ServiceId, Transport, bit, is_set, low, view};
use crate::{Pkey, Psn, Qkey, Qpn};

/// Request for a connection (IBTA 12.6.5). "Local" is the sender's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl Req {
    pub(super) fn read(raw: &view::Req, options: u32) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            ece: Ece { vendor_id: vendor(raw.vendor), options },
            service_id: ServiceId(raw.service_id.get()),
            ca_guid: raw.ca_guid.get(),
            qkey: Qkey::new(raw.qkey.get()),
            qpn: Qpn::from_be_bytes(raw.qpn),
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            local_eecn: Qpn::from_be_bytes(raw.local_eecn),
            remote_eecn: Qpn::from_be_bytes(raw.remote_eecn),
            remote_timeout: CmTime::from_upper(raw.remote_timeout),
            local_timeout: CmTime::from_upper(raw.local_timeout),
            transport: Transport::from_bits(raw.remote_timeout >> 1, raw.retries),
            flow_control: is_set(raw.remote_timeout, 0),
            starting_psn: Psn::from_be_bytes(raw.starting_psn),
            retry_count: low(raw.local_timeout, 3),
            pkey: Pkey::new(raw.pkey.get()),
            path_mtu: raw.mtu >> 4,
            rdc_exists: is_set(raw.mtu, 3),
            rnr_retry_count: low(raw.mtu, 3),
            max_cm_retries: raw.retries >> 4,
            srq: is_set(raw.retries, 3),
            primary: raw.primary.into(),
            alternate: raw.alternate.into(),
            sap_supported: is_set(raw.alternate.ack_timeout, 2),
            private: PrivateData(raw.private),
        }
    }

    pub(super) fn write(&self) -> view::Req {
        let (transport, extended) = self.transport.bits();
        let mut alternate = view::Path::from(self.alternate);
        alternate.ack_timeout |= bit(self.sap_supported, 2);
        view::Req {
            local_id: self.local_id.0.into(),
            reserved_4: 0,
            vendor: vendor_field(self.ece.vendor_id),
            service_id: self.service_id.0.into(),
            ca_guid: self.ca_guid.into(),
            reserved_24: 0.into(),
            qkey: self.qkey.value().into(),
            qpn: self.qpn.to_be_bytes(),
            responder_resources: self.responder_resources,
            local_eecn: self.local_eecn.to_be_bytes(),
            initiator_depth: self.initiator_depth,
            remote_eecn: self.remote_eecn.to_be_bytes(),
            remote_timeout: self.remote_timeout.upper() | transport << 1 | bit(self.flow_control, 0),
            starting_psn: self.starting_psn.to_be_bytes(),
            local_timeout: self.local_timeout.upper() | low(self.retry_count, 3),
            pkey: self.pkey.value().into(),
            mtu: low(self.path_mtu, 4) << 4 | bit(self.rdc_exists, 3) | low(self.rnr_retry_count, 3),
            retries: low(self.max_cm_retries, 4) << 4 | bit(self.srq, 3) | extended,
            primary: self.primary.into(),
            alternate,
            private: self.private.0,
        }
    }
}

/// Reply to a request for a connection (IBTA 12.6.8). "Local" is the sender's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl Rep {
    pub(super) fn read(raw: &view::Rep, options: u32) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            qkey: Qkey::new(raw.qkey.get()),
            qpn: Qpn::from_be_bytes(raw.qpn),
            eecn: Qpn::from_be_bytes(raw.eecn),
            ece: Ece { vendor_id: vendor([raw.vendor_high, raw.vendor_mid, raw.vendor_low]), options },
            starting_psn: Psn::from_be_bytes(raw.starting_psn),
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            target_ack_delay: CmTime::from_upper(raw.ack_delay),
            failover: low(raw.ack_delay >> 1, 2),
            flow_control: is_set(raw.ack_delay, 0),
            rnr_retry_count: raw.rnr_retry >> 5,
            srq: is_set(raw.rnr_retry, 4),
            ca_guid: raw.ca_guid.get(),
            private: PrivateData(raw.private),
        }
    }

    pub(super) fn write(&self) -> view::Rep {
        let [vendor_high, vendor_mid, vendor_low] = vendor_field(self.ece.vendor_id);
        view::Rep {
            local_id: self.local_id.0.into(),
            remote_id: self.remote_id.0.into(),
            qkey: self.qkey.value().into(),
            qpn: self.qpn.to_be_bytes(),
            vendor_high,
            eecn: self.eecn.to_be_bytes(),
            vendor_mid,
            starting_psn: self.starting_psn.to_be_bytes(),
            vendor_low,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            ack_delay: self.target_ack_delay.upper() | low(self.failover, 2) << 1 | bit(self.flow_control, 0),
            rnr_retry: low(self.rnr_retry_count, 3) << 5 | bit(self.srq, 4),
            ca_guid: self.ca_guid.into(),
            private: self.private.0,
        }
    }
}

pub(super) const fn vendor(field: [u8; 3]) -> u32 {
    let [a, b, c] = field;
    u32::from_be_bytes([0, a, b, c])
}

pub(super) const fn vendor_field(vendor: u32) -> [u8; 3] {
    let [_, a, b, c] = vendor.to_be_bytes();
    [a, b, c]
}
