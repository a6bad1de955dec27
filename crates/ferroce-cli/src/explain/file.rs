//! Recordings in files: core dumps, and what `ferroce explain --save` writes.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroce_ipc::ledger::LedgerReader;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{MemfdFlags, SealFlags};

/// Octets that are written or left out as one.
const PAGE: usize = 4096;

/// Reads the recording in a file.
pub fn open(path: &Path) -> Result<LedgerReader> {
    let shown = path.display();
    let octets = fs::read(path).with_context(|| format!("{shown} is no process id, and cannot be read"))?;
    if let Ok(ledger) = reader(&octets) {
        return Ok(ledger);
    }
    let found = segments(&octets).into_iter().find_map(|segment| reader(segment).ok());
    match found {
        Some(ledger) => Ok(ledger),
        None => bail!(
            "{shown} has no recording of this version of ferroce; a core dump has one unless \
             /proc/PID/coredump_filter leaves shared memory out"
        ),
    }
}

/// The memory in a core dump.
fn segments(octets: &[u8]) -> Vec<&[u8]> {
    let Ok(header) = elf::FileHeader64::<object::Endianness>::parse(octets) else { return Vec::new() };
    let Ok(endian) = header.endian() else { return Vec::new() };
    let headers = header.program_headers(endian, octets).unwrap_or_default();
    let loaded = headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD);
    loaded.filter_map(|header| header.data(endian, octets).ok()).collect()
}

/// A reader reads memory files alone, because those never block.
fn reader(octets: &[u8]) -> Result<LedgerReader> {
    if !LedgerReader::begins(octets) {
        bail!("no recording");
    }
    let file = rustix::fs::memfd_create("recording", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    write_sparse(&mut file, octets.chunks(PAGE).map(<[u8]>::to_vec))?;
    file.set_len(octets.len() as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(LedgerReader::new(OwnedFd::from(file))?)
}

/// Writes a program's recording to a new file.
pub fn save(ledger: &LedgerReader, path: &Path) -> Result<()> {
    let shown = path.display();
    let mut to = File::create_new(path).with_context(|| format!("cannot make {shown}"))?;
    let from = ledger.as_fd();
    let length = rustix::fs::fstat(from)?.st_size as u64;
    let mut at = 0;
    let pages = std::iter::from_fn(|| {
        let mut page = vec![0; PAGE];
        let count = rustix::io::pread(from, &mut page, at).ok().filter(|count| *count > 0)?;
        page.truncate(count);
        at += count as u64;
        Some(page)
    });
    write_sparse(&mut to, pages).with_context(|| format!("cannot write {shown}"))?;
    Ok(to.set_len(length)?)
}

fn write_sparse(to: &mut File, pages: impl Iterator<Item = Vec<u8>>) -> std::io::Result<()> {
    for page in pages {
        match page.iter().all(|octet| *octet == 0) {
            true => drop(to.seek(SeekFrom::Current(page.len() as i64))?),
            false => to.write_all(&page)?,
        }
    }
    Ok(())
}
