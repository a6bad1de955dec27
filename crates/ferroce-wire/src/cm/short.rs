//! Short messages about an existing connection or request.

use super::{About, AprStatus, CmTime, CommId, Info, Path, PrivateData, RejReason};
use crate::Qpn;
use crate::bits::{Bits, Fields};

/// Ready to use: the requester accepts the REP (IBTA 12.6.9).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rtu {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Private data of the consumer.
    pub private: PrivateData<224>,
}

impl Fields for Rtu {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            local_id: io.id(self.local_id),
            remote_id: io.id(self.remote_id),
            private: io.private(self.private),
        }
    }
}

/// Answer to a DREQ: the connection has ended (IBTA 12.6.11). It has the fields of an RTU.
pub type Drep = Rtu;

/// Request to end a connection (IBTA 12.6.10).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

impl Fields for Dreq {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            local_id: io.id(self.local_id),
            remote_id: io.id(self.remote_id),
            remote_qpn: io.qpn(self.remote_qpn),
            private: io.skip(8).private(self.private),
        }
    }
}

/// Message received, an answer will take longer (IBTA 12.6.6).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

impl Fields for Mra {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            local_id: io.id(self.local_id),
            remote_id: io.id(self.remote_id),
            about: About(io.u8(2, self.about.0)),
            service_timeout: io.skip(6).time(self.service_timeout),
            private: io.skip(3).private(self.private),
        }
    }
}

/// Refusal (IBTA 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

impl Fields for Rej {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        let (local_id, remote_id) = (io.id(self.local_id), io.id(self.remote_id));
        let about = About(io.u8(2, self.about.0));
        let len = io.skip(6).u8(7, self.info.len);
        let reason = RejReason(io.skip(1).u16(16, self.reason.0));
        let info = Info { len, bytes: io.private(self.info.bytes) };
        Self { local_id, remote_id, about, reason, info, private: io.private(self.private) }
    }
}

/// Request to load an alternate path (IBTA 12.8.1): refused on RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

impl Fields for Lap {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            local_id: io.id(self.local_id),
            remote_id: io.id(self.remote_id),
            remote_qpn: io.skip(32).qpn(self.remote_qpn),
            remote_timeout: io.time(self.remote_timeout),
            path: self.path.pass(io.skip(3 + 32), true),
            private: io.skip(3).private(self.private),
        }
    }
}

/// Answer to a LAP (IBTA 12.8.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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

impl Fields for Apr {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        let (local_id, remote_id) = (io.id(self.local_id), io.id(self.remote_id));
        let len = io.u8(8, self.info.len);
        let status = AprStatus(io.u8(8, self.status.0));
        let info = Info { len, bytes: io.skip(16).private(self.info.bytes) };
        Self { local_id, remote_id, status, info, private: io.private(self.private) }
    }
}
