//! The one place where errors become errno: a `match` for each error of the engine, without a catch-all, so
//! that a new variant does not compile until it has one.

use std::io;

use core::ffi::c_int;
use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_engine::error::{
    AllocDmError, AnswerError, AttachCounterError, AttachError, Busy, CqError, CreateAhError,
    CreateChannelError, CreateQpError, CreateSrqError, DeviceError, DmAccessError, EventError, FlowError,
    LimitReached, ModifyQpError, ModifySrqError, NotAttached, OpenError, OpenQpError, OpenXrcdError, Overrun,
    PathError, PostRecvError, PostSendError, QueryError, SysfsError, TransportCreateQpError,
    TransportModifyQpError, TransportModifySrqError,
};
use ferroce_engine::faults::{self, Verb, VerbFacts};
use ferroce_engine::{AdviseError, RegMrError};
use ferroce_memory::DeviceRefusal as Refusal;
use ferroce_rsocket::{Failure, RsocketError};

use crate::reason::{tell, tell_of_post};

/// An errno value that a call of ours returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(c_int);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self(libc::$name);)*
        }
    };
}

/// The judgement of a plan of faults on a call.
#[inline]
pub(crate) fn judged(fault: Option<c_int>) -> Result<(), Errno> {
    fault.map_or(Ok(()), |code| Err(Errno(code)))
}

/// As [`judged`], for a call whose device is not known yet.
#[inline]
pub(crate) fn judged_without_device(verb: Verb) -> Result<(), Errno> {
    judged(faults::verb(|| VerbFacts { verb, dev: None, qp: None }))
}

/// As [`judged_without_device`], at the first attempt of a call that makes several.
#[inline]
pub(crate) fn judged_once(verb: Verb, judged: &mut bool) -> Result<(), Errno> {
    if std::mem::replace(judged, true) { Ok(()) } else { judged_without_device(verb) }
}

errnos! {
    /// Only root may.
    EACCES;
    /// Another program holds the port.
    EADDRINUSE;
    /// The address does not belong to this host.
    EADDRNOTAVAIL;
    /// There is no route to the address.
    ENETUNREACH;
    /// Addresses of that family cannot be used.
    EAFNOSUPPORT;
    /// No such descriptor.
    EBADF;
    /// The descriptor is non-blocking and nothing is there.
    EAGAIN;
    /// The peer rejected the connection.
    ECONNREFUSED;
    /// The peer ended the connection.
    ECONNRESET;
    /// Others still use the object.
    EBUSY;
    /// The object exists already.
    EEXIST;
    /// Not the program's memory, or not with the access asked for.
    EFAULT;
    /// The connection is being made.
    EINPROGRESS;
    /// A signal handler ran.
    EINTR;
    /// An argument, a state, or a destroyed handle.
    EINVAL;
    /// The device is gone, or a panic ended the context; a socket's connection broke.
    EIO;
    /// The socket is connected and cannot send to another peer.
    EISCONN;
    /// A directory in the place of a file.
    EISDIR;
    /// More places than a call may name, or a datagram that is too long.
    EMSGSIZE;
    /// An entry of the GID table is empty; a buffer has no DMA-BUF.
    ENODATA;
    /// No such device.
    ENODEV;
    /// No completion is there; no such file.
    ENOENT;
    /// A limit is reached, a queue is full, or there is no memory.
    ENOMEM;
    /// Inline data does not fit.
    ENOSPC;
    /// The call itself does not exist.
    ENOSYS;
    /// There is no connection.
    ENOTCONN;
    /// A file in the place of a directory.
    ENOTDIR;
    /// The call or an option of it does not exist on this device.
    EOPNOTSUPP;
    /// Another user owns the broker.
    EPERM;
    /// The program itself stopped sending.
    EPIPE;
    /// The peer does not answer.
    ETIMEDOUT;
}

impl Errno {
    /// The positive number.
    pub const fn code(self) -> c_int {
        self.0
    }

    /// For the functions of `ibv_qp_ex`: a payload beyond the inline limit is ENOSPC there.
    pub(crate) fn of_batch(error: PostSendError) -> Self {
        match error {
            PostSendError::InlineTooLong { .. } => Self::ENOSPC,
            other => other.into(),
        }
    }
}

/// Sets the calling thread's errno.
pub fn set(errno: Errno) {
    // SAFETY: glibc gives a valid pointer to the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno.code() }
}

/// The conversion takes the system's errno, or EIO without one.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        (&error).into()
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) => Self(code),
            None if error.kind() == io::ErrorKind::PermissionDenied => Self::EPERM,
            None if error.kind() == io::ErrorKind::OutOfMemory => Self::ENOMEM,
            None => Self::EIO,
        }
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Self {
        tell("the list of devices", &error);
        match &error {
            DeviceError::Broker(source) if is_forbidden(source) => Self::EPERM,
            DeviceError::Broker(_) => Self::ENOSYS,
        }
    }
}

impl From<SysfsError> for Errno {
    fn from(error: SysfsError) -> Self {
        match error {
            SysfsError::NoSuchFile => Self::ENOENT,
            SysfsError::NotADirectory => Self::ENOTDIR,
            SysfsError::Directory => Self::EISDIR,
            SysfsError::Empty => Self::EINVAL,
            SysfsError::Device(error) => error.into(),
        }
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        tell("the device", &error);
        match &error {
            OpenError::Broker(source) | OpenError::Resources(source) => source.into(),
            OpenError::NoSuchDevice { .. } => Self::ENODEV,
        }
    }
}

impl From<CmError> for Errno {
    fn from(error: CmError) -> Self {
        match &error {
            // Both tell themselves.
            CmError::Device(_) | CmError::Open(_) => {}
            error => tell("connection management", error),
        }
        match error {
            CmError::InUse(_) => Self::EADDRINUSE,
            CmError::NoAddress(_) | CmError::WildcardInUse(_) => Self::EADDRNOTAVAIL,
            CmError::Permission(_) => Self::EACCES,
            CmError::Gone(_) | CmError::State(_) | CmError::Invalid(_) | CmError::PrivateData(_) => {
                Self::EINVAL
            }
            CmError::Protocol => Self(libc::EPROTO),
            CmError::Tcp(source) => source.into(),
            CmError::Full(_) => Self::ENOMEM,
            CmError::Broker(_) => Self::ENODEV,
            CmError::Device(error) => error.into(),
            CmError::Open(error) => error.into(),
        }
    }
}

impl From<ResolveError> for Errno {
    fn from(error: ResolveError) -> Self {
        match &error {
            ResolveError::Devices(_) => {}
            error => tell("an address", error),
        }
        match error {
            ResolveError::NotLocal(_) => Self::EADDRNOTAVAIL,
            ResolveError::NoDevice(_) => Self::ENODEV,
            ResolveError::Families { .. } => Self::EINVAL,
            ResolveError::Unreachable { source, .. } | ResolveError::Socket(source) => source.into(),
            ResolveError::Devices(error) => error.into(),
        }
    }
}

impl From<RsocketError> for Errno {
    fn from(error: RsocketError) -> Self {
        match error {
            RsocketError::WouldBlock | RsocketError::Suspended(_) => Self::EAGAIN,
            RsocketError::InProgress => Self::EINPROGRESS,
            RsocketError::NotConnected => Self::ENOTCONN,
            RsocketError::Invalid | RsocketError::NoMapping(_) => Self::EINVAL,
            RsocketError::Closed => Self::EBADF,
            RsocketError::Reset => Self::ECONNRESET,
            RsocketError::ShutDown => Self::EPIPE,
            RsocketError::TooLong => Self::EMSGSIZE,
            RsocketError::Interrupted => Self::EINTR,
            RsocketError::Failed(failure) => failure.into(),
            RsocketError::Peer(_) => Self::EIO,
            RsocketError::Full => Self::ENOMEM,
            RsocketError::Resolve(error) => error.into(),
            RsocketError::Cm(error) => error.into(),
            RsocketError::Open(error) => error.into(),
            RsocketError::Memory(error) => error.into(),
            RsocketError::Resource(error) => {
                tracing::error!("an rsocket: {error}");
                Self::ENOMEM
            }
            RsocketError::System(error) => error.into(),
        }
    }
}

impl From<CreateChannelError> for Errno {
    fn from(CreateChannelError(source): CreateChannelError) -> Self {
        source.into()
    }
}

impl From<RegMrError> for Errno {
    fn from(error: RegMrError) -> Self {
        tell("a memory region", &error);
        match error {
            RegMrError::Limit => Self::ENOMEM,
            RegMrError::UnknownAccess(_)
            | RegMrError::NeedsLocalWrite
            | RegMrError::NotPersistent
            | RegMrError::Wraps
            | RegMrError::OnDemandChanged
            | RegMrError::NoRegion
            | RegMrError::NotZeroBased
            | RegMrError::DeviceMemory(_)
            | RegMrError::ForeignPd => Self::EINVAL,
            RegMrError::Bound { .. } => Self::EBUSY,
            RegMrError::NotMapped | RegMrError::Device(Refusal::OutOfRange) => Self::EFAULT,
            RegMrError::DeviceAccess | RegMrError::Device(Refusal::Array | Refusal::Managed) => {
                Self::EOPNOTSUPP
            }
            // As the kernel for a descriptor that is no DMA-BUF.
            RegMrError::File(source) => match source.raw_os_error() {
                Some(code @ (libc::EBADF | libc::ENOMEM)) => Self(code),
                _ => Self::EINVAL,
            },
            RegMrError::System(_) | RegMrError::Device(Refusal::Driver(_) | Refusal::System(_)) => {
                Self::ENOMEM
            }
        }
    }
}

impl From<FlowError> for Errno {
    fn from(error: FlowError) -> Self {
        tell("ibv_create_flow", &error);
        match error {
            FlowError::Service => Self::EOPNOTSUPP,
            FlowError::Limit { .. } => Self::ENOMEM,
            FlowError::Destroyed => Self::EINVAL,
            FlowError::System(source) => source.into(),
        }
    }
}

impl From<CreateQpError> for Errno {
    fn from(error: CreateQpError) -> Self {
        // Programs search for the largest value by which a queue pair is made.
        if !matches!(error, CreateQpError::Capability { what: "max_inline_data", .. }) {
            tell("ibv_create_qp", &error);
        }
        match error {
            CreateQpError::Service => Self::EOPNOTSUPP,
            CreateQpError::Capability { .. }
            | CreateQpError::ForeignCq
            | CreateQpError::ForeignPd
            | CreateQpError::ForeignSrq
            | CreateQpError::Xrcd => Self::EINVAL,
            CreateQpError::Limit(_) => Self::ENOMEM,
            CreateQpError::Frames { source, .. } => source.into(),
            CreateQpError::Transport(error) => match error {
                TransportCreateQpError::SharedReceives(_) => Self::EINVAL,
            },
        }
    }
}

impl From<ModifySrqError> for Errno {
    fn from(error: ModifySrqError) -> Self {
        tell("a shared receive queue", &error);
        match error {
            ModifySrqError::Transport(error) => error.into(),
            ModifySrqError::TooLarge { .. } | ModifySrqError::Destroyed => Self::EINVAL,
        }
    }
}

impl From<ModifyQpError> for Errno {
    fn from(error: ModifyQpError) -> Self {
        tell("ibv_modify_qp", &error);
        match error {
            ModifyQpError::Transport(error) => match error {
                TransportModifyQpError::Transition { .. }
                | TransportModifyQpError::CurrentState { .. }
                | TransportModifyQpError::Missing { .. }
                | TransportModifyQpError::NotAllowed { .. }
                | TransportModifyQpError::Value { .. }
                | TransportModifyQpError::Unusable { .. }
                | TransportModifyQpError::Draining => Self::EINVAL,
            },
            ModifyQpError::Path(error) => error.into(),
            ModifyQpError::Port { .. }
            | ModifyQpError::PkeyIndex { .. }
            | ModifyQpError::PathMtu { .. }
            | ModifyQpError::Destroyed => Self::EINVAL,
            ModifyQpError::Qkey { .. } => Self::EPERM,
            ModifyQpError::Socket(source) => source.into(),
        }
    }
}

impl From<AttachError> for Errno {
    fn from(error: AttachError) -> Self {
        tell("ibv_attach_mcast", &error);
        match error {
            AttachError::Service | AttachError::NotAGroup { .. } | AttachError::Destroyed => Self::EINVAL,
            AttachError::Iwarp => Self::EOPNOTSUPP,
            AttachError::Limit(_) | AttachError::Members { .. } => Self::ENOMEM,
            AttachError::Join { source, .. } => match source.raw_os_error() {
                // Descriptors and the kernel's memory are what a group costs.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Self::ENOMEM,
                _ => source.into(),
            },
        }
    }
}

impl From<PathError> for Errno {
    fn from(error: PathError) -> Self {
        match error {
            // For a transition, as siw; an address handle is not supported at all.
            PathError::Iwarp
            | PathError::NotGlobal
            | PathError::Port { .. }
            | PathError::SgidIndex { .. }
            | PathError::Dgid { .. } => Self::EINVAL,
            PathError::NoAddress { .. } => Self::EADDRNOTAVAIL,
            // As Linux answers for an address without a route (6.12, `rdma_addr_find_l2_eth_by_grh`).
            PathError::LinkLocal { .. } => Self::ENETUNREACH,
            PathError::NoRoute { errno, .. } => Self(errno),
            PathError::Frames { .. } => Self::EPERM,
            PathError::Unanswered { .. } => Self::ETIMEDOUT,
        }
    }
}

impl From<AnswerError> for Errno {
    fn from(error: AnswerError) -> Self {
        tell("ibv_init_ah_from_wc", &error);
        match error {
            AnswerError::NoHeader | AnswerError::Multicast | AnswerError::NoSuchGid { .. } => Self::EINVAL,
        }
    }
}

impl From<CreateAhError> for Errno {
    fn from(error: CreateAhError) -> Self {
        tell("ibv_create_ah", &error);
        match error {
            CreateAhError::Path(PathError::Iwarp) => Self::EOPNOTSUPP,
            CreateAhError::Path(error) => error.into(),
            CreateAhError::Limit(_) => Self::ENOMEM,
        }
    }
}

impl From<EventError> for Errno {
    fn from(error: EventError) -> Self {
        match error {
            EventError::WouldBlock => Self::EAGAIN,
            EventError::Interrupted => Self::EINTR,
            EventError::Io(source) => source.into(),
        }
    }
}

/// Errors of which each variant has an errno, in a `match` without a catch-all. A function tells those of a
/// named call, but for a variant that is an ordinary answer.
macro_rules! table {
    ($($(#[$doc:meta])* $error:ident $($tell:ident $call:literal $(unless $ordinary:pat =>)?)? { $($variants:pat => $errno:ident,)* })*) => {
        $(
            $(#[$doc])*
            impl From<$error> for Errno {
                fn from(error: $error) -> Self {
                    $(
                        let is_ordinary = false $(|| matches!(error, $ordinary))?;
                        if !is_ordinary {
                            $tell($call, &error);
                        }
                    )?
                    match error {
                        $($variants => Self::$errno,)*
                    }
                }
            }
        )*
    };
}

table! {
    Failure {
        Failure::Refused => ECONNREFUSED,
        Failure::NoAnswer => ETIMEDOUT,
        Failure::NoRsocket(_) => EOPNOTSUPP,
        Failure::Broken(_) | Failure::QueuePair => EIO,
    }
    QueryError {
        QueryError::Port { .. } | QueryError::Index { .. } => EINVAL,
        QueryError::DeviceGone => EIO,
    }
    /// As the man page of `ibv_advise_mr` where it is clear, and as mlx5's driver where it is not.
    AdviseError tell "ibv_advise_mr" {
        AdviseError::BadKey => ENOENT,
        AdviseError::NoRegion | AdviseError::NotOnDemand => EINVAL,
        AdviseError::WrongPd | AdviseError::NotWritable => EPERM,
        AdviseError::OutOfRange | AdviseError::NotMapped => EFAULT,
    }
    LimitReached tell "no further object" {
        LimitReached { .. } => ENOMEM,
    }
    /// As the man page of `ibv_qp_attach_comp_cntr`.
    AttachCounterError tell "ibv_qp_attach_comp_cntr" {
        AttachCounterError::State(_) | AttachCounterError::NoOperation | AttachCounterError::Ended => EINVAL,
        AttachCounterError::Operations { .. } => EOPNOTSUPP,
        AttachCounterError::Taken { .. } => EBUSY,
    }
    /// As mlx5's driver.
    AllocDmError tell "ibv_alloc_dm" {
        AllocDmError::Empty | AllocDmError::Alignment { .. } => EINVAL,
        AllocDmError::Limit { .. } | AllocDmError::Memory(_) => ENOMEM,
    }
    /// Errors of copies, as mlx5's library reports them.
    DmAccessError tell "a copy of device memory" {
        DmAccessError::Misaligned | DmAccessError::Freed => EINVAL,
        DmAccessError::OutOfRange { .. } | DmAccessError::NotMapped => EFAULT,
    }
    CqError tell "a completion queue" {
        CqError::Entries { .. } | CqError::Present { .. } | CqError::Vector { .. } | CqError::Foreign => EINVAL,
        CqError::Limit(_) | CqError::Memory { .. } => ENOMEM,
    }
    Overrun tell_of_post "ibv_poll_cq" {
        Overrun => EIO,
    }
    CreateSrqError tell "a shared receive queue" {
        CreateSrqError::Empty | CreateSrqError::Capability { .. } | CreateSrqError::Foreign => EINVAL,
        CreateSrqError::Limit(_) | CreateSrqError::Memory { .. } => ENOMEM,
    }
    OpenXrcdError tell "ibv_open_xrcd" unless OpenXrcdError::NotThere => {
        OpenXrcdError::Exists => EINVAL,
        OpenXrcdError::NotThere => EAGAIN,
        OpenXrcdError::Iwarp => EOPNOTSUPP,
    }
    NotAttached tell "ibv_detach_mcast" {
        NotAttached { .. } => EINVAL,
    }
    PostSendError tell_of_post "a send work request" unless PostSendError::QueueFull { .. } => {
        PostSendError::QueueFull { .. } => ENOMEM,
        PostSendError::Inline(_) => EFAULT,
        PostSendError::State(_)
        | PostSendError::TooManySges { .. }
        | PostSendError::InlineTooLong { .. }
        | PostSendError::Operation(_)
        | PostSendError::Destination(_)
        | PostSendError::DatagramTooLong { .. }
        | PostSendError::InlineNotAllowed
        | PostSendError::MessageTooLong { .. }
        | PostSendError::AtomicLength { .. }
        | PostSendError::AtomicMisaligned
        | PostSendError::FlushKind
        | PostSendError::NoReadAtomicDepth => EINVAL,
    }
    PostRecvError tell_of_post "a receive work request" unless PostRecvError::QueueFull { .. } => {
        PostRecvError::QueueFull { .. } => ENOMEM,
        PostRecvError::State(_)
        | PostRecvError::TooManySges { .. }
        | PostRecvError::Shared
        | PostRecvError::Xrc => EINVAL,
    }
    Busy {
        Busy { .. } => EBUSY,
    }
    OpenQpError tell "ibv_open_qp" {
        OpenQpError { .. } => EINVAL,
    }
    TransportModifySrqError {
        TransportModifySrqError::Mask { .. }
        | TransportModifySrqError::Size { .. }
        | TransportModifySrqError::Limit { .. } => EINVAL,
        TransportModifySrqError::Memory { .. } => ENOMEM,
    }
}
