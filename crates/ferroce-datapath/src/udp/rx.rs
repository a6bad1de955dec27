//! Receiving from a slot.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use super::{granted_receive_buffer, set_receive_buffer};
use crate::sys::{self, Arena, MAX_MESSAGES};

/// A member of a [`super::Group`], owned by its slot's holder.
#[derive(Debug)]
pub struct RxSocket {
    fd: OwnedFd,
    local: SocketAddr,
}

/// A receive buffer, allocated once and used for every call: 2 MiB of address space, of which only the
/// written pages take memory.
pub struct RxBuffer {
    arena: Arena,
    /// Number of messages that the next call requests.
    batch: usize,
}

/// A datagram as it was sent; a message that the kernel merged is split again.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub source: IpAddr,
    pub source_port: u16,
    /// Index in the merged message; 0 where `gro` is false. A sender with segmentation offload numbers the
    /// IPv4 identifications of a batch likewise, unless the receiver's kernel merged only a part of the
    /// batch.
    pub segment_index: u16,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
    /// The kernel merged this datagram with others.
    pub gro: bool,
    /// DSCP and ECN of its IP header, 0 without [`RxSocket::receive_headers`]; the kernel merges only
    /// datagrams that agree in them.
    pub traffic_class: u8,
    /// TTL or hop limit of its IP header; as `traffic_class`.
    pub hop_limit: u8,
}

impl RxSocket {
    /// Takes over a member of a group. Fails if it is no bound IP socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let local = SockRef::from(&fd).local_addr()?.as_socket();
        Ok(Self { local: local.ok_or(io::ErrorKind::InvalidInput)?, fd })
    }

    /// Address and port of the group.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The receive buffer that the kernel granted, in bytes of its accounting: payload and overhead, often
    /// twice the payload.
    pub fn granted_rcvbuf(&self) -> io::Result<usize> {
        granted_receive_buffer(&self.fd)
    }

    /// Requests a receive buffer of `bytes` and returns the granted size.
    pub fn set_rcvbuf(&self, bytes: usize) -> io::Result<usize> {
        set_receive_buffer(&self.fd, bytes)
    }

    /// Receives nothing any more, without ICMP errors to senders: another socket takes the frames.
    pub fn drop_all(&self) -> io::Result<()> {
        sys::drop_all(&self.fd)
    }

    /// From now on the kernel reports the IP header of each datagram, queued ones included. This makes every
    /// receive call slower, so it is on only where a user needs it.
    pub fn receive_headers(&self) -> io::Result<()> {
        match self.local.ip() {
            IpAddr::V4(_) => {
                sys::set_int(self, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
                sys::set_int(self, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
            }
            IpAddr::V6(_) => {
                sys::set_int(self, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
                sys::set_int(self, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
            }
        }
    }

    /// Datagrams that the kernel dropped since the member was opened because the receive buffer was full;
    /// wraps.
    pub fn drops(&self) -> io::Result<u32> {
        sys::receive_drops(&self.fd)
    }

    /// Receives queued datagrams with one system call, and returns the number now in `buffer`, 0 if the
    /// socket was empty. Never blocks. The previous contents of the buffer are dropped.
    ///
    /// One call takes one message while the kernel merges datagrams, up to 32 while they arrive singly.
    pub fn recv(&self, buffer: &mut RxBuffer) -> io::Result<usize> {
        match sys::receive(&self.fd, &mut buffer.arena, buffer.batch) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                // A caller that polls an empty socket most likely waits for one message.
                buffer.batch = 1;
                return Ok(0);
            }
            Err(e) => return Err(e),
        }
        buffer.adapt();
        Ok(buffer.count())
    }
}

impl AsFd for RxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RxBuffer {
    pub fn new() -> Self {
        Self { arena: Arena::new(), batch: 1 }
    }

    /// The datagrams of the last call in order of arrival.
    pub fn datagrams(&self) -> Datagrams<'_> {
        Datagrams { buffer: self, message: 0, offset: 0, segment: 0 }
    }

    /// Octets of the datagrams of the last call.
    pub fn octets(&self) -> usize {
        self.arena.messages().iter().map(|message| message.len).sum()
    }

    fn count(&self) -> usize {
        let messages = self.arena.messages().iter();
        messages.map(|m| m.segment_size.map_or(1, |size| m.len.div_ceil(size))).sum()
    }

    /// A call that finds one message is a little slower if it looks for a second. So the next call requests
    /// many only while several are queued and unmerged: a merged one is a batch of its own.
    fn adapt(&mut self) {
        let messages = self.arena.messages();
        let merged = messages.iter().any(|m| m.segment_size.is_some());
        self.batch = match messages.len() {
            _ if merged => 1,
            n if n == self.batch => (self.batch * 8).min(MAX_MESSAGES),
            1 => 1,
            _ => self.batch,
        };
    }
}

impl Default for RxBuffer {
    fn default() -> Self {
        Self::new()
    }
}

pub struct Datagrams<'a> {
    buffer: &'a RxBuffer,
    message: usize,
    offset: usize,
    segment: u16,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        let arena = &self.buffer.arena;
        let message = arena.messages().get(self.message)?;
        let rest = &arena.bytes(self.message)[self.offset..];
        let size = message.segment_size.unwrap_or(rest.len()).min(rest.len());
        let datagram = Datagram {
            source: message.source,
            source_port: message.source_port,
            segment_index: self.segment,
            bytes: &rest[..size],
            gro: message.segment_size.is_some(),
            traffic_class: message.traffic_class,
            hop_limit: message.hop_limit,
        };
        if size < rest.len() {
            self.offset += size;
            self.segment += 1;
        } else {
            self.message += 1;
            self.offset = 0;
            self.segment = 0;
        }
        Some(datagram)
    }
}
