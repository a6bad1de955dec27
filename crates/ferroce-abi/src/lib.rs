//! How does C see it? The `repr(C)` types and constants of libibverbs, librdmacm and libibumad, in the layout of
//! rdma-core 65. No behaviour.
//!
//! Names are those of the C headers, so that a man page and this crate can be read side by side; what a member means
//! stands in the man page of the call that takes it. A member of an unnamed C union is reached through `unnamed`
//! (`unnamed_2` for a second one), a name that is a Rust keyword ends in `_`. C enums are integers here, because a
//! program may pass any value. Sizes and offsets are asserted when this compiles for x86-64, and compared with the
//! installed C headers by `tests/headers.rs`.
#![no_std]
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]
#![allow(non_snake_case, reason = "the names are those of the C headers")]
#![allow(missing_docs, reason = "the man pages document the members")]

/// Asserts the size of a type and the offset of each member, from the C headers of x86-64. Elsewhere a mutex or condition
/// of POSIX threads may have another size, so that what holds one has too: there `repr(C)` alone decides.
macro_rules! layout {
    ($name:ident, $size:literal, { $($($field:ident).+ : $offset:literal),* $(,)? }) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $($field).+) == $offset);)*
        };
    };
}

mod attr;
mod constants;
mod context;
mod device;
mod flow;
mod object;
mod rdmacm;
mod rdmacm_constants;
mod sa;
mod umad;
mod umad_constants;
mod work;

pub use attr::*;
pub use constants::*;
pub use context::*;
pub use device::*;
pub use flow::*;
pub use object::*;
pub use rdmacm::*;
pub use rdmacm_constants::*;
pub use sa::*;
pub use umad::*;
pub use umad_constants::*;
pub use work::*;

/// Sixteen bits in network order.
pub type be16 = u16;
/// Thirty-two bits in network order.
pub type be32 = u32;
/// Sixty-four bits in network order.
pub type be64 = u64;
