//! Service id resolution (SIDR): a request for the queue pair of a service, without a connection (IBTA
//! 12.11).

use super::req::{vendor, vendor_field};
use super::{CommId, Ece, Info, PrivateData, ServiceId, SidrStatus, view};
use crate::{Pkey, Qkey, Qpn};

/// Service id resolution request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl From<view::SidrReq> for SidrReq {
    fn from(raw: view::SidrReq) -> Self {
        Self {
            request_id: CommId(raw.request_id.get()),
            pkey: Pkey::new(raw.pkey.get()),
            service_id: ServiceId(raw.service_id.get()),
            private: PrivateData(raw.private),
        }
    }
}

impl From<SidrReq> for view::SidrReq {
    fn from(req: SidrReq) -> Self {
        Self {
            request_id: req.request_id.0.into(),
            pkey: req.pkey.value().into(),
            reserved: 0.into(),
            service_id: req.service_id.0.into(),
            private: req.private.0,
        }
    }
}

/// Service id resolution response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl SidrRep {
    pub(super) fn read(raw: &view::SidrRep, options: u32) -> Self {
        let [high, mid] = raw.vendor_high;
        Self {
            request_id: CommId(raw.request_id.get()),
            status: SidrStatus(raw.status),
            info: Info { len: raw.info_len, bytes: PrivateData(raw.info) },
            ece: Ece { vendor_id: vendor([high, mid, raw.vendor_low]), options },
            qpn: Qpn::from_be_bytes(raw.qpn),
            service_id: ServiceId(raw.service_id.get()),
            qkey: Qkey::new(raw.qkey.get()),
            private: PrivateData(raw.private),
        }
    }

    pub(super) fn write(&self) -> view::SidrRep {
        let [high, mid, vendor_low] = vendor_field(self.ece.vendor_id);
        view::SidrRep {
            request_id: self.request_id.0.into(),
            status: self.status.0,
            info_len: self.info.len,
            vendor_high: [high, mid],
            qpn: self.qpn.to_be_bytes(),
            vendor_low,
            service_id: self.service_id.0.into(),
            qkey: self.qkey.value().into(),
            info: self.info.bytes.0,
            private: self.private.0,
        }
    }
}
