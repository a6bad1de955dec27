//! Receiving as a holder of a slot.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use super::{granted_receive_buffer, set_receive_buffer};
use crate::sys::{self, Arena, MAX_MESSAGES};

/// A member of a [`super::Group`], in the hands of its slot's holder.
#[derive(Debug)]
pub struct RxSocket {
    fd: OwnedFd,
    local: SocketAddr,
}

/// Where datagrams are received to: made once, used for every call. 2 MiB of address space, of which only pages that a
/// datagram touched are real.
pub struct RxBuffer {
    arena: Arena,
    /// Messages to ask for next.
    ask: usize,
    #[cfg(feature = "fault")]
    fault: Option<crate::fault::Fault>,
}

/// One datagram as it was sent, cut out again where the kernel merged several.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender's address.
    pub source: IpAddr,
    /// Sender's UDP port.
    pub source_port: u16,
    /// Place in the merged message; 0 where `gro` is false. A sender that uses segmentation offload numbers the IPv4
    /// identifications of a batch like this, unless the receiver's kernel merged less than the whole batch.
    pub segment_index: u16,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
    /// Whether the kernel merged this datagram with others.
    pub gro: bool,
    /// DSCP and ECN of its IP header, 0 without [`RxSocket::tell_headers`]; the kernel merges only what agrees in them.
    pub traffic_class: u8,
    /// TTL or hop limit of its IP header; as `traffic_class`.
    pub hop_limit: u8,
}

impl RxSocket {
    /// Takes over a member of a group.
    ///
    /// An error when it is no bound IP socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let local = SockRef::from(&fd).local_addr()?.as_socket();
        Ok(Self { local: local.ok_or(io::ErrorKind::InvalidInput)?, fd })
    }

    /// Address and port the group is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The receive buffer the kernel granted, in bytes as it accounts for them: payload and bookkeeping, often twice
    /// the payload.
    pub fn granted_rcvbuf(&self) -> io::Result<usize> {
        granted_receive_buffer(&self.fd)
    }

    /// Asks for a receive buffer of `bytes` and returns what was granted.
    pub fn set_rcvbuf(&self, bytes: usize) -> io::Result<usize> {
        set_receive_buffer(&self.fd, bytes)
    }

    /// Nothing is received any more, and nobody is told that the port is closed: somebody else takes the frames.
    pub fn deafen(&self) -> io::Result<()> {
        sys::drop_all(&self.fd)
    }

    /// From now on the kernel says what the IP header of each datagram held, those that wait already included. It costs
    /// every receive call, so it is asked for where somebody wants to know.
    pub fn tell_headers(&self) -> io::Result<()> {
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

    /// Datagrams the kernel dropped because the receive buffer was full, since the member was opened; wraps.
    pub fn drops(&self) -> io::Result<u32> {
        sys::receive_drops(&self.fd)
    }

    /// Receives what waits, as much as one system call gives, and returns the number of datagrams now in `buffer`; 0
    /// when nothing waited. Never blocks. What the buffer held before is forgotten.
    ///
    /// One message while the kernel merges datagrams, up to 32 while they arrive one by one.
    pub fn recv(&self, buffer: &mut RxBuffer) -> io::Result<usize> {
        #[cfg(feature = "fault")]
        if let Some(mut fault) = buffer.fault.take() {
            let n = self.recv_with_faults(buffer, &mut fault);
            buffer.fault = Some(fault);
            return n;
        }
        self.recv_all(buffer)
    }

    fn recv_all(&self, buffer: &mut RxBuffer) -> io::Result<usize> {
        match sys::receive(&self.fd, &mut buffer.arena, buffer.ask) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                // Whoever polls an empty socket most likely waits for one message.
                buffer.ask = 1;
                return Ok(0);
            }
            Err(e) => return Err(e),
        }
        buffer.adapt();
        Ok(buffer.count())
    }

    #[cfg(feature = "fault")]
    fn recv_with_faults(&self, buffer: &mut RxBuffer, fault: &mut crate::fault::Fault) -> io::Result<usize> {
        fault.clear();
        while fault.delivered() == 0 && self.recv_all(buffer)? > 0 {
            buffer.datagrams().for_each(|datagram| fault.pass(&datagram));
        }
        Ok(fault.delivered())
    }
}

impl AsFd for RxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RxBuffer {
    /// Allocates the buffer.
    pub fn new() -> Self {
        Self {
            arena: Arena::new(),
            ask: 1,
            #[cfg(feature = "fault")]
            fault: crate::fault::Fault::from_env(),
        }
    }

    /// Receives through a lossy network.
    #[cfg(feature = "fault")]
    pub fn with_faults(plan: crate::fault::FaultPlan) -> Self {
        Self { fault: Some(crate::fault::Fault::new(plan)), ..Self::new() }
    }

    /// What the lossy network has done so far; zeros without one.
    #[cfg(feature = "fault")]
    pub fn fault_counts(&self) -> crate::fault::FaultCounts {
        self.fault.as_ref().map(crate::fault::Fault::counts).unwrap_or_default()
    }

    /// The datagrams of the last call in order of arrival.
    pub fn datagrams(&self) -> Datagrams<'_> {
        Datagrams { buffer: self, message: 0, offset: 0, segment: 0 }
    }

    fn count(&self) -> usize {
        let messages = self.arena.messages().iter();
        messages.map(|m| m.segment_size.map_or(1, |size| m.len.div_ceil(size))).sum()
    }

    /// A system call that finds one message costs a little more when it looks for the second, so many are asked for
    /// only while several wait, and only while they come unmerged: a merged one is a batch of its own.
    fn adapt(&mut self) {
        let messages = self.arena.messages();
        let merged = messages.iter().any(|m| m.segment_size.is_some());
        self.ask = match messages.len() {
            _ if merged => 1,
            n if n == self.ask => (self.ask * 8).min(MAX_MESSAGES),
            1 => 1,
            _ => self.ask,
        };
    }
}

impl Default for RxBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Iterator of [`RxBuffer::datagrams`].
pub struct Datagrams<'a> {
    buffer: &'a RxBuffer,
    /// With faults: the datagram itself.
    message: usize,
    offset: usize,
    segment: u16,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        #[cfg(feature = "fault")]
        if let Some(fault) = &self.buffer.fault {
            self.message += 1;
            return fault.datagram(self.message - 1);
        }
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
