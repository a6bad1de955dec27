//! The instructions that touch foreign memory, for AArch64.
//!
//! As for x86-64: pieces of 1, 2, 4 and 8 bytes lead up to the alignment of the foreign address and back, so
//! that none is torn, all from low to high addresses. Stores may be seen in another order here, so the last
//! piece is a copy of its own behind a barrier.
//!
//! A routine keeps in `x2` what it has still to copy, and returns it; so the way out after a fault is its
//! normal end.

use std::arch::global_asm;
use std::sync::atomic::{Ordering, fence};

use super::Fault;
use super::routines::Routine;

/// x0: destination, x1: source, x2: length. `$along`: the register whose alignment counts.
macro_rules! copy {
    ($name:literal, $along:literal) => {
        global_asm!(concat!(
            ".pushsection .text.ferroce_guard,\"ax\",@progbits\n",
            ".p2align 6\n",
            ".hidden ",
            $name,
            "\n",
            ".globl ",
            $name,
            "\n",
            ".hidden ",
            $name,
            "_end\n",
            ".globl ",
            $name,
            "_end\n",
            ".type ",
            $name,
            ",@function\n",
            $name,
            ":\n",
            ".cfi_startproc\n",
            "tst ",
            $along,
            ", #15\n",
            "b.eq 20f\n",
            "tbz ",
            $along,
            ", #0, 1f\n",
            "cmp x2, #1\n",
            "b.lo 30f\n",
            "ldrb w3, [x1], #1\n",
            "strb w3, [x0], #1\n",
            "sub x2, x2, #1\n",
            "1: tbz ",
            $along,
            ", #1, 2f\n",
            "cmp x2, #2\n",
            "b.lo 30f\n",
            "ldrh w3, [x1], #2\n",
            "strh w3, [x0], #2\n",
            "sub x2, x2, #2\n",
            "2: tbz ",
            $along,
            ", #2, 4f\n",
            "cmp x2, #4\n",
            "b.lo 30f\n",
            "ldr w3, [x1], #4\n",
            "str w3, [x0], #4\n",
            "sub x2, x2, #4\n",
            "4: tbz ",
            $along,
            ", #3, 20f\n",
            "cmp x2, #8\n",
            "b.lo 30f\n",
            "ldr x3, [x1], #8\n",
            "str x3, [x0], #8\n",
            "sub x2, x2, #8\n",
            "20: cmp x2, #64\n",
            "b.lo 22f\n",
            "21: ldp q0, q1, [x1]\n",
            "ldp q2, q3, [x1, #32]\n",
            "stp q0, q1, [x0]\n",
            "stp q2, q3, [x0, #32]\n",
            "add x1, x1, #64\n",
            "add x0, x0, #64\n",
            "sub x2, x2, #64\n",
            "cmp x2, #64\n",
            "b.hs 21b\n",
            "22: cmp x2, #16\n",
            "b.lo 30f\n",
            "ldr q0, [x1], #16\n",
            "str q0, [x0], #16\n",
            "sub x2, x2, #16\n",
            "b 22b\n",
            "30: tbz x2, #3, 31f\n",
            "ldr x3, [x1], #8\n",
            "str x3, [x0], #8\n",
            "sub x2, x2, #8\n",
            "31: tbz x2, #2, 32f\n",
            "ldr w3, [x1], #4\n",
            "str w3, [x0], #4\n",
            "sub x2, x2, #4\n",
            "32: tbz x2, #1, 33f\n",
            "ldrh w3, [x1], #2\n",
            "strh w3, [x0], #2\n",
            "sub x2, x2, #2\n",
            "33: tbz x2, #0, ",
            $name,
            "_end\n",
            "ldrb w3, [x1]\n",
            "strb w3, [x0]\n",
            "sub x2, x2, #1\n",
            $name,
            "_end:\n",
            "mov x0, x2\n",
            "ret\n",
            ".cfi_endproc\n",
            ".size ",
            $name,
            ", . - ",
            $name,
            "\n",
            ".popsection\n"
        ),);
    };
}

copy!("ferroce_guard_copy_in", "x0");
copy!("ferroce_guard_copy_out", "x1");

// x0: word, x1 and x2: operands. Returns the old word in x0 and in x1 0, or 1 after a fault.
global_asm!(
    ".pushsection .text.ferroce_guard,\"ax\",@progbits",
    ".p2align 4",
    ".hidden ferroce_guard_compare_swap",
    ".globl ferroce_guard_compare_swap",
    ".hidden ferroce_guard_compare_swap_end",
    ".globl ferroce_guard_compare_swap_end",
    ".type ferroce_guard_compare_swap,@function",
    "ferroce_guard_compare_swap:",
    ".cfi_startproc",
    "mov x4, x0",
    "mov x5, x1",
    "mov x1, #1",
    "1: ldaxr x0, [x4]",
    "cmp x0, x5",
    "b.ne 2f",
    "stlxr w3, x2, [x4]",
    "cbnz w3, 1b",
    "2: mov x1, #0",
    "ferroce_guard_compare_swap_end:",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guard_compare_swap, . - ferroce_guard_compare_swap",
    ".p2align 4",
    ".hidden ferroce_guard_fetch_add",
    ".globl ferroce_guard_fetch_add",
    ".hidden ferroce_guard_fetch_add_end",
    ".globl ferroce_guard_fetch_add_end",
    ".type ferroce_guard_fetch_add,@function",
    "ferroce_guard_fetch_add:",
    ".cfi_startproc",
    "mov x4, x0",
    "mov x5, x1",
    "mov x1, #1",
    "1: ldaxr x0, [x4]",
    "add x2, x0, x5",
    "stlxr w3, x2, [x4]",
    "cbnz w3, 1b",
    "mov x1, #0",
    "ferroce_guard_fetch_add_end:",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guard_fetch_add, . - ferroce_guard_fetch_add",
    ".popsection",
);

unsafe extern "C" {
    fn ferroce_guard_copy_in(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn ferroce_guard_copy_out(to: *mut u8, from: *const u8, len: usize) -> usize;
    static ferroce_guard_copy_in_end: u8;
    static ferroce_guard_copy_out_end: u8;
}

/// The routines that copy.
pub(super) fn copies() -> [Routine; 2] {
    [
        (ferroce_guard_copy_in as *const (), &raw const ferroce_guard_copy_in_end),
        (ferroce_guard_copy_out as *const (), &raw const ferroce_guard_copy_out_end),
    ]
}

/// Reads and sets the interrupted thread's instruction pointer.
pub(super) fn instruction_pointer(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}

/// # Safety
///
/// `to` may be written to for `len` bytes; `from` may be any address.
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the routine reads `len` bytes at `from` and writes them at `to`, nothing else; a fault on
    // reading ends it early.
    let left = unsafe { ferroce_guard_copy_out(to, from, len) };
    if left == 0 { Ok(()) } else { Err(Fault) }
}

/// # Safety
///
/// `from` may be read for `len` bytes; `to` may be any address that no Rust reference reaches.
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    // The last piece: down to the last multiple of 8, or one byte where the end is odd.
    let end = (to as usize).wrapping_add(len);
    let last = (1 << end.trailing_zeros().min(3)).min(len);
    let most = len - last;
    // SAFETY: as in `copy_out`, for the first `most` of `len` bytes; a fault on writing ends the routine
    // early.
    if unsafe { ferroce_guard_copy_in(to, from, most) } != 0 {
        return Err(Fault);
    }
    fence(Ordering::Release);
    // SAFETY: the rest of the same ranges.
    let left = unsafe { ferroce_guard_copy_in(to.wrapping_add(most), from.wrapping_add(most), last) };
    if left == 0 { Ok(()) } else { Err(Fault) }
}

pub(super) const CAN_PERSIST: bool = false;

/// Memory is not registered for it here.
pub(super) fn persist(_from: u64, _len: u64) -> Result<(), Fault> {
    Err(Fault)
}
