//! Errors, by operation.

use crate::{MemoryError, QpAttrMask, QpState, Service, SrqAttrMask};

/// Why no queue pair was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateQpError {
    /// An XRC target takes from the queues of an XRC domain, other services do not.
    #[error("a queue pair of service {0:?} cannot take its receive WQEs from there")]
    SharedReceives(Service),
}

/// Why a completion counter was not attached; the queue pair is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachCounterError {
    /// Counters are attached in RESET and INIT alone.
    #[error("a queue pair in {0:?} takes no counter")]
    State(QpState),
    /// The mask of operations is empty.
    #[error("no operation to count")]
    NoOperation,
    /// The mask has bits that name no operation.
    #[error("unknown operations {unknown:#x}")]
    Operations { unknown: u32 },
    /// The queue pair has a counter for some of the operations.
    #[error("operations {ops:#x} are counted already")]
    Taken { ops: u32 },
    /// The counter was destroyed.
    #[error("the counter was destroyed")]
    Ended,
}

/// Why a modify changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModifyQpError {
    /// The state machine has no such transition (IBTA 10.3.1).
    #[error("no transition from {from} to {to}: RESET, INIT, RTR and RTS follow each other")]
    Transition { from: QpState, to: QpState },
    /// `cur_state` was given and is wrong, or may not be given in this state.
    #[error("the queue pair is in {actual}, not in cur_qp_state {claimed}")]
    CurrentState {
        actual: QpState,
        /// State the caller named.
        claimed: QpState,
    },
    /// The transition needs attributes that the mask does not have.
    #[error("{from} to {to} needs {missing} in attr_mask")]
    Missing { from: QpState, to: QpState, missing: QpAttrMask },
    /// The transition does not allow attributes that the mask has.
    #[error("{from} to {to} does not take {extra} in attr_mask")]
    NotAllowed { from: QpState, to: QpState, extra: QpAttrMask },
    /// A value is out of its range.
    #[error("{attribute} is {value}; it can be {range}")]
    Value { attribute: QpAttrMask, value: u32, range: &'static str },
    /// An attribute cannot be set so.
    #[error("{attribute}: {why}")]
    Unusable { attribute: QpAttrMask, why: &'static str },
    /// In SQD, and what had started has not yet completed.
    #[error("the send queue is still draining")]
    Draining,
}

/// Why a send work request was not taken; the queue is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostSendError {
    /// RESET, INIT and RTR take none.
    #[error("a queue pair in {0} takes no send work requests")]
    State(QpState),
    /// All WQEs are in use.
    #[error("all {max} send WQEs are in use")]
    QueueFull { max: u32 },
    /// More SGEs than the queue pair was made for.
    #[error("{given} SGEs, at most {max}")]
    TooManySges {
        given: usize,
        /// `max_send_sge`.
        max: u32,
    },
    /// More inline octets than the queue pair was made for.
    #[error("{given} inline octets, at most {max}")]
    InlineTooLong {
        given: u64,
        /// `max_inline`.
        max: u32,
    },
    /// The service does not know this operation, as READ on UC or WRITE on UD.
    #[error("a queue pair of service {0:?} has no such operation")]
    Operation(Service),
    /// A datagram without a destination, or a destination given to a connected queue pair.
    #[error("a queue pair of service {0:?} does not send to such a destination")]
    Destination(Service),
    /// A datagram is one packet.
    #[error("a datagram of {given} octets, at most {max}")]
    DatagramTooLong { given: u64, max: u32 },
    /// Inline makes no sense for an operation that writes local memory or has no payload.
    #[error("this operation has no inline payload")]
    InlineNotAllowed,
    /// Longer than a message can be.
    #[error("{given} octets, a message has at most 2^31")]
    MessageTooLong { given: u64 },
    /// Atomics are eight octets.
    #[error("an atomic needs 8 octets of local memory, not {given}")]
    AtomicLength { given: u64 },
    /// Atomics are aligned.
    #[error("an atomic needs a remote address that is a multiple of 8")]
    AtomicMisaligned,
    /// A flush needs to be told where to: global visibility, persistence or both, of a range or the whole
    /// region.
    #[error("no such kind of flush")]
    FlushKind,
    /// A read or atomic, and `max_rd_atomic` is 0.
    #[error("max_rd_atomic is 0: the queue pair can do no reads and atomics")]
    NoReadAtomicDepth,
    /// The inline payload cannot be read.
    #[error("the inline payload cannot be read")]
    Inline(#[source] MemoryError),
}

/// Why a receive work request was not taken; the queue is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostRecvError {
    /// RESET takes none.
    #[error("a queue pair in {0} takes no receive work requests")]
    State(QpState),
    /// All WQEs are in use.
    #[error("all {max} receive WQEs are in use")]
    QueueFull { max: u32 },
    /// More SGEs than the queue pair was made for.
    #[error("{given} SGEs, at most {max}")]
    TooManySges {
        given: usize,
        /// `max_recv_sge`.
        max: u32,
    },
    /// The queue pair takes its receive WQEs from a shared queue: post there.
    #[error("the queue pair has a shared receive queue and none of its own")]
    Shared,
    /// XRC's queue pairs receive into the shared queues of an XRC domain, or not at all.
    #[error("an XRC queue pair has no receive queue")]
    Xrc,
}

/// Why the attributes of a shared receive queue were not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModifySrqError {
    /// Attributes that do not exist.
    #[error("a shared receive queue has no attributes {unknown:?}")]
    Mask { unknown: SrqAttrMask },
    /// Too small for what is in it, or for anything.
    #[error("{asked} work requests do not hold the {present} that are outstanding")]
    Size { asked: u32, present: u32 },
    /// A limit that is more than it can hold.
    #[error("a limit of {limit} is more than the queue's {max_wr} work requests")]
    Limit {
        /// Limit asked for, or armed before.
        limit: u32,
        max_wr: u32,
    },
    /// No memory for the new size.
    #[error("no memory for {max_wr} work requests")]
    Memory { max_wr: u32 },
}

/// Why a packet had no effect. A NAK may have been sent nevertheless; these are for counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DropReason {
    /// The packet's ICRC was not verified.
    #[error("ICRC not verified")]
    IcrcUnchecked,
    /// The packet is for another queue pair.
    #[error("for another queue pair")]
    WrongQpn,
    /// Not from the connected peer's address.
    #[error("not from the peer's address")]
    WrongSource,
    /// Not of this queue pair's partition (IBTA C9-42).
    #[error("wrong P_Key")]
    WrongPkey,
    /// The opcode belongs to another service (IBTA C9-43).
    #[error("opcode of another service")]
    WrongService,
    /// The datagram does not carry this queue pair's Q_Key (IBTA C9-51).
    #[error("wrong Q_Key")]
    WrongQkey,
    /// The queue pair does not answer in its state.
    #[error("the queue pair's state takes no such packets")]
    State,
    /// Executed before; answered again where that helps the peer.
    #[error("duplicate request")]
    DuplicateRequest,
    /// The answer to this READ or atomic is no longer kept, or the duplicate differs from the original.
    #[error("duplicate of a read or atomic that is not retained")]
    DuplicateNotFound,
    /// Ahead of the expected PSN.
    #[error("request ahead of the expected PSN")]
    OutOfSequence,
    /// No receive WQE; the peer was asked to come again.
    #[error("no receive WQE")]
    ReceiverNotReady,
    /// No receive WQE, on a service that cannot ask the peer to come again.
    #[error("no receive WQE: the message is lost")]
    NoReceiveWqe,
    /// Longer than the receive WQE, on a service that cannot say so.
    #[error("longer than the receive WQE")]
    TooLong,
    /// Opcode, length or permission is wrong, on a service that cannot say so.
    #[error("invalid request")]
    InvalidRequest,
    /// Key or range is wrong, on a service that cannot say so.
    #[error("no access to that memory")]
    AccessDenied,
    /// The memory of the receive WQE cannot be written: our own program's fault.
    #[error("the receive WQE's memory cannot be written")]
    LocalFault,
    /// Refused with a fatal NAK.
    #[error("refused with a NAK")]
    Refused,
    /// The answers or completions before it were not yet fetched.
    #[error("earlier answers or completions were not yet fetched")]
    Backlog,
    /// Answers a request that is no longer outstanding.
    #[error("answer to nothing outstanding")]
    StaleResponse,
    /// Answer after a gap; the missing part is asked for again.
    #[error("answer after a gap")]
    ResponseGap,
    /// A repeated NAK.
    #[error("NAK that was already acted upon")]
    DuplicateNak,
    /// AETH of a reserved kind.
    #[error("reserved AETH syndrome")]
    ReservedSyndrome,
    /// The answer breaks the protocol; the WQE failed.
    #[error("answer that breaks the protocol")]
    BadResponse,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::IcrcUnchecked,
        Self::WrongQpn,
        Self::WrongSource,
        Self::WrongPkey,
        Self::WrongService,
        Self::WrongQkey,
        Self::State,
        Self::DuplicateRequest,
        Self::DuplicateNotFound,
        Self::OutOfSequence,
        Self::ReceiverNotReady,
        Self::NoReceiveWqe,
        Self::TooLong,
        Self::InvalidRequest,
        Self::AccessDenied,
        Self::LocalFault,
        Self::Refused,
        Self::Backlog,
        Self::StaleResponse,
        Self::ResponseGap,
        Self::DuplicateNak,
        Self::ReservedSyndrome,
        Self::BadResponse,
    ];
}
