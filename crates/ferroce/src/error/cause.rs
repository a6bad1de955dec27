//! The causes of errors: those of the crates below, and their kinds.

use std::io;

use ferroce_engine as engine;
use ferroce_engine::RegMrError;
use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_engine::error::{
    AllocDmError, AnswerError, AttachError, CqError, CreateAhError, CreateChannelError, CreateQpError,
    CreateSrqError, DeviceError, DmAccessError, EventError, LimitReached, ModifyQpError, ModifySrqError,
    NotAttached, OpenError, OpenXrcdError, Overrun, PathError, PostRecvError, PostSendError, QueryError,
    TransportModifyQpError, TransportModifySrqError,
};
use ferroce_wire::Gid;

use super::kind::{Device, ErrorKind, Peer, System, Usage};
use crate::Status;
use crate::connect_error::ConnectError;

/// The error of the call that failed. Programs see its text alone.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    Devices(#[from] DeviceError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("entry {index} of the GID table is empty")]
    EmptyGid { index: u32 },
    #[error(transparent)]
    Limit(#[from] LimitReached),
    #[error(transparent)]
    Register(#[from] RegMrError),
    #[error(transparent)]
    DeviceMemory(#[from] AllocDmError),
    #[error(transparent)]
    DeviceMemoryAccess(#[from] DmAccessError),
    #[error(transparent)]
    Channel(#[from] CreateChannelError),
    #[error(transparent)]
    CompletionQueue(#[from] CqError),
    #[error(transparent)]
    Poll(#[from] Overrun),
    #[error(transparent)]
    Event(#[from] EventError),
    #[error(transparent)]
    QueuePair(#[from] CreateQpError),
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    #[error(transparent)]
    SharedReceiveQueue(#[from] CreateSrqError),
    #[error(transparent)]
    ModifySrq(#[from] ModifySrqError),
    #[error(transparent)]
    XrcDomain(#[from] OpenXrcdError),
    /// The index of the refused send work request in its list, and the reason.
    #[error("{1}")]
    PostSend(usize, PostSendError),
    /// The index of the refused receive work request in its list, and the reason.
    #[error("{1}")]
    PostRecv(usize, PostRecvError),
    #[error(transparent)]
    AddressHandle(#[from] CreateAhError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Detach(#[from] NotAttached),
    #[error("{local} and {remote} are not of one address family")]
    Families { local: Gid, remote: Gid },
    /// The octets of an address have a layout that this version does not know.
    #[error("octets of the unknown layout {0}")]
    Layout(u8),
    /// The octets of an address have an invalid code of the MTU.
    #[error("{0} is no path MTU: 1 (256 octets) to 5 (4096)")]
    Mtu(u8),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The status of a work request that failed.
    #[error("{}", in_words(*.0))]
    Status(Status),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The longest message, in octets.
const MAX_MESSAGE: u64 = 1 << 31;

/// The error number of an event that will never come, because the device is gone.
const EIO: i32 = 5;

const INVALID: ErrorKind = ErrorKind::Usage(Usage::Invalid);
const STATE: ErrorKind = ErrorKind::Usage(Usage::State);
const LIMIT: ErrorKind = ErrorKind::Device(Device::Limit);
const UNSUPPORTED: ErrorKind = ErrorKind::Device(Device::Unsupported);
const NO_BROKER: ErrorKind = ErrorKind::Device(Device::NoBroker);
const NO_ADDRESS: ErrorKind = ErrorKind::Device(Device::NoAddress);
const GONE: ErrorKind = ErrorKind::Device(Device::Gone);
const NO_ROUTE: ErrorKind = ErrorKind::System(System::NoRoute);
const MEMORY: ErrorKind = ErrorKind::System(System::Memory);
const PERMISSION: ErrorKind = ErrorKind::System(System::Permission);

const fn too_large(given: u64, max: u64) -> ErrorKind {
    ErrorKind::Usage(Usage::TooLarge { given, max })
}

impl Cause {
    /// The error of an entry of the GID table that is empty, or that went with its device.
    pub(crate) fn no_gid(context: &engine::Context, index: u32) -> Self {
        if context.is_dead() { Self::Query(QueryError::DeviceGone) } else { Self::EmptyGid { index } }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Devices(DeviceError::Broker(_)) => NO_BROKER,
            Self::Open(error) => open(error),
            Self::Query(QueryError::Port { .. } | QueryError::Index { .. }) => INVALID,
            Self::Query(QueryError::DeviceGone) => GONE,
            Self::EmptyGid { index } => ErrorKind::Device(Device::EmptyGid { index: *index }),
            Self::Limit(LimitReached { .. }) => LIMIT,
            Self::Register(error) => register(error),
            Self::DeviceMemory(AllocDmError::Empty | AllocDmError::Alignment { .. }) => INVALID,
            Self::DeviceMemory(AllocDmError::Limit { .. }) => LIMIT,
            Self::DeviceMemory(AllocDmError::Memory(_)) => MEMORY,
            Self::DeviceMemoryAccess(_) => INVALID,
            Self::Channel(CreateChannelError(error)) | Self::Io(error) => io(error),
            Self::CompletionQueue(error) => completion_queue(error),
            Self::Poll(Overrun) => ErrorKind::Usage(Usage::Overrun),
            Self::Event(EventError::WouldBlock) => ErrorKind::System(System::WouldBlock),
            Self::Event(EventError::Interrupted) => ErrorKind::System(System::Interrupted),
            Self::Event(EventError::Io(error)) if error.raw_os_error() == Some(EIO) => GONE,
            Self::Event(EventError::Io(error)) => io(error),
            Self::QueuePair(error) => queue_pair(error),
            Self::Modify(error) => modify(error),
            Self::SharedReceiveQueue(error) => shared_receive_queue(error),
            Self::ModifySrq(error) => modify_srq(error),
            Self::XrcDomain(OpenXrcdError::Exists | OpenXrcdError::NotThere) => STATE,
            Self::XrcDomain(OpenXrcdError::Iwarp) => UNSUPPORTED,
            Self::PostSend(_, error) => post_send(error),
            Self::PostRecv(_, error) => post_recv(error),
            Self::AddressHandle(CreateAhError::Path(error)) => path(error),
            Self::AddressHandle(CreateAhError::Limit(_)) => LIMIT,
            Self::Answer(AnswerError::NoHeader | AnswerError::Multicast) => INVALID,
            Self::Answer(AnswerError::NoSuchGid { .. }) => NO_ADDRESS,
            Self::Attach(error) => attach(error),
            Self::Detach(NotAttached { .. }) => STATE,
            Self::Families { .. } => INVALID,
            Self::Layout(_) | Self::Mtu(_) => ErrorKind::Peer(Peer::Malformed),
            Self::Connect(error) => connect(error),
            Self::Status(status) => completed(*status),
        }
    }
}

fn io(error: &io::Error) -> ErrorKind {
    ErrorKind::System(match error.kind() {
        io::ErrorKind::WouldBlock => System::WouldBlock,
        io::ErrorKind::Interrupted => System::Interrupted,
        io::ErrorKind::PermissionDenied => System::Permission,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => System::NoRoute,
        io::ErrorKind::OutOfMemory => System::Memory,
        _ => System::Other,
    })
}

fn open(error: &OpenError) -> ErrorKind {
    match error {
        OpenError::Broker(_) => NO_BROKER,
        OpenError::NoSuchDevice { .. } => ErrorKind::Device(Device::NotFound),
        OpenError::Resources(error) => io(error),
    }
}

fn register(error: &RegMrError) -> ErrorKind {
    match error {
        RegMrError::Limit => LIMIT,
        RegMrError::UnknownAccess(_)
        | RegMrError::NeedsLocalWrite
        | RegMrError::NotPersistent
        | RegMrError::NotZeroBased
        | RegMrError::DeviceMemory(_)
        | RegMrError::Wraps
        | RegMrError::DeviceAccess
        | RegMrError::NotMapped
        | RegMrError::ForeignPd => INVALID,
        RegMrError::Device(_) => UNSUPPORTED,
        RegMrError::OnDemandChanged | RegMrError::NoRegion | RegMrError::Bound { .. } => STATE,
        RegMrError::File(error) | RegMrError::System(error) => io(error),
    }
}

fn completion_queue(error: &CqError) -> ErrorKind {
    match *error {
        CqError::Entries { asked, max } if asked > max => too_large(asked.into(), max.into()),
        CqError::Entries { .. } | CqError::Vector { .. } | CqError::Foreign => INVALID,
        CqError::Present { .. } => STATE,
        CqError::Limit(_) => LIMIT,
        CqError::Memory { .. } => MEMORY,
    }
}

fn queue_pair(error: &CreateQpError) -> ErrorKind {
    match *error {
        CreateQpError::Service => UNSUPPORTED,
        CreateQpError::Capability { asked, max, .. } => too_large(asked.into(), max.into()),
        CreateQpError::ForeignCq
        | CreateQpError::ForeignPd
        | CreateQpError::ForeignSrq
        | CreateQpError::Transport(_) => INVALID,
        CreateQpError::Xrcd => STATE,
        CreateQpError::Limit(_) => LIMIT,
        CreateQpError::Frames { .. } => PERMISSION,
    }
}

/// The text for the status of a failed work request.
fn in_words(status: Status) -> String {
    match status {
        Status::WrFlushErr => "the connection is over".to_owned(),
        status => format!("the work request ended with {status:?}"),
    }
}

fn completed(status: Status) -> ErrorKind {
    match status {
        Status::WrFlushErr | Status::RemOpErr | Status::RemAbortErr => ErrorKind::Peer(Peer::Ended),
        Status::RetryExcErr | Status::RnrRetryExcErr | Status::RespTimeoutErr => {
            ErrorKind::Peer(Peer::Unreachable)
        }
        Status::BadRespErr => ErrorKind::Peer(Peer::Malformed),
        Status::FatalErr => GONE,
        _ => INVALID,
    }
}

fn modify(error: &ModifyQpError) -> ErrorKind {
    match error {
        ModifyQpError::Transport(error) => match error {
            TransportModifyQpError::Transition { .. }
            | TransportModifyQpError::CurrentState { .. }
            | TransportModifyQpError::Draining => STATE,
            TransportModifyQpError::Missing { .. }
            | TransportModifyQpError::NotAllowed { .. }
            | TransportModifyQpError::Value { .. }
            | TransportModifyQpError::Unusable { .. } => INVALID,
        },
        ModifyQpError::Path(error) => path(error),
        ModifyQpError::Port { .. } | ModifyQpError::PkeyIndex { .. } => INVALID,
        ModifyQpError::Qkey { .. } => PERMISSION,
        ModifyQpError::PathMtu { asked, active } => too_large(*asked as u64, *active as u64),
        ModifyQpError::Socket(error) => io(error),
        // The program still has it, so it was destroyed with its device.
        ModifyQpError::Destroyed => GONE,
    }
}

fn path(error: &PathError) -> ErrorKind {
    match *error {
        PathError::Iwarp | PathError::Frames { .. } => UNSUPPORTED,
        PathError::NotGlobal
        | PathError::Port { .. }
        | PathError::Dgid { .. }
        | PathError::LinkLocal { .. } => INVALID,
        PathError::SgidIndex { index, .. } => ErrorKind::Device(Device::EmptyGid { index: index.into() }),
        PathError::NoAddress { .. } => NO_ADDRESS,
        PathError::Unanswered { .. } => ErrorKind::Peer(Peer::Unreachable),
        PathError::NoRoute { .. } => NO_ROUTE,
    }
}

fn shared_receive_queue(error: &CreateSrqError) -> ErrorKind {
    match *error {
        CreateSrqError::Empty | CreateSrqError::Foreign => INVALID,
        CreateSrqError::Capability { asked, max, .. } => too_large(asked.into(), max.into()),
        CreateSrqError::Limit(_) => LIMIT,
        CreateSrqError::Memory { .. } => MEMORY,
    }
}

fn modify_srq(error: &ModifySrqError) -> ErrorKind {
    match *error {
        ModifySrqError::Transport(error) => match error {
            TransportModifySrqError::Mask { .. } => INVALID,
            TransportModifySrqError::Size { .. } => STATE,
            TransportModifySrqError::Limit { limit, max_wr } => too_large(limit.into(), max_wr.into()),
            TransportModifySrqError::Memory { .. } => MEMORY,
        },
        ModifySrqError::TooLarge { asked, max } => too_large(asked.into(), max.into()),
        ModifySrqError::Destroyed => GONE,
    }
}

fn post_send(error: &PostSendError) -> ErrorKind {
    match *error {
        PostSendError::State(_) => STATE,
        PostSendError::QueueFull { .. } => ErrorKind::Usage(Usage::QueueFull),
        PostSendError::TooManySges { given, max } => too_large(given as u64, max.into()),
        PostSendError::InlineTooLong { given, max } | PostSendError::DatagramTooLong { given, max } => {
            too_large(given, max.into())
        }
        PostSendError::MessageTooLong { given } => too_large(given, MAX_MESSAGE),
        PostSendError::Operation(_) => UNSUPPORTED,
        PostSendError::Destination(_)
        | PostSendError::InlineNotAllowed
        | PostSendError::AtomicLength { .. }
        | PostSendError::AtomicMisaligned
        | PostSendError::FlushKind
        | PostSendError::NoReadAtomicDepth
        | PostSendError::Inline(_) => INVALID,
    }
}

fn post_recv(error: &PostRecvError) -> ErrorKind {
    match *error {
        PostRecvError::State(_) => STATE,
        PostRecvError::QueueFull { .. } => ErrorKind::Usage(Usage::QueueFull),
        PostRecvError::TooManySges { given, max } => too_large(given as u64, max.into()),
        PostRecvError::Shared | PostRecvError::Xrc => INVALID,
    }
}

fn attach(error: &AttachError) -> ErrorKind {
    match error {
        AttachError::Service | AttachError::NotAGroup { .. } => INVALID,
        AttachError::Iwarp => UNSUPPORTED,
        AttachError::Limit(_) | AttachError::Members { .. } => LIMIT,
        AttachError::Join { source, .. } => io(source),
        AttachError::Destroyed => GONE,
    }
}

fn connect(error: &ConnectError) -> ErrorKind {
    match error {
        ConnectError::Cm(error) => cm(error),
        ConnectError::Resolve(ResolveError::NotLocal(_) | ResolveError::NoDevice(_)) => NO_ADDRESS,
        ConnectError::Resolve(ResolveError::Families { .. }) => INVALID,
        ConnectError::Resolve(ResolveError::Unreachable { .. }) => NO_ROUTE,
        ConnectError::Resolve(ResolveError::Socket(error)) => io(error),
        ConnectError::Resolve(ResolveError::Devices(_)) => NO_BROKER,
        ConnectError::PrivateData(error) => too_large(error.given as u64, error.max as u64),
        ConnectError::Rejected { reason, .. } => ErrorKind::Peer(Peer::Rejected { reason: *reason }),
        ConnectError::Refused { status, .. } => ErrorKind::Peer(Peer::Refused { status: *status }),
        ConnectError::Unreachable => ErrorKind::Peer(Peer::Unreachable),
        ConnectError::Over => ErrorKind::Peer(Peer::Ended),
        ConnectError::Malformed => ErrorKind::Peer(Peer::Malformed),
        ConnectError::Depth { given, max } => too_large((*given).into(), (*max).into()),
        ConnectError::Events(error) => io(error),
    }
}

fn cm(error: &CmError) -> ErrorKind {
    match error {
        CmError::InUse(_) | CmError::WildcardInUse(_) => ErrorKind::Usage(Usage::AddressInUse),
        CmError::NoAddress(_) => NO_ADDRESS,
        CmError::Permission(_) => PERMISSION,
        CmError::Gone(_) => ErrorKind::Peer(Peer::Ended),
        CmError::State(_) => STATE,
        CmError::Full(_) => LIMIT,
        CmError::Invalid(_) => INVALID,
        CmError::PrivateData(error) => too_large(error.given as u64, error.max as u64),
        CmError::Protocol => ErrorKind::Peer(Peer::Malformed),
        CmError::Tcp(error) => tcp(error),
        CmError::Broker(_) | CmError::Device(DeviceError::Broker(_)) => NO_BROKER,
        CmError::Open(error) => open(error),
    }
}

/// The kind of a failure of TCP, which carries iWARP.
fn tcp(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => ErrorKind::Peer(Peer::Unreachable),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => ErrorKind::Peer(Peer::Ended),
        _ => io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use ferroce_engine::error::TransportModifyQpError;
    use ferroce_engine::{QpState, Service};
    use ferroce_wire::cm::PrivateDataTooLong;

    use super::*;

    fn of(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    /// The fault of an error decides what a program does about it, whatever crate the error is from.
    #[test]
    fn causes_have_the_kind_of_their_fault() {
        let text = String::new;
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (dgid, sgid) = (Gid::ZERO, Gid::ZERO);
        let limit = LimitReached { what: "protection domains", max: 1 };
        let max_send_wr = CreateQpError::Capability { what: "max_send_wr", asked: 9, max: 8 };
        let transition = TransportModifyQpError::Transition { from: QpState::Reset, to: QpState::Rts };
        let path = |error| Cause::from(ModifyQpError::Path(error));
        let cm = |error| Cause::from(ConnectError::from(error));
        let system = |kind| ErrorKind::System(kind);
        let peer = |kind| ErrorKind::Peer(kind);
        for (cause, kind) in [
            (DeviceError::Broker(of(2)).into(), NO_BROKER),
            (OpenError::Broker(of(2)).into(), NO_BROKER),
            (OpenError::Resources(of(24)).into(), system(System::Other)),
            (QueryError::DeviceGone.into(), GONE),
            (ModifyQpError::Destroyed.into(), GONE),
            (QueryError::Index { index: 2000, len: 1024 }.into(), INVALID),
            (limit.into(), LIMIT),
            (Cause::Status(Status::WrFlushErr), peer(Peer::Ended)),
            (Cause::Status(Status::RnrRetryExcErr), peer(Peer::Unreachable)),
            (Cause::Status(Status::RemAccessErr), INVALID),
            (RegMrError::Limit.into(), LIMIT),
            (RegMrError::NotMapped.into(), INVALID),
            (RegMrError::Bound { windows: 1 }.into(), STATE),
            (CqError::Entries { asked: 0, max: 8 }.into(), INVALID),
            (CqError::Entries { asked: 9, max: 8 }.into(), too_large(9, 8)),
            (CqError::Present { asked: 1, present: 2 }.into(), STATE),
            (Overrun.into(), ErrorKind::Usage(Usage::Overrun)),
            (EventError::WouldBlock.into(), system(System::WouldBlock)),
            (EventError::Interrupted.into(), system(System::Interrupted)),
            (EventError::ended().into(), GONE),
            (EventError::Io(of(9)).into(), system(System::Other)),
            (max_send_wr.into(), too_large(9, 8)),
            (CreateQpError::ForeignCq.into(), INVALID),
            (ModifyQpError::Transport(transition).into(), STATE),
            (path(PathError::Iwarp), UNSUPPORTED),
            (
                path(PathError::SgidIndex { index: 3, there: None }),
                ErrorKind::Device(Device::EmptyGid { index: 3 }),
            ),
            (path(PathError::Dgid { dgid, sgid }), INVALID),
            (path(PathError::Unanswered { dgid, limit: std::time::Duration::ZERO }), peer(Peer::Unreachable)),
            (CreateSrqError::Memory { max_wr: 1 }.into(), MEMORY),
            (ModifySrqError::TooLarge { asked: 9, max: 8 }.into(), too_large(9, 8)),
            (OpenXrcdError::Iwarp.into(), UNSUPPORTED),
            (Cause::PostSend(0, PostSendError::Operation(Service::Uc)), UNSUPPORTED),
            (Cause::PostSend(0, PostSendError::State(QpState::Init)), STATE),
            (Cause::PostRecv(0, PostRecvError::TooManySges { given: 9, max: 8 }), too_large(9, 8)),
            (AnswerError::NoSuchGid { gid: dgid }.into(), NO_ADDRESS),
            (AttachError::Service.into(), INVALID),
            (NotAttached { mgid: dgid }.into(), STATE),
            (cm(CmError::InUse(text())), ErrorKind::Usage(Usage::AddressInUse)),
            (cm(CmError::WildcardInUse(text())), ErrorKind::Usage(Usage::AddressInUse)),
            (cm(CmError::Permission(text())), PERMISSION),
            (cm(CmError::Gone(text())), peer(Peer::Ended)),
            (cm(CmError::Full(text())), LIMIT),
            (cm(PrivateDataTooLong { given: 57, max: 56 }.into()), too_large(57, 56)),
            (cm(CmError::Protocol), peer(Peer::Malformed)),
            (cm(CmError::Tcp(of(110))), peer(Peer::Unreachable)),
            (cm(CmError::Tcp(of(104))), peer(Peer::Ended)),
            (cm(CmError::Tcp(of(13))), PERMISSION),
            (ConnectError::from(ResolveError::NoDevice(address)).into(), NO_ADDRESS),
            (
                ConnectError::from(ResolveError::Unreachable { destination: address, source: of(101) })
                    .into(),
                NO_ROUTE,
            ),
            (ConnectError::Malformed.into(), peer(Peer::Malformed)),
            (ConnectError::Events(of(4)).into(), system(System::Interrupted)),
        ] {
            let cause: Cause = cause;
            assert_eq!(cause.kind(), kind, "{cause:?}");
        }
    }
}
