//! `Debug` and `AsRawFd` of the public types.

use std::fmt::{Debug, Formatter, Result};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use crate::cm::{Connected, DatagramListener, Listener, Pending, PendingPeer};
use crate::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, DeviceMemory, MemoryWindow, ProtectionDomain,
    QueuePair, SharedReceiveQueue, XrcDomain, XrcInitiator, XrcTarget,
};

impl Debug for Context {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Context").field("device", &self.open.context.name()).finish_non_exhaustive()
    }
}

impl Debug for ProtectionDomain {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let device = self.shared.open.context.name();
        f.debug_struct("ProtectionDomain").field("device", &device).finish_non_exhaustive()
    }
}

impl Debug for DeviceMemory {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("DeviceMemory").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Debug for CompletionChannel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("CompletionChannel").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Debug for CompletionQueue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("CompletionQueue").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl<State, S> Debug for QueuePair<State, S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (qpn, state) = (self.qpn(), self.state());
        f.debug_struct("QueuePair").field("qpn", &qpn).field("state", &state).finish_non_exhaustive()
    }
}

impl Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("SharedReceiveQueue").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Debug for MemoryWindow {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("MemoryWindow").field("remote", &self.remote()).finish_non_exhaustive()
    }
}

impl Debug for AddressHandle {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AddressHandle").finish_non_exhaustive()
    }
}

impl Debug for XrcDomain {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("XrcDomain").finish_non_exhaustive()
    }
}

impl Debug for XrcTarget {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("XrcTarget").field("qpn", &self.qpn()).finish_non_exhaustive()
    }
}

impl Debug for XrcInitiator {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("XrcInitiator").field("qpn", &self.qpn()).finish_non_exhaustive()
    }
}

/// Event loops need a raw descriptor: that of `AsFd`.
macro_rules! as_raw_fd {
    ($($name:ty),* $(,)?) => {
        $(impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        })*
    };
}

as_raw_fd!(CompletionChannel, Connected, DatagramListener, Listener, Pending, PendingPeer);
