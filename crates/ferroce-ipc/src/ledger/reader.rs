//! Reads another process's ledger without trusting it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use zerocopy::{FromBytes, IntoBytes};

use super::records::ContextRecord;
use super::*;
use crate::strange::Strange;

/// Limit on the attempts to read a consistent sum while queue pairs end. A program that died during a
/// retirement never ends it, so a file that was inconsistent gets one attempt from then on.
const TRIES: u32 = 4;
/// Octets behind which there is no further attempt, because the owner of the file chooses its length.
const MOST_AGAIN: u64 = 1 << 20;

/// A file in memory may be longer than what its maker asked for by less than a page.
const LONGEST_PAGE: u64 = 2 << 20;

#[derive(Debug)]
pub struct LedgerReader {
    pub(super) file: Strange,
    inode: u64,
    /// No attempt to read a consistent sum succeeded.
    inconsistent: AtomicBool,
    octets_read: AtomicU64,
}

/// Counters of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBlock {
    /// Number of the block, to which records refer.
    pub block: usize,
    /// The device's id as the program knew it when it first used the device.
    pub id: u32,
    pub name: String,
    /// Counters of the device, without those of queue pairs that still exist.
    pub totals: Totals,
}

/// The record of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record, see [`Entry::number`].
    pub number: u32,
    /// All words of the record; the first is not 0.
    pub(super) words: Vec<u64>,
}

impl Record {
    /// Decodes the object. `F` must belong to the table that the record is from.
    pub fn decode<F: Fields>(&self) -> F {
        decode(&self.words)
    }

    /// Returns the number of its device's block.
    pub fn block(&self) -> usize {
        block_of(&self.words)
    }

    /// Returns the counters of a queue pair, in the order of [`TRANSPORT_COUNTERS`].
    pub fn counters(&self) -> &[u64] {
        counters_of(&self.words)
    }
}

/// Decodes an object from the words of its record; missing ones are 0.
fn decode<F: FromBytes + Fields>(words: &[u64]) -> F {
    let octets = words.as_bytes().get(F::AT * WORD..).unwrap_or_default();
    F::read_from_prefix(octets).map_or_else(|_| F::new_zeroed(), |(fields, _)| fields)
}

/// Returns the block of the object's device, for any kind of record.
fn block_of(words: &[u64]) -> usize {
    decode::<ContextRecord>(words).block.number()
}

/// Returns the counters in the words of a queue pair's record.
fn counters_of(words: &[u64]) -> &[u64] {
    let counted = words.get(QP_COUNTERS..).unwrap_or_default();
    counted.get(..TRANSPORT_COUNTERS.len()).unwrap_or(counted)
}

impl LedgerReader {
    /// Opens `file`, which a program handed over.
    ///
    /// # Errors `InvalidData` if the file is no ledger of this layout: its size is not sealed, it is too
    /// short or too long, or its magic number or version differs.
    pub fn new(file: impl Into<Strange>) -> io::Result<Self> {
        let file = file.into();
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        // Only files in memory have seals, and reading such a file never blocks.
        let seals = fcntl_get_seals(&file).map_err(|_| bad())?;
        let status = fstat(&file)?;
        let size = u64::try_from(status.st_size).map_err(|_| bad())?;
        // A huge file takes long to close.
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        if !sealed || !Self::LENGTHS.contains(&size) {
            return Err(bad());
        }
        let inode = status.st_ino;
        let reader =
            Self { file, inode, inconsistent: AtomicBool::new(false), octets_read: AtomicU64::new(0) };
        match reader.words(0, 2)?[..] {
            [MAGIC, VERSION] => Ok(reader),
            _ => Err(bad()),
        }
    }

    /// Octets of a ledger's file.
    pub const LENGTHS: Range<u64> = (END * WORD) as u64..(END * WORD) as u64 + LONGEST_PAGE;

    /// Whether octets begin as a ledger of this layout does.
    pub fn begins(octets: &[u8]) -> bool {
        let begin = [MAGIC.to_ne_bytes(), VERSION.to_ne_bytes()];
        octets.starts_with(begin.as_flattened())
    }

    /// Returns the file's inode. A program may hand over the same file again.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns how much was read of the file so far, which is a measure of the time that it took.
    pub fn octets_read(&self) -> u64 {
        self.octets_read.load(Ordering::Relaxed)
    }

    /// Returns the devices that the program used with the counters of each, including those of queue pairs
    /// that still exist.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn devices(&self) -> io::Result<Vec<DeviceBlock>> {
        let tries = if self.inconsistent.load(Ordering::Relaxed) { 1 } else { TRIES };
        let begin = self.octets_read();
        for attempt in 1.. {
            let before = self.word(AT_RETIRED)?;
            let mut blocks = self.blocks()?;
            self.add_live(&mut blocks)?;
            let consistent = before & 1 == 0 && self.word(AT_RETIRED)? == before;
            if consistent || attempt >= tries || self.octets_read() - begin > MOST_AGAIN {
                self.inconsistent.store(!consistent, Ordering::Relaxed);
                return Ok(blocks);
            }
        }
        Ok(Vec::new())
    }

    fn blocks(&self) -> io::Result<Vec<DeviceBlock>> {
        let mut blocks = Vec::new();
        for block in 0..DEVICES {
            let words = self.words(HEAD + block * DEVICE, DEVICE)?;
            let from = |at: usize, count: usize| words.iter().skip(at).take(count).copied();
            let id = match from(AT_ID, 1).next() {
                Some(id) if id > 0 => (id - 1) as u32,
                _ => break,
            };
            let name: Vec<u8> =
                from(AT_NAME, NAME).flat_map(u64::to_ne_bytes).take_while(|b| *b > 0).collect();
            // The reader shows no name if no device can have the stored one.
            let name = String::from_utf8(name).unwrap_or_default();
            let name = if name.chars().all(|c| c.is_ascii_graphic()) { name } else { String::new() };
            let mut device: Vec<u64> = from(AT_COUNTERS, DEVICE_COUNTERS.len()).collect();
            names::add_pipes(&mut device);
            let totals = Totals { device, transport: from(AT_TRANSPORT, TRANSPORT_COUNTERS.len()).collect() };
            blocks.push(DeviceBlock { block, id, name, totals });
        }
        Ok(blocks)
    }

    /// Adds the counters of queue pairs that still exist.
    fn add_live(&self, blocks: &mut [DeviceBlock]) -> io::Result<()> {
        self.each_record(Table::Qp, |_, words| {
            if let Some(block) = blocks.get_mut(block_of(words)) {
                block.totals.add(&[], counters_of(words));
            }
        })
    }

    /// Returns all objects of a kind.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn records(&self, table: Table) -> io::Result<Vec<Record>> {
        let slot = self.word(AT_SLOT)? as u16 & 0x0fff;
        let mut found = Vec::new();
        self.each_record(table, |place, words| {
            let number = (u32::from(slot) << 20) + place as u32 + 1;
            found.push(Record { number, words: words.to_vec() });
        })?;
        Ok(found)
    }

    /// Calls `take` with the place and the words of each record.
    fn each_record(&self, table: Table, mut take: impl FnMut(usize, &[u64])) -> io::Result<()> {
        const AT_ONCE: usize = 256;
        let (count, stride, start) = table.shape();
        let used = usize::try_from(self.word(AT_USED + table as usize)?).unwrap_or(count).min(count);
        for first in (0..used).step_by(AT_ONCE) {
            let words = self.words(start + first * stride, AT_ONCE.min(used - first) * stride)?;
            for (place, words) in words.chunks_exact(stride).enumerate() {
                if words.first().is_some_and(|head| *head > 0) {
                    take(first + place, words);
                }
            }
        }
        Ok(())
    }

    /// Counts the objects of each kind, by the block of their device.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn counts(&self) -> io::Result<BTreeMap<(usize, Table), u32>> {
        let mut counts = BTreeMap::new();
        for table in Table::ALL {
            for record in self.records(table)? {
                *counts.entry((record.block(), table)).or_insert(0) += 1;
            }
        }
        Ok(counts)
    }

    pub(super) fn word(&self, at: usize) -> io::Result<u64> {
        Ok(self.words(at, 1)?.first().copied().unwrap_or(0))
    }

    pub(super) fn words(&self, at: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * WORD];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.file, rest, (at * WORD + done) as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => done += more,
            }
        }
        self.octets_read.fetch_add(done as u64, Ordering::Relaxed);
        let (words, _) = bytes.as_chunks::<WORD>();
        Ok(words.iter().copied().map(u64::from_ne_bytes).collect())
    }
}

impl AsFd for LedgerReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
