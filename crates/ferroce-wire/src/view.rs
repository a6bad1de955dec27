//! Headers in wire layout, read in place. Multi-octet fields are big-endian.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! views {
    ($($(#[$doc:meta])* $name:ident, $len:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
        }

        const _: () = assert!(size_of::<$name>() == $len);
    )*};
}

views! {
    /// Base transport header (IBTA 9.2).
    Bth, 12 {
        /// Service and operation.
        opcode: u8,
        /// SE:1 M:1 PadCnt:2 TVer:4.
        flags: u8,
        /// Partition key.
        pkey: U16,
        /// FECN:1 BECN:1 reserved:6; the ICRC takes this octet as 0xff.
        ecn: u8,
        /// Destination queue pair.
        dest_qp: [u8; 3],
        /// A:1 reserved:7.
        ack_req: u8,
        /// Packet sequence number.
        psn: [u8; 3],
    }

    /// RDMA extended transport header (IBTA 9.3.3).
    Reth, 16 {
        /// Virtual address.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// Octets of the whole message.
        dma_len: U32,
    }

    /// Atomic extended transport header (IBTA 9.3.4).
    AtomicEth, 28 {
        /// Virtual address.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// The value to store or to add.
        swap_or_add: U64,
        /// The value to compare with.
        compare: U64,
    }

    /// ACK extended transport header (IBTA 9.3.5).
    Aeth, 4 {
        /// Acknowledgement, RNR NAK or NAK.
        syndrome: u8,
        /// Messages completed.
        msn: [u8; 3],
    }

    /// Datagram extended transport header (IBTA 9.3.2).
    Deth, 8 {
        /// Queue key.
        qkey: U32,
        /// Sent as 0, ignored on receipt.
        reserved: u8,
        /// Sender's queue pair.
        src_qp: [u8; 3],
    }

    /// XRC extended transport header (annex A14).
    XrcEth, 4 {
        /// Sent as 0, ignored on receipt.
        reserved: u8,
        /// Shared receive queue.
        srq: [u8; 3],
    }

    /// Atomic ACK extended transport header (IBTA 9.3.5.3).
    AtomicAckEth, 8 {
        /// The value before the operation.
        original: U64,
    }

    /// Flush extended transport header (annex A19).
    Feth, 4 {
        /// reserved:26 selectivity:2 placement:4.
        word: U32,
    }

    /// Ethernet header without its type or tags.
    EthernetAddresses, 12 {
        /// The receiver's address.
        destination: [u8; 6],
        /// The sender's address.
        source: [u8; 6],
    }

    /// IPv4 header without options (RFC 791).
    Ipv4, 20 {
        /// 0x45.
        version_ihl: u8,
        /// DSCP and ECN; masked in the ICRC.
        tos: u8,
        /// Octets with this header.
        total_len: U16,
        /// Covered by the ICRC.
        id: U16,
        /// reserved:1 DF:1 MF:1 offset:13.
        fragment: U16,
        /// Masked in the ICRC.
        ttl: u8,
        /// 17.
        protocol: u8,
        /// Masked in the ICRC.
        checksum: U16,
        /// The sender's address.
        source: [u8; 4],
        /// The receiver's address.
        destination: [u8; 4],
    }

    /// IPv6 header (RFC 8200), and the GRH of RoCEv1, which has the same layout (IBTA 8.3).
    Ipv6, 40 {
        /// version:4 traffic class:8 flow label:20; all but the version masked in the ICRC.
        word0: U32,
        /// Octets after this header.
        payload_len: U16,
        /// 17 for UDP, 0x1b for a BTH.
        next_header: u8,
        /// Masked in the ICRC.
        hop_limit: u8,
        /// The sender's address.
        source: [u8; 16],
        /// The receiver's address.
        destination: [u8; 16],
    }

    /// UDP header (RFC 768).
    Udp, 8 {
        /// Entropy for ECMP.
        source_port: U16,
        /// 4791.
        destination_port: U16,
        /// Octets with this header.
        len: U16,
        /// 0, or a checksum; masked in the ICRC.
        checksum: U16,
    }
}
