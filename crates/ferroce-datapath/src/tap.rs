//! A tap: an interface of the kernel whose other end is a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_host::rtnetlink;

use crate::sys;

/// A tap. Its frames have no header before the hardware addresses, and the kernel computes all checksums of
/// what it sends. The interface disappears when this is dropped, unless it is persistent.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    ifindex: u32,
}

impl Tap {
    /// Makes the tap `name` or takes one that nobody holds, with this hardware address and MTU, and sets it
    /// up. Needs CAP_NET_ADMIN in the network namespace. The name has 1 to 15 octets.
    ///
    /// # Errors
    /// `PermissionDenied` without the capability; `NotFound` without `/dev/net/tun`; `EBUSY` if another
    /// process holds the tap; `EINVAL` if an interface of another kind has the name.
    pub fn open(name: &str, mac: [u8; 6], mtu: u16, persistent: bool) -> io::Result<Self> {
        let fd = sys::open_tap(name)?;
        let ifindex = rtnetlink::index_of(name)?;
        rtnetlink::set_up_with(ifindex, mac, mtu)?;
        sys::set_persistent(&fd, persistent)?;
        Ok(Self { fd, ifindex })
    }

    /// Removes the persistent tap `name`, which nobody holds.
    ///
    /// # Errors
    /// The errors of [`Tap::open`].
    pub fn remove(name: &str) -> io::Result<()> {
        if rtnetlink::index_of(name).is_err() {
            return Ok(());
        }
        sys::set_persistent(&sys::open_tap(name)?, false)
    }

    /// Returns the index of its interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Makes it stay when this is dropped, or not.
    ///
    /// # Errors
    /// The errors of `ioctl(2)`.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        sys::set_persistent(&self.fd, persistent)
    }

    /// Gives the interface its carrier, or takes it.
    ///
    /// # Errors
    /// `EINVAL` before Linux 5.0, where it always has a carrier.
    pub fn set_carrier(&self, carrier: bool) -> io::Result<()> {
        sys::set_carrier(&self.fd, carrier)
    }

    /// Returns the length of the next frame that the kernel sends, or `None`. Never blocks. A frame that is
    /// longer than the buffer is cut.
    ///
    /// # Errors
    /// The errors of `read(2)`: `EIO` while the interface is down.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives the kernel a frame, as if it had arrived at the interface.
    ///
    /// # Errors
    /// The errors of `write(2)`: `EIO` while the interface is down.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, frame)?;
        Ok(())
    }
}

impl AsFd for Tap {
    /// Readable while the kernel has a frame to send.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
