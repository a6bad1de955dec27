//! The services of queue pairs, as types.

/// Reliable Connection: each message arrives once and in order, or the queue pair fails.
#[derive(Clone, Copy, Debug)]
pub struct Rc(());
/// Unreliable Connection: a message to the one peer arrives whole or not at all. There is no flow control: a
/// slow receiver loses messages.
#[derive(Clone, Copy, Debug)]
pub struct Uc(());
/// Unreliable Datagram: single packets to and from any queue pair, which may be lost as with [`Uc`].
#[derive(Clone, Copy, Debug)]
pub struct Ud(());

mod sealed {
    /// Other crates cannot implement the traits.
    pub trait Sealed {}

    /// Services with receives.
    pub trait Kind {
        const SERVICE: Service;
    }

    /// The services that the engine is asked for; the engine's own type is no part of the API.
    #[derive(Debug)]
    pub enum Service {
        Rc,
        Uc,
        Ud,
    }
}

pub(crate) const fn service_of<S: Shares>() -> ferroce_engine::Service {
    match S::SERVICE {
        sealed::Service::Rc => ferroce_engine::Service::Rc,
        sealed::Service::Uc => ferroce_engine::Service::Uc,
        sealed::Service::Ud => ferroce_engine::Service::Ud,
    }
}

/// A service whose receives may come from a shared queue.
pub trait Shares: sealed::Kind {}

impl sealed::Kind for Rc {
    const SERVICE: sealed::Service = sealed::Service::Rc;
}
impl sealed::Kind for Uc {
    const SERVICE: sealed::Service = sealed::Service::Uc;
}
impl sealed::Kind for Ud {
    const SERVICE: sealed::Service = sealed::Service::Ud;
}
impl Shares for Rc {}
impl Shares for Uc {}
impl Shares for Ud {}

/// A service between one pair of queue pairs.
pub trait Connected: sealed::Sealed {}

impl sealed::Sealed for Rc {}
impl sealed::Sealed for Uc {}
impl Connected for Rc {}
impl Connected for Uc {}
