//! A connection carries one message per packet over `SOCK_SEQPACKET`, with descriptors.

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
use crate::packet::Sender;
use crate::strange::{Closer, Strange, pass_rights};
use crate::{packet, trust};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A connected socket, non-blocking and close-on-exec.
#[derive(Debug)]
pub struct Connection {
    fd: Strange,
    /// Closes what another user may have sent; `None` if the other end is trusted.
    closer: Option<Closer>,
}

/// Contents of one packet.
#[derive(Debug)]
pub struct Received {
    /// The request's id and the message, or the reason why the packet holds no valid message.
    pub message: Result<(u32, Message), MessageError>,
    /// The received descriptors, close-on-exec. A valid message has exactly as many as belong to it.
    pub descriptors: Vec<Strange>,
    /// The process that sent it, on a connection that a [`Listener`] accepted.
    pub sender: Option<Sender>,
}

/// The process at the other end, as it was when it connected or listened (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in our pid namespace, 0 if the process is in none that this process sees.
    pub pid: u32,
    /// Effective user; [`Peer::UNKNOWN`] if our user namespace cannot distinguish it from our own user.
    pub uid: u32,
}

impl Peer {
    /// Stands for a user that has our number in the kernel's credentials but may be any user.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Formats the user for a message.
    pub fn user(uid: u32) -> String {
        match uid {
            Self::UNKNOWN => "a user whom this user namespace does not map".to_owned(),
            uid => format!("uid {uid}"),
        }
    }
}

impl Connection {
    /// Connects to an abstract name.
    ///
    /// # Errors
    /// `ConnectionRefused` if no process holds the name or its holder does not listen, `WouldBlock` if its
    /// backlog is full.
    pub fn connect(name: &str) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let empty = pass_rights(&fd, false);
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Self::with(fd, empty, Closer::default()))
    }

    /// `empty`: no descriptor can be in the queue.
    fn with(fd: OwnedFd, empty: bool, closer: Closer) -> Self {
        Self { fd: Strange::new(fd, (!empty).then(|| closer.clone())), closer: Some(closer) }
    }

    /// Takes descriptors from now on. `closer` closes them and the connection, if the user at the other end
    /// may be another one who wants to keep this process busy; `None`: the process that connected is trusted.
    ///
    /// Until this call descriptors are refused to the sender where the kernel can do that (Linux 6.16).
    pub fn take_descriptors(&mut self, closer: Option<Closer>) {
        pass_rights(&self.fd, true);
        self.fd.set_closer(closer.clone());
        self.closer = closer;
    }

    /// Names the closer of what the other end sends, which the sockets of one user share.
    pub fn closed_by(&mut self, closer: Option<Closer>) {
        if self.fd.has_closer() {
            self.fd.set_closer(closer.clone());
        }
        self.closer = closer;
    }

    /// Makes two connected ends, for tests and for a broker within the program.
    ///
    /// # Errors
    /// The errors of `socketpair(2)`.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = packet::pair()?;
        Ok((Self { fd: a.into(), closer: None }, Self { fd: b.into(), closer: None }))
    }

    /// Returns the process at the other end. A user namespace shows every user that it does not map as the
    /// same one (65534, "nobody"). A program that runs as that user there trusts only processes to which the
    /// kernel lets it send signals.
    ///
    /// # Errors
    /// The errors of `getsockopt(2)`.
    pub fn peer(&self) -> io::Result<Peer> {
        let who: UnixCredentials = getsockopt(&self.fd, PeerCredentials)?;
        let (pid, uid) = (u32::try_from(who.pid()).unwrap_or(0), who.uid());
        let like_us = uid == nix::unistd::geteuid().as_raw() && trust::is_ambiguous(uid);
        let known = !like_us || trust::is_of_our_user(&self.fd, pid);
        Ok(Peer { pid, uid: if known { uid } else { Peer::UNKNOWN } })
    }

    /// Sends one message without waiting.
    ///
    /// # Errors
    /// `InvalidInput` if the message does not fit a packet or `descriptors` are not as many as belong to it;
    /// `WouldBlock` if the other end reads too slowly; otherwise those of `sendmsg(2)`.
    pub fn send(&self, id: u32, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if message.descriptors() != descriptors.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = message.encode(id).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        packet::send(self.fd.as_fd(), &bytes, descriptors)
    }

    /// Receives one packet without waiting: `None` if the other end has closed.
    ///
    /// # Errors
    /// `WouldBlock` when no message waits; otherwise those of `recvmsg(2)`.
    pub fn recv(&self, buffer: &mut Vec<u8>) -> io::Result<Option<Received>> {
        let Some(packet) = packet::recv_from(self.fd.as_fd(), buffer, self.closer.as_ref())? else {
            return Ok(None);
        };
        let of_them = |fd| Strange::new(fd, self.closer.clone());
        let descriptors: Vec<Strange> = packet.descriptors.into_iter().map(of_them).collect();
        let message = if packet.cut {
            Err(MessageError::Length { said: MAX_MESSAGE, got: MAX_MESSAGE + 1 })
        } else {
            Message::decode(buffer.get(..packet.length).unwrap_or_default(), descriptors.len())
        };
        Ok(Some(Received { message, descriptors, sender: packet.sender }))
    }

    /// Returns the next message without taking it, and without its descriptors.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn peek(&self, buffer: &mut Vec<u8>) -> io::Result<Option<Result<Message, MessageError>>> {
        let octets = packet::peek_octets(self.fd.as_fd(), buffer)?;
        Ok((!octets.is_empty()).then(|| Message::decode(octets, 0).map(|(_, message)| message)))
    }

    /// Waits until [`Connection::recv`] has a result, or `deadline` has passed.
    ///
    /// # Errors
    /// `TimedOut`, or those of `poll(2)`.
    pub fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        self.wait(PollFlags::IN, deadline)
    }

    /// Waits until [`Connection::send`] would not block or [`Connection::recv`] has a result, or `deadline`
    /// has passed.
    ///
    /// # Errors
    /// `TimedOut`, or those of `poll(2)`.
    pub fn wait_ready(&self, deadline: Instant) -> io::Result<()> {
        self.wait(PollFlags::IN | PollFlags::OUT, deadline)
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

/// The broker's listening socket under an abstract name.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// Whether the kernel refuses descriptors to a connection that is not accepted.
    empty: bool,
}

impl Listener {
    /// Binds the name and listens.
    ///
    /// # Errors
    /// `AddrInUse` if another process holds the name in this network namespace.
    pub fn bind(name: &str) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let empty = pass_rights(&fd, false);
        packet::pass_sender(&fd)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&fd, 128)?;
        Ok(Self { fd, empty })
    }

    /// Accepts the next connection without waiting. The connection takes descriptors after
    /// [`Connection::take_descriptors`].
    ///
    /// # Errors
    /// `WouldBlock` when no connection waits; otherwise those of `accept(2)`.
    pub fn accept(&self) -> io::Result<Connection> {
        let fd = rustix::net::accept_with(&self.fd, FLAGS)?;
        Ok(Connection::with(fd, self.empty, Closer::default()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Converts a duration for `poll`, limited to one hour.
fn timespec(duration: Duration) -> Timespec {
    let duration = duration.min(Duration::from_secs(3600));
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos() as i32) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::message::AddressSockets;

    fn address(members: Vec<u8>) -> Message {
        Message::Address(AddressSockets { ip: "::1".parse().unwrap(), scope_id: 0, members })
    }

    #[test]
    fn descriptors_come_along_and_are_closed_on_exec() {
        let (a, b) = Connection::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let message = address(vec![1, 2]);
        a.send(7, &message, &[null.as_fd(), null.as_fd()]).unwrap();
        let received = b.recv(&mut Vec::new()).unwrap().unwrap();
        assert_eq!(received.message, Ok((7, message)));
        assert_eq!(received.descriptors.len(), 2);
        for fd in &received.descriptors {
            assert_ne!(fd.as_fd().as_raw_fd(), null.as_raw_fd());
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn a_message_needs_its_descriptors() {
        let (a, b) = Connection::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(a.send(1, &address(vec![1]), &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // The peer sends fewer or more descriptors than its header says.
        let bytes = address(vec![1, 2]).encode(1).unwrap();
        for count in [0, 1, 3] {
            packet::send(a.as_fd(), &bytes, &vec![null.as_fd(); count]).unwrap();
            let received = b.recv(&mut Vec::new()).unwrap().unwrap();
            assert_eq!(received.message, Err(MessageError::Descriptors { want: 2, got: count }));
        }
    }

    #[test]
    fn ends_and_silences() {
        let (a, b) = Connection::pair().unwrap();
        let mut buffer = Vec::new();
        assert_eq!(b.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(b.wait_readable(soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
        a.send(0, &Message::Done, &[]).unwrap();
        drop(a);
        assert_eq!(b.recv(&mut buffer).unwrap().unwrap().message, Ok((0, Message::Done)));
        assert!(b.recv(&mut buffer).unwrap().is_none());
    }

    #[test]
    fn a_packet_beyond_the_limit_is_no_message() {
        let (a, b) = Connection::pair().unwrap();
        packet::send(a.as_fd(), &vec![0; MAX_MESSAGE + 1], &[]).unwrap();
        let received = b.recv(&mut Vec::new()).unwrap().unwrap();
        assert!(matches!(received.message, Err(MessageError::Length { .. })));
    }

    #[test]
    fn a_name_is_held_once_and_says_by_whom() {
        let name = format!("ferroce.test.{}", std::process::id());
        assert_eq!(Connection::connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = Listener::bind(&name).unwrap();
        assert_eq!(Listener::bind(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let client = Connection::connect(&name).unwrap();
        let us = Peer { pid: std::process::id(), uid: nix::unistd::geteuid().as_raw() };
        assert_eq!(client.peer().unwrap(), us);
        assert_eq!(listener.accept().unwrap().peer().unwrap(), us);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
