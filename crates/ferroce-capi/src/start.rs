//! Initialisation when the loader maps the library: it registers with the engine a way to run a broker in
//! this process, makes sure that the process has loaded the library only once, and tells a program that has
//! loaded NCCL before what `ferroce run` has set for it.
//!
//! `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` must be links to one file. The loader maps copies
//! one by one, each with an engine of its own, and a queue pair made by one would be unknown to the other.
//! That cannot be mended, so the program ends with a sentence instead of failing later in ways that nobody
//! understands.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::{ptr, slice};

use core::ffi::{c_int, c_void};

use ferroce_host::{environment, output};

use crate::{check, log};

/// Name of the ELF note that marks a file as this library.
const NOTE: &[u8] = b"ferroce\0";

/// A mapped file that carries the note.
struct Copy {
    base: usize,
    path: OsString,
}

/// The libraries of the process.
#[derive(Default)]
struct Mapped {
    copies: Vec<Copy>,
    nccl: bool,
}

/// Ends the program if a second copy of the library is mapped. Run by the loader.
pub extern "C" fn refuse_copies() {
    ferroce_client::embed_with(ferroce_broker::start_embedded);
    check::start();
    let mut mapped = Mapped::default();
    // SAFETY: the callback takes what it is given, and returns before this does.
    unsafe { libc::dl_iterate_phdr(Some(note_copy), ptr::from_mut(&mut mapped).cast()) };
    let Mapped { copies, nccl } = mapped;
    let set = |name: &String| environment::text(name).as_deref() == Some("2");
    if nccl && let Some(name) = environment::text(environment::SET_FOR_A_FAULT).filter(set) {
        log::install();
        tracing::error!(
            "`ferroce run` has set {name}=2: NCCL 2.28 crashes without it unless a card is NVIDIA's"
        );
    }
    if copies.len() < 2 {
        return;
    }
    let mut paths: Vec<String> = copies.iter().map(|copy| copy.path.to_string_lossy().into_owned()).collect();
    paths.sort();
    output::say(format_args!(
        "{} are copies of one library, and a program can use only one of them. Replace the copies by links to one file.",
        paths.join(" and ")
    ));
    // SAFETY: as the loader does when it cannot start a program.
    unsafe { libc::_exit(127) }
}

unsafe extern "C" fn note_copy(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: from dl_iterate_phdr, valid during the call.
    let info = unsafe { &*info };
    // SAFETY: the pointer that `refuse_copies` passed.
    let Mapped { copies, nccl } = unsafe { &mut *data.cast::<Mapped>() };
    if info.dlpi_phdr.is_null() || info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a C string of the loader.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    *nccl |= path.rsplit(|octet| *octet == b'/').next().is_some_and(|name| name.starts_with(b"libnccl.so"));
    // SAFETY: the loader's own table.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let start = base.wrapping_add(header.p_vaddr as usize);
        // SAFETY: notes of a mapped file are mapped and never written.
        let notes = unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), header.p_memsz as usize)
        };
        if has_note(notes, header.p_align as usize) && !copies.iter().any(|copy| copy.base == base) {
            copies.push(Copy { base, path: OsStr::from_bytes(path).to_owned() });
        }
    }
    0
}

/// Whether one of the ELF notes is ours. Each is: length of name, length of content, type, name, content,
/// both padded.
fn has_note(mut notes: &[u8], align: usize) -> bool {
    let align = if align == 8 { 8 } else { 4 };
    while let Some((header, rest)) = notes.split_first_chunk::<12>() {
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (name_len, content_len) = (word(0) as usize, word(4) as usize);
        let Some(name) = rest.get(..name_len) else { return false };
        if name == NOTE {
            return true;
        }
        // Padding counts from the header's start, which is 12 long.
        let content = (12 + name_len).next_multiple_of(align) - 12;
        let next = content.saturating_add(content_len.next_multiple_of(align));
        notes = rest.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((name.len() as u32).to_ne_bytes());
        bytes.extend((content.len() as u32).to_ne_bytes());
        bytes.extend(1_u32.to_ne_bytes());
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn finds_its_note_among_others() {
        let gnu = note(b"GNU\0", &[7; 20]);
        let ours = note(NOTE, &[1, 0, 0, 0]);
        assert!(!has_note(&gnu, 4));
        assert!(has_note(&ours, 4));
        assert!(has_note(&[gnu.clone(), ours.clone()].concat(), 4));
        assert!(!has_note(&[], 4));
        for end in 0..ours.len() - 5 {
            has_note(&[&gnu[..], &ours[..end]].concat(), 4);
        }
        assert!(!has_note(&note(&[b'x'; 3], &[]), 4));
    }
}
