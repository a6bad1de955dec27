//! Short messages about an existing connection or request.

use super::path::{flow_label, flow_label_field};
use super::{About, AprStatus, CmTime, CommId, Info, Path, PrivateData, RejReason, bit, is_set, low, view};
use crate::{Gid, Qpn};

/// Ready to use: the requester accepts the REP (IBTA 12.6.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Private data of the consumer.
    pub private: PrivateData<224>,
}

/// Answer to a DREQ: the connection has ended (IBTA 12.6.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Private data of the consumer.
    pub private: PrivateData<224>,
}

macro_rules! ids {
    ($($name:ident)*) => {$(
        impl From<view::Ids> for $name {
            fn from(raw: view::Ids) -> Self {
                Self {
                    local_id: CommId(raw.local_id.get()),
                    remote_id: CommId(raw.remote_id.get()),
                    private: PrivateData(raw.private),
                }
            }
        }

        impl From<$name> for view::Ids {
            fn from(message: $name) -> Self {
                Self {
                    local_id: message.local_id.0.into(),
                    remote_id: message.remote_id.0.into(),
                    private: message.private.0,
                }
            }
        }
    )*};
}

ids!(Rtu Drep);

/// Request to end a connection (IBTA 12.6.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data of the consumer.
    pub private: PrivateData<220>,
}

impl From<view::Dreq> for Dreq {
    fn from(raw: view::Dreq) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            remote_qpn: Qpn::from_be_bytes(raw.remote_qpn),
            private: PrivateData(raw.private),
        }
    }
}

impl From<Dreq> for view::Dreq {
    fn from(dreq: Dreq) -> Self {
        Self {
            local_id: dreq.local_id.0.into(),
            remote_id: dreq.remote_id.0.into(),
            remote_qpn: dreq.remote_qpn.to_be_bytes(),
            reserved: 0,
            private: dreq.private.0,
        }
    }
}

/// Message received, an answer will take longer (IBTA 12.6.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The message that was received.
    pub about: About,
    /// The additional time until the answer.
    pub service_timeout: CmTime,
    /// Private data of the consumer.
    pub private: PrivateData<222>,
}

impl From<view::Mra> for Mra {
    fn from(raw: view::Mra) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            about: About(raw.message >> 6),
            service_timeout: CmTime::from_upper(raw.timeout),
            private: PrivateData(raw.private),
        }
    }
}

impl From<Mra> for view::Mra {
    fn from(mra: Mra) -> Self {
        Self {
            local_id: mra.local_id.0.into(),
            remote_id: mra.remote_id.0.into(),
            message: low(mra.about.0, 2) << 6,
            timeout: mra.service_timeout.upper(),
            private: mra.private.0,
        }
    }
}

/// Refusal (IBTA 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's communication id; 0 if it has none.
    pub local_id: CommId,
    /// The receiver's communication id; 0 if the sender does not know it.
    pub remote_id: CommId,
    /// The message that is refused.
    pub about: About,
    /// The reason for the refusal.
    pub reason: RejReason,
    /// Additional information: a GID, an MTU, the sender's GUID. Its length has 7 bits.
    pub info: Info,
    /// Private data of the consumer.
    pub private: PrivateData<148>,
}

impl From<view::Rej> for Rej {
    fn from(raw: view::Rej) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            about: About(raw.message >> 6),
            reason: RejReason(raw.reason.get()),
            info: Info { len: raw.info_len >> 1, bytes: PrivateData(raw.info) },
            private: PrivateData(raw.private),
        }
    }
}

impl From<Rej> for view::Rej {
    fn from(rej: Rej) -> Self {
        Self {
            local_id: rej.local_id.0.into(),
            remote_id: rej.remote_id.0.into(),
            message: low(rej.about.0, 2) << 6,
            info_len: rej.info.len << 1,
            reason: rej.reason.0.into(),
            info: rej.info.bytes.0,
            private: rej.private.0,
        }
    }
}

/// Request to load an alternate path (IBTA 12.8.1): refused on RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The time in which the receiver should answer.
    pub remote_timeout: CmTime,
    /// The proposed alternate path.
    pub path: Path,
    /// Private data of the consumer.
    pub private: PrivateData<168>,
}

impl From<view::Lap> for Lap {
    fn from(raw: view::Lap) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            remote_qpn: Qpn::from_be_bytes(raw.remote_qpn),
            remote_timeout: CmTime::from_upper(raw.timeout),
            path: Path {
                local_lid: raw.local_lid.get(),
                remote_lid: raw.remote_lid.get(),
                local_gid: Gid(raw.local_gid),
                remote_gid: Gid(raw.remote_gid),
                flow_label: flow_label(raw.flow_label),
                rate: low(raw.rate, 6),
                traffic_class: raw.traffic_class,
                hop_limit: raw.hop_limit,
                sl: raw.sl >> 4,
                subnet_local: is_set(raw.sl, 3),
                ack_timeout: CmTime::from_upper(raw.ack_timeout),
            },
            private: PrivateData(raw.private),
        }
    }
}

impl From<Lap> for view::Lap {
    fn from(lap: Lap) -> Self {
        let path = lap.path;
        Self {
            local_id: lap.local_id.0.into(),
            remote_id: lap.remote_id.0.into(),
            reserved_8: 0.into(),
            remote_qpn: lap.remote_qpn.to_be_bytes(),
            timeout: lap.remote_timeout.upper(),
            reserved_16: 0.into(),
            local_lid: path.local_lid.into(),
            remote_lid: path.remote_lid.into(),
            local_gid: path.local_gid.0,
            remote_gid: path.remote_gid.0,
            flow_label: flow_label_field(path.flow_label),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            rate: low(path.rate, 6),
            sl: low(path.sl, 4) << 4 | bit(path.subnet_local, 3),
            ack_timeout: path.ack_timeout.upper(),
            private: lap.private.0,
        }
    }
}

/// Answer to a LAP (IBTA 12.8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The result of the LAP.
    pub status: AprStatus,
    /// Additional information about the result.
    pub info: Info,
    /// Private data of the consumer.
    pub private: PrivateData<148>,
}

impl From<view::Apr> for Apr {
    fn from(raw: view::Apr) -> Self {
        Self {
            local_id: CommId(raw.local_id.get()),
            remote_id: CommId(raw.remote_id.get()),
            status: AprStatus(raw.status),
            info: Info { len: raw.info_len, bytes: PrivateData(raw.info) },
            private: PrivateData(raw.private),
        }
    }
}

impl From<Apr> for view::Apr {
    fn from(apr: Apr) -> Self {
        Self {
            local_id: apr.local_id.0.into(),
            remote_id: apr.remote_id.0.into(),
            info_len: apr.info.len,
            status: apr.status.0,
            reserved: 0.into(),
            info: apr.info.bytes.0,
            private: apr.private.0,
        }
    }
}
