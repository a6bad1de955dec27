//! Recordings in files: core dumps, and what `ferroce explain --save` writes.

use std::fs::File;
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroce_ipc::ledger::LedgerReader;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{MemfdFlags, SealFlags};

/// Octets that are written or left out as one.
const PAGE: u64 = 4096;

/// Reads the recording in a file.
pub fn open(path: &Path) -> Result<LedgerReader> {
    let shown = path.display();
    let unread = || format!("{shown} is no process id, and cannot be read");
    let file = File::open(path).with_context(unread)?;
    let length = file.metadata().with_context(unread)?.len();
    let places = iter::once((0, length)).chain(segments(&file));
    for (at, length) in places.filter(|(_, length)| LedgerReader::LENGTHS.contains(length)) {
        let mut begin = [0; 16];
        if file.read_exact_at(&mut begin, at).is_ok() && LedgerReader::begins(&begin) {
            return reader(&file, at, length).with_context(unread);
        }
    }
    bail!(
        "{shown} has no recording of this version of ferroce; a core dump has one unless \
         /proc/PID/coredump_filter leaves shared memory out"
    )
}

/// Places and lengths of the memory in a core dump.
fn segments(file: &File) -> Vec<(u64, u64)> {
    let file = &ReadCache::new(file);
    let Ok(header) = elf::FileHeader64::<object::Endianness>::parse(file) else { return Vec::new() };
    let Ok(endian) = header.endian() else { return Vec::new() };
    let headers = header.program_headers(endian, file).unwrap_or_default();
    let loaded = headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD);
    loaded.map(|header| header.file_range(endian)).collect()
}

/// A reader reads memory files alone, because those never block.
fn reader(file: &File, at: u64, length: u64) -> Result<LedgerReader> {
    let memory = rustix::fs::memfd_create("recording", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    let mut memory = File::from(memory);
    copy(file, at, length, &mut memory)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(LedgerReader::new(OwnedFd::from(memory))?)
}

/// Writes a program's recording to a new file of the user alone.
pub fn save(ledger: &LedgerReader, path: &Path) -> Result<()> {
    let shown = path.display();
    let mut to = File::options();
    let mut to = to
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {shown}"))?;
    let from = File::from(ledger.as_fd().try_clone_to_owned()?);
    let length = from.metadata()?.len();
    copy(&from, 0, length, &mut to).with_context(|| format!("cannot write {shown}"))
}

/// Copies pages that are not empty.
fn copy(from: &File, at: u64, length: u64, to: &mut File) -> Result<()> {
    let mut page = [0; PAGE as usize];
    for start in (0..length).step_by(PAGE as usize) {
        let page = &mut page[..(length - start).min(PAGE) as usize];
        from.read_exact_at(page, at + start)?;
        if page.iter().any(|octet| *octet != 0) {
            to.write_all_at(page, start)?;
        }
    }
    Ok(to.set_len(length)?)
}
