//! Memory of a GPU: is this address in one, and how do its bytes come and go?
//!
//! Only the CUDA driver reaches such memory, and only in a program that has loaded `libcuda.so.1` itself:
//! nothing is linked or loaded here. [`find`] asks the driver about an address. Copies run on streams of our
//! own that wait for no stream of the program ([`Memory`]), because a kernel of the program may spin on the
//! very bytes that a copy delivers. They begin and end in pinned buffers ([`Buffer`]).
//!
//! The variable `FERROCE_GPU=off` turns all of it off.
//!
//! The crate knows no keys, no queue pairs and no messages.
#![deny(unsafe_code)]

mod buffer;
mod device;
mod driver;
mod memory;

pub use buffer::{Buffer, PIECE};
pub use memory::{Memory, find, is_off};

use std::io;

/// Why memory that the driver knows cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The range reaches beyond its allocation, or over a hole between mappings.
    #[error("the range is not all memory of one GPU")]
    OutOfRange,
    /// A CUDA array, which has no addresses.
    #[error("a CUDA array has no addresses")]
    Array,
    /// Managed memory of a device on which the processor must not touch it while the device works.
    #[error("managed memory of a GPU without concurrent managed access cannot be registered")]
    Managed,
    /// The driver makes no stream, event or pinned buffer.
    #[error(transparent)]
    Driver(#[from] Gone),
    /// The system has no memory for buffers.
    #[error("no memory for pinned buffers")]
    System(#[source] io::Error),
}

/// A copy did not happen: the memory was freed, its context ended, or the driver failed. The bytes are as
/// they were, or partly written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} of CUDA's driver failed with {code}")]
pub struct Gone {
    /// The function of the driver that failed.
    pub call: &'static str,
    /// The driver's `CUresult`, or 0 if the memory is no longer the registered one.
    pub code: i32,
}
