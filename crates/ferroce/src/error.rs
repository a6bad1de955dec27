//! The error of every call, and its kinds.

mod cause;
mod kind;

use std::error::Error as StdError;
use std::{fmt, io};

use ferroce_engine::error::{CreateAhError, ModifyQpError, PathError};

use crate::QpState;
use crate::connect_error::ConnectError;
pub(crate) use cause::Cause;
pub use kind::{Device, ErrorKind, Peer, System, Usage};

/// The reason of a failed call. The object of the call is unchanged.
///
/// [`Self::kind`] is for programs. `Display` is for people: a sentence that says what to do. `source()` names
/// the refused value, if there is more to say.
///
/// ```no_run
/// use ferroce::error::{ErrorKind, Usage};
/// # fn post() -> Result<(), ferroce::Error> { Ok(()) }
/// # fn poll() {}
///
/// while let Err(error) = post() {
///     match error.kind() {
///         ErrorKind::Usage(Usage::QueueFull) => poll(),
///         _ => panic!("{error}"),
///     }
/// }
/// ```
pub struct Error {
    cause: Cause,
}

impl Error {
    /// Returns the kind of error, sorted by fault: the device, the program, the peer or the system.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// Returns whether the queue was full: poll completions, then post the work request again.
    pub fn is_queue_full(&self) -> bool {
        self.kind() == ErrorKind::Usage(Usage::QueueFull)
    }

    /// Returns the index of the refused work request in the list that was posted, from 0. The earlier ones
    /// are posted. A call that posts one work request has the index 0, and one that posts nothing has `None`.
    pub fn index(&self) -> Option<usize> {
        match self.cause {
            Cause::PostSend(index, _) | Cause::PostRecv(index, _) => Some(index),
            _ => None,
        }
    }

    /// Returns the private data of a peer's refusal. RoCE carries
    /// [`REJECT_PRIVATE_DATA`](crate::cm::REJECT_PRIVATE_DATA) octets with a refused connection and
    /// [`DATAGRAM_ANSWER_PRIVATE_DATA`](crate::cm::DATAGRAM_ANSWER_PRIVATE_DATA) octets with a refused queue
    /// pair of datagrams, with zeros at the end; iWARP carries the octets that the peer gave. Other errors
    /// have none.
    pub fn private_data(&self) -> &[u8] {
        match &self.cause {
            Cause::Connect(
                ConnectError::Rejected { private, .. } | ConnectError::Refused { private, .. },
            ) => private,
            _ => &[],
        }
    }

    /// Returns the error number of the failed system call, if there was one.
    #[doc(alias = "errno")]
    pub fn raw_os_error(&self) -> Option<i32> {
        match &self.cause {
            Cause::Io(error) | Cause::Connect(ConnectError::Events(error)) => error.raw_os_error(),
            Cause::Modify(ModifyQpError::Path(PathError::NoRoute { errno, .. }))
            | Cause::AddressHandle(CreateAhError::Path(PathError::NoRoute { errno, .. })) => Some(*errno),
            cause => causes(cause)
                .find_map(|error| error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)),
        }
    }
}

/// The error and its sources, outermost first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index().filter(|index| *index > 0) {
            write!(f, "work request {index} of the list: ")?;
        }
        self.kind().fmt(f)?;
        // Both kinds leave the argument and its limit to the source.
        match (self.kind(), self.source()) {
            (ErrorKind::Usage(Usage::TooLarge { .. } | Usage::Invalid), Some(source)) => {
                write!(f, ": {source}")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Error");
        fields.field("kind", &self.kind());
        if let Some(index) = self.index() {
            fields.field("index", &index);
        }
        if let Some(source) = self.source() {
            let texts: Vec<_> = causes(source).map(ToString::to_string).collect();
            fields.field("source", &texts.join(": "));
        }
        // Messages of connection management pad private data with zeros.
        let private = self.private_data();
        if let Some(last) = private.iter().rposition(|octet| *octet != 0) {
            fields.field("private_data", &format_args!("b\"{}\"", private[..=last].escape_ascii()));
        }
        fields.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // For these the kind says all.
        let complete = matches!(
            self.cause,
            Cause::EmptyGid { .. }
                | Cause::Connect(
                    ConnectError::Rejected { .. }
                        | ConnectError::Refused { .. }
                        | ConnectError::Unreachable
                        | ConnectError::Over
                )
        );
        if complete { None } else { Some(&self.cause) }
    }
}

/// Errors of the crates below become causes; programs cannot name `Cause`.
#[doc(hidden)]
impl<T> From<T> for Error
where
    Cause: From<T>,
{
    fn from(error: T) -> Self {
        Self { cause: error.into() }
    }
}

/// A queue pair that failed to change its state. It is unchanged and returned in the error.
#[derive(Debug, thiserror::Error)]
#[error("the queue pair stays in {state}")]
#[non_exhaustive]
pub struct QpError<Q> {
    /// The unchanged queue pair.
    pub queue_pair: Q,
    /// The state that the queue pair is still in.
    pub state: QpState,
    /// The reason.
    #[source]
    pub source: Error,
}

impl<Q> From<QpError<Q>> for Error {
    fn from(error: QpError<Q>) -> Self {
        error.source
    }
}

#[cfg(test)]
mod tests {
    use ferroce_engine::error::{OpenError, PostSendError};
    use ferroce_wire::cm::{RejReason, SidrStatus};

    use super::*;

    fn rejected(private: &[u8]) -> Error {
        let mut padded = vec![0; 148];
        padded[..private.len()].copy_from_slice(private);
        ConnectError::Rejected { reason: RejReason::CONSUMER, private: padded.into() }.into()
    }

    #[test]
    fn the_sentence_says_what_to_do_and_the_source_names_the_value() {
        let error = Error::from(OpenError::NoSuchDevice { name: "fr9".to_owned() });
        assert_eq!(error.kind(), ErrorKind::Device(Device::NotFound));
        assert_eq!(error.to_string(), "there is no such device: `ferroce dev` lists the devices");
        assert_eq!(error.source().unwrap().to_string(), "there is no device named fr9");
        assert_eq!((error.index(), error.raw_os_error(), error.private_data()), (None, None, &[][..]));
        let text = r#"Error { kind: Device(NotFound), source: "there is no device named fr9" }"#;
        assert_eq!(format!("{error:?}"), text);
    }

    #[test]
    fn the_sentence_of_a_value_that_is_too_large_names_the_value() {
        let source = PostSendError::TooManySges { given: 5, max: 1 };
        let expected = format!("5 exceeds the limit of 1: {source}");
        assert_eq!(Error::from(Cause::PostSend(0, source)).to_string(), expected);
    }

    #[test]
    fn a_refused_list_has_an_index() {
        let full = |index| Error::from(Cause::PostSend(index, PostSendError::QueueFull { max: 4 }));
        assert!(full(0).is_queue_full() && !rejected(b"").is_queue_full());
        assert_eq!((full(0).index(), full(7).index()), (Some(0), Some(7)));
        let advice = "the queue is full: poll completions, then post the work request again";
        assert_eq!(full(0).to_string(), advice);
        assert_eq!(full(7).to_string(), format!("work request 7 of the list: {advice}"));
        assert_eq!(full(7).source().unwrap().to_string(), "all 4 send WQEs are in use");
    }

    #[test]
    fn private_data_is_whole_and_its_debug_ends_with_the_last_octet_that_is_not_zero() {
        let error = rejected(b"no\0\xff");
        assert_eq!(error.private_data().len(), 148);
        assert_eq!(error.kind(), ErrorKind::Peer(Peer::Rejected { reason: RejReason::CONSUMER }));
        let text = format!("{error:?}");
        assert!(text.ends_with(r#", private_data: b"no\x00\xff" }"#), "{text}");
        assert!(!format!("{:?}", rejected(b"")).contains("private_data"));
        let status = SidrStatus::UNSUPPORTED;
        let refused = Error::from(ConnectError::Refused { status, private: [1, 0].into() });
        assert_eq!(refused.private_data(), [1, 0]);
        assert!(refused.source().is_none());
    }

    #[test]
    fn the_number_of_a_failed_system_call_is_found_at_each_depth() {
        let denied = || io::Error::from_raw_os_error(13);
        for error in [
            Error::from(denied()),
            Error::from(ConnectError::Events(denied())),
            Error::from(OpenError::Resources(denied())),
            Error::from(ConnectError::Cm(OpenError::Resources(denied()).into())),
        ] {
            assert_eq!(error.raw_os_error(), Some(13), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::System(System::Permission));
        }
        let gid = ferroce_wire::Gid::ZERO;
        let no_route = PathError::NoRoute { dgid: gid, sgid: gid, errno: 101 };
        for error in [Error::from(ModifyQpError::Path(no_route)), Error::from(CreateAhError::Path(no_route))]
        {
            assert_eq!(error.raw_os_error(), Some(101));
            assert_eq!(error.kind(), ErrorKind::System(System::NoRoute));
        }
    }
}
