//! The halves of an AF_XDP socket, and in tests of a socket that needs no privilege.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ferroce_datapath::xdp::{HARDWARE, PushError, Received, Rx, Tx};
use ferroce_host::fork::Guarded;
use ferroce_wire::{Flow, LinkLayer, RoceVersion};

use crate::rx::{Arrival, NO_FLOW, RxBatch};

/// Packets that are received in one turn.
const PACKETS: usize = 64;

/// The packets of one turn of a port.
pub struct PortBatch<'a> {
    pub(super) rx: &'a mut RxHalf,
    ifindex: u32,
    /// Whether the ICRC counts.
    checks: bool,
    /// Number of packets that may follow.
    left: usize,
    /// That of the last packet.
    flow: Flow,
}

impl<'a> PortBatch<'a> {
    pub(super) fn new(rx: &'a mut RxHalf, ifindex: u32, checks: bool) -> Self {
        Self { rx, ifindex, checks, left: PACKETS, flow: NO_FLOW }
    }

    /// The number of packets that were taken.
    pub fn received(&self) -> usize {
        PACKETS - self.left
    }
}

impl RxBatch for PortBatch<'_> {
    fn next(&mut self) -> Option<Arrival<'_>> {
        let left = self.left.checked_sub(1)?;
        let received = self.rx.next()?;
        self.left = left;
        let link = match received.version {
            RoceVersion::V1 => LinkLayer { version: RoceVersion::V1, sl: 0, ifindex: self.ifindex },
            // As by a socket, so that it is the same to a queue pair which way its packets come.
            RoceVersion::V2 => LinkLayer::UDP,
        };
        Some(Arrival::behind_headers(link, self.checks, received.packet, &mut self.flow))
    }
}

/// The receiving half. It has the record of the descriptor, which both halves share, for forked children.
pub enum RxHalf {
    Socket(Guarded<Rx>),
    #[cfg(any(test, feature = "testing"))]
    Fake(fake::Rx),
}

/// The transmitting half.
pub(super) enum TxHalf {
    Socket(Tx),
    #[cfg(any(test, feature = "testing"))]
    Fake(fake::Tx),
}

impl RxHalf {
    /// Returns the next packet, or `None`; makes no system call.
    // An iterator cannot lend.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub(super) fn next(&mut self) -> Option<Received<'_>> {
        match self {
            Self::Socket(rx) => rx.next(),
            #[cfg(any(test, feature = "testing"))]
            Self::Fake(rx) => rx.next(),
        }
    }
}

impl AsFd for RxHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(rx) => rx.as_fd(),
            #[cfg(any(test, feature = "testing"))]
            Self::Fake(rx) => rx.as_fd(),
        }
    }
}

impl TxHalf {
    pub(super) fn push(
        &mut self,
        version: RoceVersion,
        headers: &[u8],
        segment: &[u8],
    ) -> Result<(), PushError> {
        match self {
            Self::Socket(tx) => tx.push(version, headers, segment),
            #[cfg(any(test, feature = "testing"))]
            Self::Fake(tx) => tx.push(headers, segment),
        }
    }

    /// Sets the hardware addresses of the packets that are pushed from now on.
    pub(super) fn set_hardware(&mut self, addresses: [u8; HARDWARE]) {
        match self {
            Self::Socket(tx) => tx.set_hardware(addresses),
            #[cfg(any(test, feature = "testing"))]
            Self::Fake(tx) => tx.set_hardware(addresses),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Socket(tx) => tx.flush(),
            #[cfg(any(test, feature = "testing"))]
            Self::Fake(tx) => tx.flush(),
        }
    }
}

/// A port whose wire is in the hands of a test.
#[cfg(any(test, feature = "testing"))]
pub mod fake {
    use std::collections::VecDeque;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use ferroce_datapath::xdp::MAX_PACKET;
    use parking_lot::Mutex;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::xdp::XdpPort;
    use crate::xdp::hardware::{Hardware, Resolve};

    /// The packets of a port, each from the IP header or GRH on.
    #[derive(Clone)]
    pub struct Wire {
        ends: Arc<Mutex<Ends>>,
        readable: Arc<OwnedFd>,
    }

    #[derive(Default)]
    struct Ends {
        arriving: VecDeque<(RoceVersion, Vec<u8>)>,
        added: Vec<Vec<u8>>,
        sent: Vec<Vec<u8>>,
        /// Frames that a flush sets free.
        frames: usize,
        refuses: Option<i32>,
        hardware: [u8; HARDWARE],
    }

    pub struct Rx {
        wire: Wire,
        held: Vec<u8>,
    }

    pub struct Tx(Wire);

    impl Wire {
        /// Gives `port` a socket with this number of frames, and is its other end.
        pub fn install(port: &XdpPort, frames: usize) -> Self {
            Self::install_with(port, frames, None)
        }

        /// As [`Self::install`], with a direct port.
        pub fn install_direct(port: &XdpPort, frames: usize, resolve: Box<Resolve>) -> Self {
            Self::install_with(port, frames, Some(Hardware::new(resolve)))
        }

        fn install_with(port: &XdpPort, frames: usize, hardware: Option<Hardware>) -> Self {
            let ends = Arc::new(Mutex::new(Ends { frames, ..Ends::default() }));
            let readable = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let wire = Self { ends, readable: Arc::new(readable) };
            let (rx, tx) = (Rx { wire: wire.clone(), held: Vec::new() }, Tx(wire.clone()));
            port.install_halves(RxHalf::Fake(rx), TxHalf::Fake(tx), hardware).unwrap();
            wire
        }

        /// The hardware addresses of the packets that were added last.
        pub fn hardware(&self) -> [u8; HARDWARE] {
            self.ends.lock().hardware
        }

        pub fn arrive(&self, version: RoceVersion, packet: &[u8]) {
            self.ends.lock().arriving.push_back((version, packet.to_vec()));
            ferroce_host::event::signal(&*self.readable).unwrap();
        }

        /// The packets that were sent since the last call.
        pub fn sent(&self) -> Vec<Vec<u8>> {
            std::mem::take(&mut self.ends.lock().sent)
        }

        /// Flushes fail with this error from now on.
        pub fn refuse(&self, errno: i32) {
            self.ends.lock().refuses = Some(errno);
        }

        /// No half of the port is left.
        pub fn is_closed(&self) -> bool {
            Arc::strong_count(&self.ends) == 1
        }
    }

    impl Rx {
        pub(super) fn next(&mut self) -> Option<Received<'_>> {
            let mut ends = self.wire.ends.lock();
            let Some((version, packet)) = ends.arriving.pop_front() else {
                // As a ring, it is readable until all is taken.
                let _ = ferroce_host::event::silence(&*self.wire.readable);
                return None;
            };
            self.held = packet;
            Some(Received { version, packet: &self.held })
        }
    }

    impl AsFd for Rx {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.wire.readable.as_fd()
        }
    }

    impl Tx {
        pub(super) fn set_hardware(&mut self, addresses: [u8; HARDWARE]) {
            self.0.ends.lock().hardware = addresses;
        }

        pub(super) fn push(&mut self, headers: &[u8], segment: &[u8]) -> Result<(), PushError> {
            let mut ends = self.0.ends.lock();
            if headers.len() + segment.len() > MAX_PACKET {
                return Err(PushError::TooLong);
            }
            if ends.added.len() >= ends.frames {
                return Err(PushError::Full);
            }
            ends.added.push([headers, segment].concat());
            Ok(())
        }

        pub(super) fn flush(&mut self) -> io::Result<()> {
            let mut ends = self.0.ends.lock();
            let added = std::mem::take(&mut ends.added);
            if let Some(errno) = ends.refuses {
                return Err(io::Error::from_raw_os_error(errno));
            }
            ends.sent.extend(added);
            Ok(())
        }
    }
}
