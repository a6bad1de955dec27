//! `Debug` and `AsRawFd` of the public types.

use std::fmt::{Debug, Formatter, Result};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use crate::cm::{
    Connected, DatagramListener, DatagramPeer, DatagramRequest, Listener, Pending, PendingPeer, Request,
};
use crate::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, DeviceMemory, MemoryWindow, ProtectionDomain,
    QueuePair, SharedReceiveQueue, XrcDomain, XrcInitiator, XrcTarget,
};

/// Each shows these values, and leaves out the rest.
macro_rules! debug {
    ($($name:ident $(<$($of:ident),*>)? |$it:pat_param| { $($field:ident: $value:expr),* })*) => {
        $(impl $(<$($of),*>)? Debug for $name $(<$($of),*>)? {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let $it = self;
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &$value))*
                    .finish_non_exhaustive()
            }
        })*
    };
}

debug! {
    Context |it| { device: it.open.context.name() }
    ProtectionDomain |it| { device: it.shared.open.context.name() }
    DeviceMemory |it| { len: it.len() }
    CompletionChannel |it| { fd: it.as_raw_fd() }
    CompletionQueue |it| { capacity: it.capacity() }
    QueuePair<State, S> |it| { qpn: it.qpn(), state: it.state() }
    SharedReceiveQueue |it| { number: it.number() }
    MemoryWindow |it| { remote: it.remote() }
    AddressHandle |_| {}
    XrcDomain |_| {}
    XrcTarget |it| { qpn: it.qpn() }
    XrcInitiator |it| { qpn: it.qpn() }
    Connected |it| { local: it.local_addr(), peer: it.peer_addr() }
    Listener |it| { local: it.local_addr() }
    Request |it| { local: it.local_addr(), peer: it.peer_addr() }
    DatagramListener |it| { local: it.local_addr() }
    DatagramRequest |it| { local: it.local_addr(), peer: it.peer_addr() }
    DatagramPeer |it| { local: it.local_addr(), peer: it.peer_addr() }
    PendingPeer |_| {}
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
