//! An auditor of glibc's loader (rtld-audit(7)): the loader takes ferroce's library for each name and path by
//! which a program asks for libibverbs, librdmacm or libibumad.
//!
//! `ferroce run` names it in `LD_AUDIT`, so it is part of every process that the program starts. The loader
//! maps an auditor and all that the auditor needs into a namespace of its own. This crate needs nothing but
//! the loader: a second C library would add three times as much to each start. Therefore it has no `std`, and
//! calls neither `memcpy` nor `strlen` (`no_builtins`).
//!
//! `cargo rustc -p ferroce-audit --crate-type cdylib -- -C panic=abort` builds the shared library. As an
//! ordinary crate it tells `ferroce doctor` the rule.
#![cfg_attr(not(test), no_std)]
#![no_builtins]
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[allow(unsafe_code)]
mod auditor;
mod library;

/// File name of the auditor, in the folder of [`LIBRARY`].
pub const FILE: &str = "libferroce-audit.so";
/// File name of the one library that stands for all three.
pub const LIBRARY: &str = "libibverbs.so.1";

pub use library::{FAMILIES, is_replaced};

/// Only a bug of this crate could panic, and the loader has no way to go on then.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
