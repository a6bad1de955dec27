//! The `repr(C)` types and constants of libibverbs, librdmacm and libibumad that ferroce reads or writes, in
//! the layout of rdma-core 65. No behaviour.
//!
//! Names are those of the C headers, and the man page of a call describes the members of its structures. A
//! member of an unnamed C union is reached through `unnamed` (`unnamed_2` for a second one); a name that is a
//! Rust keyword ends in `_`. C enums are integers here, because a program may pass any value. Sizes and
//! offsets are asserted at compile time for x86-64, and `tests/headers.rs` compares them with the installed C
//! headers.
#![no_std]
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]
#![allow(non_snake_case, reason = "the names are those of the C headers")]
#![allow(missing_docs, reason = "the man pages document the members")]

/// Asserts the size of a type and the offset of each member, from the C headers of x86-64. On other machines
/// a POSIX mutex or condition variable may have another size, so only `repr(C)` determines the layout there.
macro_rules! layout {
    ($name:ident, $size:literal, { $($($field:ident).+ : $offset:literal),* $(,)? }) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $($field).+) == $offset);)*
        };
    };
}

/// A structure with its size and the offset of each member, both asserted as by `layout!`.
macro_rules! structure {
    ($name:ident, $size:literal, { $($field:ident: $type:ty = $offset:literal,)* }) => {
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }
        layout!($name, $size, { $($field: $offset),* });
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
pub use work::*;

/// Sixteen bits in network order.
pub type be16 = u16;
/// Thirty-two bits in network order.
pub type be32 = u32;
/// Sixty-four bits in network order.
pub type be64 = u64;
