//! The cdylib behind three names: `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` are links to this
//! one file, so a process has one engine.
//!
//! The tables in `exports/` give each symbol its version and its function in `ferroce-capi`. A plain
//! `#[no_mangle]` symbol would lose its version under the version script of rustc, so each line becomes a
//! trampoline named by `.symver`; `abi.map` has the empty version nodes.

/// The loader calls it.
#[used]
// SAFETY: the section holds pointers to functions without arguments, which the loader calls once.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = ferroce_capi::start::refuse_copies;

// The ELF note by which `refuse_copies` identifies this library.
core::arch::global_asm!(
    ".pushsection .note.ferroce,\"a\",@note",
    ".balign 4",
    ".long 8, 4, 1",
    ".asciz \"ferroce\"",
    ".long 1",
    ".popsection",
);

/// The byte `verbs_allow_disassociate_destroy`: provider libraries read it and never write it.
const ALLOW_DISASSOCIATE_DESTROY: u8 = 0;

macro_rules! label {
    ($name:literal $($node:literal)+) => {
        concat!("__abi_", $name, "_" $(, $node)+)
    };
}

/// Programs linked today need `name@@NODE`; only old ones need `name@NODE`.
macro_rules! symver {
    (default $name:literal $($node:literal)+) => {
        concat!(".symver ", label!($name $($node)+), ", ", $name, "@@@" $(, $node)+)
    };
    (compat $name:literal $($node:literal)+) => {
        concat!(".symver ", label!($name $($node)+), ", ", $name, "@" $(, $node)+, ", remove")
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}

macro_rules! export {
    ($kind:ident $name:literal $($node:literal)+ data ALLOW_DISASSOCIATE_DESTROY) => {
        core::arch::global_asm!(
            ".pushsection .rodata.abi,\"a\",@progbits",
            concat!(".globl ", label!($name $($node)+)),
            concat!(".type ", label!($name $($node)+), ",@object"),
            concat!(label!($name $($node)+), ": .byte {initial}"),
            concat!(".size ", label!($name $($node)+), ", 1"),
            symver!($kind $name $($node)+),
            ".popsection",
            initial = const $crate::ALLOW_DISASSOCIATE_DESTROY
        );
    };
    ($kind:ident $name:literal $($node:literal)+ $module:ident $function:ident) => {
        core::arch::global_asm!(
            ".pushsection .text.abi,\"ax\",@progbits",
            concat!(".globl ", label!($name $($node)+)),
            concat!(".type ", label!($name $($node)+), ",@function"),
            concat!(label!($name $($node)+), ":"),
            jump!(),
            concat!(".size ", label!($name $($node)+), ", .-", label!($name $($node)+)),
            symver!($kind $name $($node)+),
            ".popsection",
            target = sym ferroce_capi::$module::$function
        );
    };
}

/// A table of exports. Each line: `default` or `compat`, name, version node (in one or more pieces), the
/// function, and for refusing ones the reason. Tests and the README's table read the same files with a macro
/// of their own.
macro_rules! exports {
    ($(
        $kind:ident $name:literal $($node:literal)+ = $module:ident :: $function:ident $(, $reason:literal)? ;
    )*) => {
        $(export!($kind $name $($node)+ $module $function);)*
    };
}

include!("exports/verbs.rs");
include!("exports/provider.rs");
include!("exports/rdmacm.rs");
include!("exports/umad.rs");
