//! Service id resolution (SIDR): a request for the queue pair of a service, without a connection (IBTA
//! 12.11).

use super::{CommId, Ece, Info, PrivateData, ServiceId, SidrStatus};
use crate::bits::{Bits, Fields};
use crate::{Pkey, Qkey, Qpn};

/// Service id resolution request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SidrReq {
    /// The sender's id of the request.
    pub request_id: CommId,
    /// The partition.
    pub pkey: Pkey,
    /// The service that the sender requests.
    pub service_id: ServiceId,
    /// Private data of the consumer.
    pub private: PrivateData<216>,
}

impl Fields for SidrReq {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            request_id: io.id(self.request_id),
            pkey: Pkey::new(io.u16(16, self.pkey.value())),
            service_id: ServiceId(io.skip(16).u64(self.service_id.0)),
            private: io.private(self.private),
        }
    }
}

/// Service id resolution response.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SidrRep {
    /// The request id from the SIDR_REQ.
    pub request_id: CommId,
    /// The result; the other fields have a meaning only if it is [`SidrStatus::VALID`].
    pub status: SidrStatus,
    /// Additional information about the status.
    pub info: Info,
    /// Vendor options.
    pub ece: Ece,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The service id from the SIDR_REQ.
    pub service_id: ServiceId,
    /// The queue pair's key.
    pub qkey: Qkey,
    /// Private data of the consumer.
    pub private: PrivateData<136>,
}

impl Fields for SidrRep {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        let request_id = io.id(self.request_id);
        let status = SidrStatus(io.u8(8, self.status.0));
        let len = io.u8(8, self.info.len);
        let upper = io.u32(16, self.ece.vendor_id >> 8);
        let qpn = io.qpn(self.qpn);
        let vendor_id = upper << 8 | io.u32(8, self.ece.vendor_id);
        Self {
            request_id,
            status,
            ece: Ece { vendor_id, ..self.ece },
            qpn,
            service_id: ServiceId(io.u64(self.service_id.0)),
            qkey: Qkey::new(io.u32(32, self.qkey.value())),
            info: Info { len, bytes: io.private(self.info.bytes) },
            private: io.private(self.private),
        }
    }
}
