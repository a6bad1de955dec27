//! Why connection management did not do as asked.

use std::io;

use ferroce_ipc::{ClientError, Refusal, RefusalCode};
use ferroce_wire::cm::PrivateDataTooLong;
use rustix::io::Errno;

use crate::error::{DeviceError, OpenError};
use ferroce_client::BrokerError;

/// Why connection management did not do as asked. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// The port is in use or has a listener, or a peer-to-peer request to the same peer is outstanding:
    /// EADDRINUSE.
    #[error("address in use: {0}")]
    InUse(String),
    /// The port is in use or has a listener, and one of both bindings is for all addresses: EADDRNOTAVAIL
    /// (Linux 6.12, `cma_check_port`).
    #[error("address in use: {0}")]
    WildcardInUse(String),
    /// No device has the local address: EADDRNOTAVAIL, or ENODEV.
    #[error("{0}")]
    NoAddress(String),
    /// Only root may use a port below 1024: EACCES.
    #[error("{0}")]
    Permission(String),
    /// The connection, SIDR request, pending request or bind has ended: EINVAL.
    #[error("{0}")]
    Gone(String),
    /// The state of the connection does not allow this: EINVAL.
    #[error("{0}")]
    State(String),
    /// As many as there may be: ENOMEM.
    #[error("{0}")]
    Full(String),
    /// An argument makes no sense: EINVAL.
    #[error("{0}")]
    Invalid(String),
    /// More private data than a message carries: EINVAL.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// An iWARP peer answered with something else than MPA: EPROTO.
    #[error("the peer answered with something else than MPA")]
    Protocol,
    /// TCP failed otherwise: the errno of the system.
    #[error("TCP failed")]
    Tcp(#[source] io::Error),
    /// There is no broker, or it cannot be asked: ENODEV.
    #[error("cannot ask the broker")]
    Broker(#[source] io::Error),
    /// There is no device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// This process could not get a slot.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The error of a socket.
impl From<Errno> for CmError {
    fn from(errno: Errno) -> Self {
        let sentence = || format!("TCP: {errno}");
        match errno {
            Errno::ADDRINUSE => Self::InUse(sentence()),
            Errno::ADDRNOTAVAIL => Self::NoAddress(sentence()),
            Errno::ACCESS => Self::Permission(sentence()),
            Errno::INVAL => Self::Invalid("the queue pair is not one of iWARP in INIT".to_owned()),
            Errno::PROTO => Self::Protocol,
            errno => Self::Tcp(errno.into()),
        }
    }
}

impl From<BrokerError> for CmError {
    fn from(error: BrokerError) -> Self {
        let BrokerError::Client(ClientError::Refused(Refusal { code, sentence })) = error else {
            return Self::Broker(error.into());
        };
        match code {
            RefusalCode::AddressInUse => Self::InUse(sentence),
            RefusalCode::WildcardInUse => Self::WildcardInUse(sentence),
            RefusalCode::NoAddress => Self::NoAddress(sentence),
            RefusalCode::Permission => Self::Permission(sentence),
            RefusalCode::UnknownId => Self::Gone(sentence),
            RefusalCode::WrongState => Self::State(sentence),
            RefusalCode::Full => Self::Full(sentence),
            RefusalCode::BadRequest => Self::Invalid(sentence),
            _ => Self::Broker(io::Error::other(sentence)),
        }
    }
}
