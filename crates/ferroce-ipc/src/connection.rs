//! One message a packet over `SOCK_SEQPACKET`, with descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::codec::MessageError;
use crate::message::{MAX_MESSAGE, Message};
use crate::packet;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A connected socket, non-blocking and close-on-exec.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

/// What one packet held.
#[derive(Debug)]
pub struct Received {
    /// The request's id and the message, or why there is none.
    pub message: Result<(u32, Message), MessageError>,
    /// The descriptors that came, close-on-exec; as many as belong to the message if there is one.
    pub descriptors: Vec<OwnedFd>,
}

/// The process at the other end when it connected or listened (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id in our pid namespace, 0 if it is in none that we see.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
}

impl Connection {
    /// Connects to an abstract name.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody holds the name or its holder does not listen, `WouldBlock` if its backlog is full.
    pub fn connect(name: &str) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Self { fd })
    }

    /// Two connected ends, for tests and a broker within the program.
    ///
    /// # Errors
    /// Those of `socketpair(2)`.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = packet::pair()?;
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn peer(&self) -> io::Result<Peer> {
        let who: UnixCredentials = getsockopt(&self.fd, PeerCredentials)?;
        Ok(Peer { pid: u32::try_from(who.pid()).unwrap_or(0), uid: who.uid() })
    }

    /// Sends one message without waiting.
    ///
    /// # Errors
    /// `InvalidInput` if the message does not fit a packet or `descriptors` are not as many as belong to it; `WouldBlock`
    /// if the other end reads too slowly; otherwise those of `sendmsg(2)`.
    pub fn send(&self, id: u32, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if message.descriptors() != descriptors.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = message.encode(id).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        packet::send(self.fd.as_fd(), &bytes, descriptors)
    }

    /// Takes one packet without waiting: `None` when the other end has closed.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; otherwise those of `recvmsg(2)`.
    pub fn recv(&self, buffer: &mut Vec<u8>) -> io::Result<Option<Received>> {
        let Some(packet) = packet::recv(self.fd.as_fd(), buffer)? else {
            return Ok(None);
        };
        let message = if packet.cut {
            Err(MessageError::Length { said: MAX_MESSAGE, got: MAX_MESSAGE + 1 })
        } else {
            Message::decode(buffer, packet.descriptors.len())
        };
        Ok(Some(Received { message, descriptors: packet.descriptors }))
    }

    /// Waits until [`Connection::recv`] has something to say, or `deadline` has passed.
    ///
    /// # Errors
    /// `TimedOut`, or those of `poll(2)`.
    pub fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        self.wait(PollFlags::IN, deadline)
    }

    /// Waits until [`Connection::send`] would not block, or `deadline` has passed.
    ///
    /// # Errors
    /// `TimedOut`, or those of `poll(2)`.
    pub fn wait_writable(&self, deadline: Instant) -> io::Result<()> {
        self.wait(PollFlags::OUT, deadline)
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(&self.fd, what)], Some(&timespec(left))) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The broker's socket under an abstract name.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Takes the name.
    ///
    /// # Errors
    /// `AddrInUse` if somebody holds it, in this network namespace.
    pub fn bind(name: &str) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&fd, 128)?;
        Ok(Self { fd })
    }

    /// The next connection, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; otherwise those of `accept(2)`.
    pub fn accept(&self) -> io::Result<Connection> {
        Ok(Connection { fd: rustix::net::accept_with(&self.fd, FLAGS)? })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A duration for `poll`; beyond an hour it is an hour.
fn timespec(duration: Duration) -> Timespec {
    let duration = duration.min(Duration::from_secs(3600));
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos() as i32) }
}
