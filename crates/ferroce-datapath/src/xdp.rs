//! AF_XDP: packets between the rings of a program and an interface, past the kernel's network stack.
//!
//! A privileged process attaches an [`Uplink`] to an interface: an XDP program that takes the RoCE packets of
//! its addresses and leaves everything else to the kernel. Each program without privileges has a [`Port`]: a
//! pair of veth interfaces, and an AF_XDP socket with memory of its own on the far end. The uplink redirects
//! a packet to the near end of the pair by the slot in its DestQP. An XDP program on the near end checks what
//! the program sends, lets the kernel's tables write the hardware addresses, and redirects it to the
//! interface. So a program has neither the frames of others nor the means to forge one, although the transmit
//! ring of its socket takes any octets.
//!
//! A program that may send any frame anyway can have a direct port instead ([`Uplink::open_direct`]): a
//! socket at the interface itself. Each of its packets crosses one interface in place of three. A queue of an
//! interface belongs to one socket, so one program of an interface has such a port at a time. The socket
//! copies packets (`XDP_COPY`). With `XDP_ZEROCOPY` the driver would receive all packets of the queue into
//! the memory of that one program, and a program that is stopped would take the interface from the kernel.
//!
//! # Limits
//!
//! - The BTH has no source queue pair. A program can therefore imitate packets of RC and UC that another
//!   program of the same address sends to a remote peer, if it knows their queue pair number and PSN.
//! - The near end sends past the host's packet filter and its queueing disciplines.
//! - The kernel forwards no packet from or to a link-local address, so such packets are dropped
//!   ([`DropReason::NoRoute`]). They need a UDP socket.
//! - The kernel's route must lead to the uplink without naming it. Where two interfaces are in one subnet,
//!   one of them needs a routing rule for its address, or forwarding: the kernel answers questions about the
//!   routes of one interface only if forwarding is on there. Otherwise packets are dropped
//!   ([`DropReason::OtherInterface`]).
//! - The kernel must know the hardware address of the next hop ([`DropReason::NoNeighbour`]): the sender
//!   makes it resolve the address, for example by a UDP datagram.
//! - In generic mode an interface without hardware (tun, macvlan) may show several datagrams of a sender on
//!   the same host as one frame, if that sender uses UDP segmentation. The kernel gets frames longer than
//!   [`MAX_PACKET`]; a shorter one comes as one packet, whose ICRC is wrong. The driver of veth runs the
//!   program itself ([`Mode::Native`]), and has the sender's kernel split the datagrams.
//!
//! # After the end of the privileged process
//!
//! The programs of the uplink and of the far ends are attached by links, so the kernel removes them, and the
//! kernel's UDP sockets get the packets. The program of a near end is attached to the interface itself and
//! stays until somebody deletes the pair. Otherwise a program with the descriptor of the socket could then
//! send any frame into the kernel's stack, where the near end forwards.
//!
//! # Interfaces
//!
//! Linux 5.18 or later is needed. Both ends of a pair have one queue, and the MTU of the uplink or more; more
//! than [`MAX_PACKET`] is useless. Forwarding is on at the near end, of IPv4 and of IPv6, because the kernel
//! answers its program's questions about routes only then. Nothing else uses it: the program passes nothing
//! to the kernel.

mod drops;
mod filters;
mod program;
mod rings;
mod uplink;

pub use drops::DropReason;
pub use rings::{HARDWARE, PushError, Received, Rx, Tx, join};
pub use uplink::{AttachError, MAX_ADDRESSES, MAX_SLOT, Mode, Pair, Port, Uplink};

/// The longest packet, from the GRH or IP header to the ICRC, in octets: a frame of 4 KiB without the
/// kernel's 256 octets of headroom and the Ethernet header.
pub const MAX_PACKET: usize = 3826;

/// Octets of a frame's place in the memory of a port. A smaller one (2 KiB) has no space for a path MTU of
/// 2048, and the kernel allows no place larger than a page.
const CHUNK: u32 = 4096;

/// Frames in each direction, and entries of each ring, a power of two. 512 packets of a path MTU of 2048 are
/// 1 MiB, which may arrive while the program does something else. The frames of both directions are 4 MiB: a
/// user without CAP_IPC_LOCK may usually lock 8 MiB, for all ports of a broker together.
const FRAMES: u32 = 512;

/// Octets of the memory of each direction: the receiving half first.
const HALF: usize = CHUNK as usize * FRAMES as usize;
