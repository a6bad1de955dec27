//! Work requests.

use bitflags::bitflags;
use ferroce_wire::{Feth, Flow, Imm, Lkey, Qkey, Qpn, Rkey, SrqNumber};

/// A piece of local memory (`ibv_sge`, and laid out as it).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_sge")]
#[repr(C)]
pub struct Sge {
    /// First octet, in the address space of the key.
    pub addr: u64,
    /// Octets. Zero means zero, as on every provider but old mlx.
    pub length: u32,
    /// Key of the memory region; ignored for inline data.
    pub lkey: Lkey,
}

/// A piece of the peer's memory; its length is that of the local side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// First octet, in the address space of the key.
    pub addr: u64,
    pub rkey: Rkey,
}

/// Operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    Send,
    SendImm(Imm),
    /// The peer's key ends when the message has arrived.
    SendInvalidate(Rkey),
    Write {
        remote: Remote,
    },
    WriteImm {
        remote: Remote,
        imm: Imm,
    },
    Read {
        remote: Remote,
    },
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// Stores eight octets as one word, behind everything before it.
    AtomicWrite {
        remote: Remote,
        /// The octets; `None` if they are the payload.
        octets: Option<[u8; 8]>,
    },
    /// Waits until earlier writes and atomics of this queue pair are where all see them, or where they
    /// survive.
    Flush {
        remote: Remote,
        length: u32,
        /// Placement type of the flush, and whether it covers the whole region of the key (then address and
        /// length mean nothing).
        feth: Feth,
    },
    /// Ends a key of our own when everything before it has completed.
    LocalInvalidate(Rkey),
    /// Binds a memory window when everything before it has completed.
    BindMw(Bind),
}

/// The memory that a window is bound to (`ibv_mw_bind_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct Bind {
    /// Any key that the window has or had: names it by all but the low octet.
    pub window: Rkey,
    /// The new key: its low octet is that of the window's key from then on.
    pub rkey: Rkey,
    pub region: Lkey,
    /// First octet, in the address space of the region.
    pub addr: u64,
    /// Octets; 0 binds to nothing.
    pub length: u64,
    pub access: WindowAccess,
}

bitflags! {
    /// A peer's permissions through a window: bits of `ibv_access_flags`. Other bits are kept for
    /// [`Memory::bind`](crate::Memory::bind) to refuse.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct WindowAccess: u32 {
        /// `IBV_ACCESS_REMOTE_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// `IBV_ACCESS_REMOTE_READ`.
        const REMOTE_READ = 1 << 2;
        /// `IBV_ACCESS_REMOTE_ATOMIC`.
        const REMOTE_ATOMIC = 1 << 3;
        /// `IBV_ACCESS_ZERO_BASED`: addressed from 0.
        const ZERO_BASED = 1 << 5;
        const _ = !0;
    }
}

/// The destination of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SendTo {
    /// The connected peer: RC and UC.
    #[default]
    Peer,
    /// The destination of a datagram: UD only.
    Datagram {
        /// The way there: what an address handle stands for, with the source port to send from.
        path: Flow,
        qpn: Qpn,
        /// The Q_Key of the datagram. If bit 31 is set, the sender's own Q_Key is used instead (IBTA 10.2.5).
        qkey: Qkey,
    },
    /// A shared receive queue of the connected peer: XRC.
    XrcSrq(SrqNumber),
}

/// A send work request. `post_send` copies the lists that it refers to; the payload memory is read, perhaps
/// more than once, until its completion.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    pub op: SendOp,
    /// The destination; [`SendTo::Peer`] if the service has a fixed peer.
    pub to: SendTo,
    /// Local memory: source of sends and writes, target of reads and atomics.
    pub sges: &'a [Sge],
    /// Asks for a completion of success; errors are always reported.
    pub signaled: bool,
    /// Asks the receiver's side for a solicited event: sends and writes with immediate.
    pub solicited: bool,
    /// Waits until all earlier reads and atomics have completed.
    pub fence: bool,
    /// The payload is captured when posted; the keys of `sges` are ignored.
    pub inline: bool,
}

impl<'a> SendWr<'a> {
    /// A signaled work request to the connected peer, without other flags.
    pub const fn signaled(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        let to = SendTo::Peer;
        Self { wr_id, op, to, sges, signaled: true, solicited: false, fence: false, inline: false }
    }
}

/// An RDMA WRITE without immediate, or an RDMA READ, of at least one octet.
#[derive(Clone, Copy, Debug)]
pub struct DirectRequest<'a> {
    /// Number of the work request among all of the send queue, which is never used again.
    pub index: u64,
    pub kind: DirectKind,
    pub remote: Remote,
    /// Octets.
    pub length: u32,
    pub local: DirectLocal<'a>,
}

/// The direction of a [`DirectRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectKind {
    Write,
    Read,
}

/// The local side of a [`DirectRequest`]. Together as long as the request.
#[derive(Clone, Copy, Debug)]
pub enum DirectLocal<'a> {
    /// Registered memory, not yet checked; some may be empty.
    Sges(&'a [Sge]),
    /// The payload, captured when it was posted.
    Inline(&'a [u8]),
}

/// The rights that a queue pair grants to its connected peer while it answers requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectTarget {
    /// The peer.
    pub remote: Qpn,
    pub write: bool,
    pub read: bool,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The buffers that the message fills, in this order.
    pub sges: &'a [Sge],
}

impl SendOp {
    /// Whether the request has an answer of its own instead of an acknowledgement, and takes one of the
    /// responder's resources (IBTA 9.4.5, A19.4).
    pub(crate) const fn is_answered(&self) -> bool {
        self.writes_local() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Data flows towards us: the local memory is written.
    pub(crate) const fn writes_local(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the request has a payload, which may be inline.
    pub(crate) const fn has_payload(&self) -> bool {
        !(self.writes_local()
            || self.is_local()
            || matches!(self, Self::Flush { .. } | Self::AtomicWrite { octets: Some(_), .. }))
    }

    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the operation takes effect here, without a packet.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindMw(_))
    }

    /// Whether the request takes one of the peer's receive WQEs, so that credits limit it and an RNR NAK may
    /// answer it.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm { .. })
    }
}
