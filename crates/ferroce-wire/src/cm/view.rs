//! Bodies of CM messages as they lie behind the MAD header: 232 octets each (IBTA 12.6 and 12.11).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mad::BODY_LEN;

/// A whole body.
pub(super) trait View {
    fn of(body: [u8; BODY_LEN]) -> Self;
    fn body(&self) -> [u8; BODY_LEN];
}

macro_rules! bodies {
    ($($name:ident)*) => {$(
        impl View for $name {
            fn of(body: [u8; BODY_LEN]) -> Self {
                zerocopy::transmute!(body)
            }

            fn body(&self) -> [u8; BODY_LEN] {
                zerocopy::transmute!(*self)
            }
        }
    )*};
}

bodies!(Req Rep Ids Dreq Mra Rej Lap Apr SidrReq SidrRep);

macro_rules! views {
    ($($name:ident, $len:expr, { $($field:ident: $ty:ty,)* })*) => {$(
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $ty,)*
        }

        const _: () = assert!(size_of::<$name>() == $len);
    )*};
}

views! {
    Req, BODY_LEN, {
        local_id: U32,
        reserved_4: u8,
        vendor: [u8; 3],
        service_id: U64,
        ca_guid: U64,
        reserved_24: U32,
        qkey: U32,
        qpn: [u8; 3],
        responder_resources: u8,
        local_eecn: [u8; 3],
        initiator_depth: u8,
        remote_eecn: [u8; 3],
        // Remote CM response timeout:5 transport:2 end-to-end flow control:1.
        remote_timeout: u8,
        starting_psn: [u8; 3],
        // Local CM response timeout:5 retry count:3.
        local_timeout: u8,
        pkey: U16,
        // Path MTU:4 RDC exists:1 RNR retry count:3.
        mtu: u8,
        // Max CM retries:4 SRQ:1 extended transport:3.
        retries: u8,
        primary: Path,
        alternate: Path,
        private: [u8; 92],
    }

    Path, 44, {
        local_lid: U16,
        remote_lid: U16,
        local_gid: [u8; 16],
        remote_gid: [u8; 16],
        // Flow label:20 reserved:4.
        flow_label: [u8; 3],
        // Reserved:2 rate:6.
        rate: u8,
        traffic_class: u8,
        hop_limit: u8,
        // SL:4 subnet local:1 reserved:3.
        sl: u8,
        // Local ACK timeout:5; of the alternate path, SAP supported:1; reserved.
        ack_timeout: u8,
    }

    Rep, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        qkey: U32,
        qpn: [u8; 3],
        vendor_high: u8,
        eecn: [u8; 3],
        vendor_mid: u8,
        starting_psn: [u8; 3],
        vendor_low: u8,
        responder_resources: u8,
        initiator_depth: u8,
        // Target ACK delay:5 failover accepted:2 end-to-end flow control:1.
        ack_delay: u8,
        // RNR retry count:3 SRQ:1 reserved:4.
        rnr_retry: u8,
        ca_guid: U64,
        private: [u8; 196],
    }

    Ids, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        private: [u8; 224],
    }

    Dreq, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        remote_qpn: [u8; 3],
        reserved: u8,
        private: [u8; 220],
    }

    Mra, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        // Message:2 reserved:6.
        message: u8,
        // Service timeout:5 reserved:3.
        timeout: u8,
        private: [u8; 222],
    }

    Rej, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        // Message:2 reserved:6.
        message: u8,
        // Length of the additional information:7 reserved:1.
        info_len: u8,
        reason: U16,
        info: [u8; 72],
        private: [u8; 148],
    }

    Lap, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        reserved_8: U32,
        remote_qpn: [u8; 3],
        // Remote CM response timeout:5 reserved:3.
        timeout: u8,
        reserved_16: U32,
        local_lid: U16,
        remote_lid: U16,
        local_gid: [u8; 16],
        remote_gid: [u8; 16],
        // Flow label:20 reserved:4.
        flow_label: [u8; 3],
        traffic_class: u8,
        hop_limit: u8,
        rate: u8,
        sl: u8,
        ack_timeout: u8,
        private: [u8; 168],
    }

    Apr, BODY_LEN, {
        local_id: U32,
        remote_id: U32,
        info_len: u8,
        status: u8,
        reserved: U16,
        info: [u8; 72],
        private: [u8; 148],
    }

    SidrReq, BODY_LEN, {
        request_id: U32,
        pkey: U16,
        reserved: U16,
        service_id: U64,
        private: [u8; 216],
    }

    SidrRep, BODY_LEN, {
        request_id: U32,
        status: u8,
        info_len: u8,
        vendor_high: [u8; 2],
        qpn: [u8; 3],
        vendor_low: u8,
        service_id: U64,
        qkey: U32,
        info: [u8; 72],
        private: [u8; 136],
    }

    // The RDMA IP CM service's part of private data (annex A11).
    IpHeader, 36, {
        // Major:4 minor:4.
        version: u8,
        // IP version:4 reserved:4.
        ip_version: u8,
        source_port: U16,
        source: [u8; 16],
        destination: [u8; 16],
    }
}
