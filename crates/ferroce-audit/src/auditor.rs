//! The functions that the loader calls. It holds a lock of its own meanwhile, so no two run at once.
//!
//! No call is audited (`la_objopen` returns 0, and there is no `la_symbind64` or `la_pltenter`). From glibc
//! 2.35 on, calls of functions then cost what they cost without an auditor; before, a call that is bound
//! lazily costs some 13 ns more.

use core::ffi::{c_char, c_long, c_uint};
use core::slice;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::library::{after, is_replaced};
use crate::{FILE, LIBRARY};

/// `LA_SER_ORIG`: the name is as the program, or `DT_NEEDED`, has it. With other flags it is the path of a
/// file that the loader is about to open, in one of the folders where it looks for a name without a slash.
const AS_ASKED: c_uint = 1;

/// Path of ferroce's library, a C string; empty without one.
static PATH: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
/// The namespaces of the loader that have mapped one of our names: bit n is namespace n. glibc has 16.
static MAPPED: AtomicU32 = AtomicU32::new(0);

/// The beginning of `struct link_map` (link.h).
#[repr(C)]
pub struct LinkMap {
    address: usize,
    name: *const c_char,
}

#[link(name = "c")]
unsafe extern "C" {
    /// The loader's, not the C library's: the stack as the kernel left it, with the number of arguments, the
    /// arguments, a null pointer, and the environment.
    static __libc_stack_end: *const usize;
}

/// Returns the version of the interface that is spoken, the loader's; 0 if nothing is to be replaced.
#[unsafe(no_mangle)]
extern "C" fn la_version(version: c_uint) -> c_uint {
    // SAFETY: the loader sets it before it maps anything.
    let stack = unsafe { __libc_stack_end };
    // SAFETY: the number of arguments is the first word, and the environment is behind their null pointer.
    let environment = unsafe { stack.add(*stack + 2) }.cast::<*const c_char>();
    for at in 0.. {
        // SAFETY: the list ends with a null pointer, at which this loop ends.
        let variable = unsafe { *environment.add(at) };
        if variable.is_null() {
            break;
        }
        // SAFETY: a C string, which nobody changes while the loader works.
        if let Some(list) = after(unsafe { text(variable) }, b"LD_AUDIT=") {
            return if list.split(|octet| *octet == b':').any(set_path) { version } else { 0 };
        }
    }
    0
}

/// Takes the folder of this file, if it is this file, as that of the library; returns whether it did.
fn set_path(file: &[u8]) -> bool {
    let Some(at) = file.iter().rposition(|octet| *octet == b'/') else { return false };
    let (folder, name) = file.split_at(at + 1);
    let fits = folder.len() + LIBRARY.len() < PATH.len();
    if !fits || after(name, FILE.as_bytes()).is_none_or(|rest| !rest.is_empty()) {
        return false;
    }
    for (to, octet) in PATH.iter().zip(folder.iter().chain(LIBRARY.as_bytes())) {
        to.store(*octet, Relaxed);
    }
    true
}

/// Notes in which namespace an object is, for searches on its behalf, and whether it is our library.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_objopen(map: *const LinkMap, namespace: c_long, cookie: *mut usize) -> c_uint {
    // SAFETY: from the loader, for this call.
    let (map, cookie) = unsafe { (&*map, &mut *cookie) };
    *cookie = namespace as usize;
    // SAFETY: a C string of the loader, if it is there.
    if !map.name.is_null() && is_replaced(unsafe { text(map.name) }) {
        MAPPED.fetch_or(1_u32.wrapping_shl(namespace as u32), Relaxed);
    }
    0
}

/// Answers which file is loaded for a name.
///
/// The first name in a namespace becomes our path. The loader looks versions of symbols up by the name of the
/// library in DT_NEEDED, and remembers that name only for the first one: for a second one it would end the
/// program ("Assertion `needed != NULL' failed"). Therefore each further name stays, and the file that is
/// opened for it becomes ours: the loader recognises what it has mapped, and adds the name.
///
/// For dlmopen the loader passes an object of the first namespace, so there the library may be known to the
/// program (`dladdr`) by the path that was searched.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_objsearch(name: *const c_char, cookie: *const usize, flag: c_uint) -> *const c_char {
    // SAFETY: a C string of the loader.
    let text = unsafe { text(name) };
    if !is_replaced(text) {
        return name;
    }
    // SAFETY: the word that `la_objopen` has set for the object on whose behalf is searched.
    let mapped = MAPPED.load(Relaxed) & 1_u32.wrapping_shl(unsafe { *cookie } as u32) != 0;
    if flag == AS_ASKED && mapped && text.iter().all(|octet| *octet != b'/') {
        return name;
    }
    PATH.as_ptr().cast()
}

/// The octets of a C string.
///
/// # Safety
/// The pointer is one to a C string, which stays as it is while the octets are in use.
unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the end was not reached.
    while unsafe { *string.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: as many octets were read.
    unsafe { slice::from_raw_parts(string.cast(), length) }
}
