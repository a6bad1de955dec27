//! iWARP: RDMA over a TCP connection (RFC 5044, RFC 5041, RFC 5040, RFC 6581).

pub mod setup;

/// The rules of one stream, as both ends agreed on them during the set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamConfig {
    /// This end opened the TCP connection.
    pub initiator: bool,
    /// FPDUs carry a CRC in both directions (RFC 5044 7.1.1).
    pub crc: bool,
    /// The peer asked for markers in the FPDUs that this end sends (RFC 5044 4.3).
    pub send_markers: bool,
    /// The FPDUs that this end receives have markers. We never ask for them, so this is false.
    pub receive_markers: bool,
    /// Reads and atomics that this end serves at once, 0 to 128.
    pub ird: u8,
    /// Reads and atomics that this end may have outstanding, 0 to 128.
    pub ord: u8,
    /// The first FPDU of the initiator: the initiator sends it, the responder waits for it (RFC 6581 9.2). `None` if the
    /// connection is not peer-to-peer.
    pub rtr: Option<Rtr>,
    /// Both ends take FPDUs above the MSS.
    pub large_fpdus: bool,
    /// Both ends have immediate data and atomics (RFC 7306).
    pub extensions: bool,
}

/// The kind of a ready-to-receive frame. Each kind has no payload (RFC 6581 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rtr {
    Send,
    Write,
    Read,
}
