//! How endpoints connect.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::driver::{Driver, Interest, Watch};
use super::end::End;
use super::owner::{Link, Owner};
use super::{Buffer, Endpoint, Failed};
use crate::cm::{self, Connector, EndOptions, Request};
use crate::{Error, ProtectionDomain};

/// Takes requests for connections, as [`cm::Listener`].
pub struct Listener {
    listener: cm::Listener,
    watch: Watch,
}

impl Listener {
    /// Listens at an address as [`cm::Listener::bind`]. `driver` wakes the task that accepts; its device need
    /// not be that of the requests.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn bind(driver: &Driver, local: SocketAddr) -> Result<Self, Error> {
        Ok(Self { listener: cm::Listener::bind(local)?, watch: driver.shared.watch() })
    }

    /// The address at which the listener takes requests, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Waits for a request, see [`Setup::of`]. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// The error of [`Driver::turn`] if the driver has ended, and the kernel's error if that refused a call.
    pub async fn accept(&mut self) -> Result<Request, Error> {
        std::future::poll_fn(|cx| {
            if let Some(request) = self.listener.poll() {
                return Poll::Ready(Ok(request));
            }
            match self.watch.arm(self.listener.as_fd(), Interest::Wake(cx.waker().clone())) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

/// An endpoint that is not connected yet. Dropped, a request is refused.
pub struct Setup {
    owner: Box<Owner>,
}

impl Setup {
    /// Prepares an endpoint that connects to `peer`, as [`Connector::new`]. The driver's completion queue
    /// replaces those of `options`. [`EndOptions::domain`] must be that of the buffers. The call asks the
    /// kernel and the broker on this host, and does not wait for the peer.
    ///
    /// # Errors
    ///
    /// As there; the device of the driver must be the one that reaches the peer. The error of
    /// [`Driver::turn`] if the driver has ended.
    pub fn to(driver: &Driver, peer: SocketAddr, options: &EndOptions) -> Result<Self, Error> {
        driver.shared.alive()?;
        let connector = Connector::new(peer, &on(driver, options))?;
        let end = End::new(driver, connector.queue_pair().engine(), options.queues);
        Ok(Self { owner: Owner::new(driver, Link::Asks(connector), end)? })
    }

    /// Prepares an endpoint that answers a request, as [`Request::prepare`]. The driver's completion queue
    /// replaces those of `options`. [`EndOptions::domain`] must be that of the buffers.
    ///
    /// # Errors
    ///
    /// As there; the device of the driver must be the one that was asked. The error of [`Driver::turn`] if
    /// the driver has ended.
    pub fn of(driver: &Driver, request: Request, options: &EndOptions) -> Result<Self, Error> {
        driver.shared.alive()?;
        let acceptor = request.prepare(&on(driver, options))?;
        let end = End::new(driver, acceptor.queue_pair().engine(), options.queues);
        Ok(Self { owner: Owner::new(driver, Link::Answers(acceptor), end)? })
    }

    /// The queue pair's protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        match &self.owner.link {
            Link::Asks(connector) => connector.domain(),
            Link::Answers(acceptor) => acceptor.domain(),
            Link::Pending(_) | Link::Connected(_) | Link::Gone => unreachable!("it is not connected"),
        }
    }

    /// Posts `buffer` for a message of the peer, which may send as soon as it is connected.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::post_recv`].
    pub fn post_recv(&self, buffer: Buffer) -> Result<(), Failed> {
        self.owner.end.receive(buffer)
    }

    /// Asks the peer, or agrees to its request, at once. `private` are at most
    /// [`REQUEST_PRIVATE_DATA`](cm::REQUEST_PRIVATE_DATA) or
    /// [`ACCEPT_PRIVATE_DATA`](cm::ACCEPT_PRIVATE_DATA) octets for the peer. The future is ready when the
    /// connection is there. Dropping the future gives up the connection.
    pub fn connect(self, private: &[u8]) -> Connecting {
        let Self { mut owner } = self;
        let started = match std::mem::replace(&mut owner.link, Link::Gone) {
            Link::Asks(connector) => connector.start(private),
            Link::Answers(acceptor) => acceptor.start(private),
            Link::Pending(_) | Link::Connected(_) | Link::Gone => unreachable!("it is not connected"),
        };
        Connecting {
            stage: match started {
                Ok(pending) => {
                    owner.link = Link::Pending(pending);
                    Stage::Waits(owner)
                }
                Err(error) => Stage::Failed(error),
            },
        }
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").finish_non_exhaustive()
    }
}

/// The options with the driver's completion queue.
fn on(driver: &Driver, options: &EndOptions) -> EndOptions {
    let queue = Some(driver.shared.queue.clone());
    EndOptions { send_queue: queue.clone(), receive_queue: queue, ..options.clone() }
}

/// The future of [`Setup::connect`].
///
/// # Errors
///
/// As [`Connector::connect`] and [`cm::Acceptor::accept`], and the error of [`Driver::turn`] if the driver
/// has ended.
#[must_use = "futures do nothing unless they are polled"]
pub struct Connecting {
    stage: Stage,
}

enum Stage {
    /// The owner's link is a pending connection.
    Waits(Box<Owner>),
    Failed(Error),
    Done,
}

impl Future for Connecting {
    type Output = Result<Endpoint, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut owner = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Waits(owner) => owner,
            Stage::Failed(error) => return Poll::Ready(Err(error)),
            Stage::Done => panic!("the future was polled after it was ready"),
        };
        let Link::Pending(pending) = &mut owner.link else { unreachable!("the connection is pending") };
        if let Some(connected) = pending.poll()? {
            owner.watch.arm(connected.as_fd(), Interest::End(Arc::clone(&owner.end)))?;
            owner.link = Link::Connected(connected);
            return Poll::Ready(Ok(Endpoint::new(owner)));
        }
        owner.watch.arm(pending.as_fd(), Interest::Wake(cx.waker().clone()))?;
        self.stage = Stage::Waits(owner);
        Poll::Pending
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}
