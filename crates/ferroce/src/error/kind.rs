//! The kinds of errors, by fault.

use std::fmt;

use ferroce_wire::cm::{RejReason, SidrStatus};

/// The kind of an [`Error`](super::Error), by fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device cannot do it, now or at all.
    Device(Device),
    /// The program asked for something wrong.
    Usage(Usage),
    /// The peer refused, does not answer, or sent something invalid.
    Peer(Peer),
    /// The operating system refused.
    System(System),
}

/// Errors that lie with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The broker cannot be reached and cannot be started, so there are no devices.
    NoBroker,
    /// No device has the name.
    NotFound,
    /// The device was removed. Its objects send and receive nothing any more.
    Gone,
    /// No device has the local address, or reaches the peer from it.
    NoAddress,
    /// The entry of the GID table is empty.
    EmptyGid {
        /// The requested index.
        index: u32,
    },
    /// The process has as many objects of the kind, or as much device memory, as the device permits.
    Limit,
    /// The device, its transport or the service of the queue pair has no such operation.
    Unsupported,
}

/// Errors that lie with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Usage {
    /// All work requests of the queue are outstanding.
    #[doc(alias = "ENOMEM")]
    QueueFull,
    /// The completion queue overflowed and lost completions.
    Overrun,
    /// A length in octets, a size or a count exceeds its limit.
    TooLarge {
        /// The given value.
        given: u64,
        /// The limit, in the same unit.
        max: u64,
    },
    /// An argument is outside its range, contradicts another one, or belongs to another device.
    Invalid,
    /// The state of the object does not permit the call.
    State,
    /// The local address and port are in use.
    #[doc(alias = "EADDRINUSE")]
    AddressInUse,
}

/// Errors that lie with the peer, or with the network between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// The peer refused the connection.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// The code of the refusal (IBTA 12.6.7): 28 for a program's own reasons, 8 if no program listens.
        reason: RejReason,
    },
    /// The peer named no queue pair for datagrams.
    Refused {
        /// The code of the refusal (IBTA 12.11): 1 if no program listens, 2 for a program's own reasons.
        status: SidrStatus,
    },
    /// The peer, or the router to it, does not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The connection or the request has ended: the peer gave it up, or its result was already taken.
    Ended,
    /// The octets that the peer sent are invalid.
    Malformed,
}

/// Errors that lie with the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum System {
    /// The program made the descriptor non-blocking, and no event is queued.
    #[doc(alias = "EAGAIN")]
    WouldBlock,
    /// A signal handler ran.
    #[doc(alias = "EINTR")]
    Interrupted,
    /// The program lacks the permission.
    #[doc(alias = "EACCES")]
    Permission,
    /// The kernel has no route to the peer.
    #[doc(alias = "ENETUNREACH")]
    NoRoute,
    /// Memory is exhausted.
    Memory,
    /// A system call failed otherwise, see [`Error::raw_os_error`](super::Error::raw_os_error).
    Other,
}

impl fmt::Display for ErrorKind {
    /// Says what happened and, where something helps, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(kind) => kind.fmt(f),
            Self::Usage(kind) => kind.fmt(f),
            Self::Peer(kind) => kind.fmt(f),
            Self::System(kind) => kind.fmt(f),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBroker => "the broker cannot be reached: run `ferroce doctor`",
            Self::NotFound => "there is no such device: `ferroce dev` lists the devices",
            Self::Gone => "the device is gone: open a device again",
            Self::NoAddress => {
                "no device has the local address: `ferroce link` lists the interfaces with a device"
            }
            Self::EmptyGid { index } => {
                return write!(f, "entry {index} of the GID table is empty: `ferroce gid` lists the others");
            }
            Self::Limit => "a limit of the device is reached: drop objects that are not used any more",
            Self::Unsupported => "the device, or the service of the queue pair, does not have this",
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the queue is full: poll completions, then post the work request again",
            Self::Overrun => {
                "the completion queue overflowed: create another one, and poll as often as you post"
            }
            Self::TooLarge { given, max } => return write!(f, "{given} exceeds the limit of {max}"),
            Self::Invalid => "an argument is invalid",
            Self::State => "the object is in the wrong state for this call",
            Self::AddressInUse => "the address is in use: choose another port",
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rejected { reason: RejReason::INVALID_SERVICE_ID }
            | Self::Refused { status: SidrStatus::UNSUPPORTED } => {
                "the peer refused: no program listens at the port; start it first, or check the port"
            }
            Self::Rejected { reason } => return write!(f, "the peer refused: {reason}"),
            Self::Refused { status } => return write!(f, "the peer refused: {status}"),
            Self::Unreachable => "the peer does not answer: `ferroce ping` with its address finds out why",
            Self::Ended => "the connection is over: connect again",
            Self::Malformed => "the peer sent something invalid: check that it is the program you mean",
        })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WouldBlock => "no event is queued: wait until the descriptor is readable",
            Self::Interrupted => "interrupted by a signal: call again",
            Self::Permission => "the system denies permission: the source of this error names what is needed",
            Self::NoRoute => "there is no route to the peer: see `ip route get`",
            Self::Memory => "memory is exhausted",
            Self::Other => "a call of the operating system failed",
        })
    }
}
