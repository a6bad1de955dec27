//! The instructions that touch foreign memory, for x86-64.
//!
//! Not `rep movsb`: its stores may be seen out of order, and it is slow to start. Two variants of the copy,
//! 32 bytes a step with AVX and 16 without, and each in two forms: `in` steps along the destination's
//! alignment, `out` along the source's, so that no access to foreign memory crosses a cache line and none is
//! torn below its size. Pieces of 1, 2, 4, 8 and 16 bytes lead up to the alignment and back. All steps go
//! from low to high addresses, and x86 shows stores in their order.
//!
//! A routine keeps in `rdx` what it has still to copy, and returns it; so the way out after a fault is its
//! normal end.

use std::arch::global_asm;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Fault;
use super::routines::Routine;

/// Below this many bytes a copy takes small steps anyway, and the AVX unit need not wake up.
const AVX_FROM: usize = 256;

/// rdi: destination, rsi: source, rdx: length. `$along`: the register whose alignment counts, as a byte
/// register; `$size`: bytes that a register `$reg` holds; `$mov`: its unaligned load and store; `$leave`:
/// what comes before the return.
macro_rules! copy {
    ($name:literal, $along:literal, $size:literal, $reg:literal, $mov:literal, $leave:literal) => {
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
            "test ",
            $along,
            ", ",
            $size,
            " - 1\n",
            "jz 20f\n",
            "test ",
            $along,
            ", 1\n",
            "jz 51f\n",
            "cmp rdx, 1\n",
            "jb 30f\n",
            "movzx eax, byte ptr [rsi]\n",
            "mov byte ptr [rdi], al\n",
            "inc rsi\n",
            "inc rdi\n",
            "dec rdx\n",
            "51: test ",
            $along,
            ", 2\n",
            "jz 52f\n",
            "cmp rdx, 2\n",
            "jb 30f\n",
            "movzx eax, word ptr [rsi]\n",
            "mov word ptr [rdi], ax\n",
            "add rsi, 2\n",
            "add rdi, 2\n",
            "sub rdx, 2\n",
            "52: test ",
            $along,
            ", 4\n",
            "jz 54f\n",
            "cmp rdx, 4\n",
            "jb 30f\n",
            "mov eax, dword ptr [rsi]\n",
            "mov dword ptr [rdi], eax\n",
            "add rsi, 4\n",
            "add rdi, 4\n",
            "sub rdx, 4\n",
            "54: test ",
            $along,
            ", 8\n",
            "jz 58f\n",
            "cmp rdx, 8\n",
            "jb 30f\n",
            "mov rax, qword ptr [rsi]\n",
            "mov qword ptr [rdi], rax\n",
            "add rsi, 8\n",
            "add rdi, 8\n",
            "sub rdx, 8\n",
            "58: test ",
            $along,
            ", 16 & (",
            $size,
            " - 1)\n",
            "jz 20f\n",
            "cmp rdx, 16\n",
            "jb 30f\n",
            $mov,
            " xmm0, [rsi]\n",
            $mov,
            " [rdi], xmm0\n",
            "add rsi, 16\n",
            "add rdi, 16\n",
            "sub rdx, 16\n",
            // Four registers a turn.
            "20: cmp rdx, 4*",
            $size,
            "\n",
            "jb 22f\n",
            ".p2align 5\n",
            "21:\n",
            $mov,
            " ",
            $reg,
            "0, [rsi]\n",
            $mov,
            " ",
            $reg,
            "1, [rsi + ",
            $size,
            "]\n",
            $mov,
            " ",
            $reg,
            "2, [rsi + 2*",
            $size,
            "]\n",
            $mov,
            " ",
            $reg,
            "3, [rsi + 3*",
            $size,
            "]\n",
            $mov,
            " [rdi], ",
            $reg,
            "0\n",
            $mov,
            " [rdi + ",
            $size,
            "], ",
            $reg,
            "1\n",
            $mov,
            " [rdi + 2*",
            $size,
            "], ",
            $reg,
            "2\n",
            $mov,
            " [rdi + 3*",
            $size,
            "], ",
            $reg,
            "3\n",
            "add rsi, 4*",
            $size,
            "\n",
            "add rdi, 4*",
            $size,
            "\n",
            "sub rdx, 4*",
            $size,
            "\n",
            "cmp rdx, 4*",
            $size,
            "\n",
            "jae 21b\n",
            "22: cmp rdx, ",
            $size,
            "\n",
            "jb 30f\n",
            $mov,
            " ",
            $reg,
            "0, [rsi]\n",
            $mov,
            " [rdi], ",
            $reg,
            "0\n",
            "add rsi, ",
            $size,
            "\n",
            "add rdi, ",
            $size,
            "\n",
            "sub rdx, ",
            $size,
            "\n",
            "jmp 22b\n",
            // The rest is shorter than the alignment that was reached, or the head was everything.
            "30: test dl, 16\n",
            "jz 31f\n",
            $mov,
            " xmm0, [rsi]\n",
            $mov,
            " [rdi], xmm0\n",
            "add rsi, 16\n",
            "add rdi, 16\n",
            "sub rdx, 16\n",
            "31: test dl, 8\n",
            "jz 32f\n",
            "mov rax, qword ptr [rsi]\n",
            "mov qword ptr [rdi], rax\n",
            "add rsi, 8\n",
            "add rdi, 8\n",
            "sub rdx, 8\n",
            "32: test dl, 4\n",
            "jz 33f\n",
            "mov eax, dword ptr [rsi]\n",
            "mov dword ptr [rdi], eax\n",
            "add rsi, 4\n",
            "add rdi, 4\n",
            "sub rdx, 4\n",
            "33: test dl, 2\n",
            "jz 34f\n",
            "movzx eax, word ptr [rsi]\n",
            "mov word ptr [rdi], ax\n",
            "add rsi, 2\n",
            "add rdi, 2\n",
            "sub rdx, 2\n",
            "34: test dl, 1\n",
            "jz ",
            $name,
            "_end\n",
            "movzx eax, byte ptr [rsi]\n",
            "mov byte ptr [rdi], al\n",
            "dec rdx\n",
            $name,
            "_end:\n",
            "mov rax, rdx\n",
            $leave,
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

copy!("ferroce_guard_copy_in", "dil", "16", "xmm", "movups", "");
copy!("ferroce_guard_copy_out", "sil", "16", "xmm", "movups", "");
copy!("ferroce_guard_copy_in_avx", "dil", "32", "ymm", "vmovdqu", "vzeroupper\n");
copy!("ferroce_guard_copy_out_avx", "sil", "32", "ymm", "vmovdqu", "vzeroupper\n");

// rdi: word, rsi and rdx: operands. Returns the old word in rax and in rdx 0, or 1 after a fault.
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
    "mov rax, rsi",
    "mov rcx, rdx",
    "mov edx, 1",
    "lock cmpxchg qword ptr [rdi], rcx",
    "xor edx, edx",
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
    "mov rax, rsi",
    "mov edx, 1",
    "lock xadd qword ptr [rdi], rax",
    "xor edx, edx",
    "ferroce_guard_fetch_add_end:",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guard_fetch_add, . - ferroce_guard_fetch_add",
    // rdi: cache line, rsi: lines. Returns those left.
    ".p2align 4",
    ".hidden ferroce_guard_persist",
    ".globl ferroce_guard_persist",
    ".hidden ferroce_guard_persist_end",
    ".globl ferroce_guard_persist_end",
    ".type ferroce_guard_persist,@function",
    "ferroce_guard_persist:",
    ".cfi_startproc",
    "2: clflush byte ptr [rdi]",
    "add rdi, 64",
    "dec rsi",
    "jnz 2b",
    "ferroce_guard_persist_end:",
    "mov rax, rsi",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guard_persist, . - ferroce_guard_persist",
    ".popsection",
);

unsafe extern "C" {
    fn ferroce_guard_copy_in(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn ferroce_guard_copy_out(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn ferroce_guard_copy_in_avx(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn ferroce_guard_copy_out_avx(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn ferroce_guard_persist(line: *const u8, lines: u64) -> u64;
    static ferroce_guard_copy_in_end: u8;
    static ferroce_guard_copy_out_end: u8;
    static ferroce_guard_copy_in_avx_end: u8;
    static ferroce_guard_copy_out_avx_end: u8;
    static ferroce_guard_persist_end: u8;
}

/// The routines that copy, and the one that writes caches back.
pub(super) fn copies() -> [Routine; 5] {
    [
        (ferroce_guard_copy_in as *const (), &raw const ferroce_guard_copy_in_end),
        (ferroce_guard_copy_out as *const (), &raw const ferroce_guard_copy_out_end),
        (ferroce_guard_copy_in_avx as *const (), &raw const ferroce_guard_copy_in_avx_end),
        (ferroce_guard_copy_out_avx as *const (), &raw const ferroce_guard_copy_out_avx_end),
        (ferroce_guard_persist as *const (), &raw const ferroce_guard_persist_end),
    ]
}

/// Reads and sets the interrupted thread's instruction pointer.
pub(super) fn instruction_pointer(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// # Safety
///
/// `to` may be written to for `len` bytes; `from` may be any address.
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let left = if len >= AVX_FROM && has_avx() {
        // SAFETY: the routine reads `len` bytes at `from` and writes them at `to`, nothing else; a fault on
        // reading ends it early. AVX is there, and the stack is as a C call wants it.
        unsafe { ferroce_guard_copy_out_avx(to, from, len) }
    } else {
        // SAFETY: as above, with SSE2, which every x86-64 has.
        unsafe { ferroce_guard_copy_out(to, from, len) }
    };
    if left == 0 { Ok(()) } else { Err(Fault) }
}

/// # Safety
///
/// `from` may be read for `len` bytes; `to` may be any address that no Rust reference reaches.
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let left = if len >= AVX_FROM && has_avx() {
        // SAFETY: as in `copy_out`; a fault on writing ends the routine early.
        unsafe { ferroce_guard_copy_in_avx(to, from, len) }
    } else {
        // SAFETY: as above, with SSE2.
        unsafe { ferroce_guard_copy_in(to, from, len) }
    };
    if left == 0 { Ok(()) } else { Err(Fault) }
}

/// Bytes that one `clflush` writes back on every x86-64.
const LINE: u64 = 64;
pub(super) const CAN_PERSIST: bool = true;

pub(super) fn persist(from: u64, len: u64) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let first = from & !(LINE - 1);
    let last = from.wrapping_add(len - 1) & !(LINE - 1);
    let lines = (last.wrapping_sub(first)) / LINE + 1;
    // SAFETY: the routine changes no byte; a fault on a line ends it early.
    let left = unsafe { ferroce_guard_persist(first as *const u8, lines) };
    // `clflush` is ordered with stores before and after it; nothing else is to wait for.
    if left == 0 { Ok(()) } else { Err(Fault) }
}

/// Whether the processor and the system do AVX. std caches the answer too, but looks up three bits each time.
fn has_avx() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let yes = is_x86_feature_detected!("avx");
            STATE.store(if yes { YES } else { NO }, Ordering::Relaxed);
            yes
        }
        state => state == YES,
    }
}
