//! Another process's ledger, read without believing it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use super::*;

/// How often a sum is tried while queue pairs end meanwhile. A program that died in between never finishes.
const TRIES: u32 = 8;

/// A ledger that another process writes.
#[derive(Debug)]
pub struct LedgerReader {
    file: OwnedFd,
    inode: u64,
}

/// What is counted for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBlock {
    /// Number of the block, which records name.
    pub block: usize,
    /// The device's id as the program knew it when it first used the device.
    pub id: u32,
    /// The device's name.
    pub name: String,
    /// What it counted; queue pairs that are there still are not in it.
    pub totals: Totals,
}

/// One object's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number that [`Entry::number`] gives for it.
    pub number: u32,
    /// All words of it; the first is not 0.
    pub(super) words: Vec<u64>,
}

impl Record {
    /// The object. `F` is of the table that the record is from.
    pub fn decode<F: Fields>(&self) -> F {
        F::decode(&self.words)
    }

    /// Number of the block of the device that it is on.
    pub fn block(&self) -> usize {
        records::block(&self.words)
    }

    /// What a queue pair counted, in the order of [`TRANSPORT_COUNTERS`].
    pub fn counters(&self) -> &[u64] {
        let counted = self.words.get(QP_COUNTERS..).unwrap_or_default();
        counted.get(..TRANSPORT_COUNTERS.len()).unwrap_or(counted)
    }
}

impl LedgerReader {
    /// `file` as a program handed it over.
    ///
    /// # Errors
    /// `InvalidData` if it is no ledger of this layout: no memory file that stays as long as it is, too short, or another
    /// magic number or version.
    pub fn new(file: OwnedFd) -> io::Result<Self> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        // Only files in memory have seals: reading one does not wait for anybody.
        let seals = fcntl_get_seals(&file).map_err(|_| bad())?;
        let status = fstat(&file)?;
        let length = (Table::end() * WORD) as u64;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(status.st_size).map_err(|_| bad())? < length {
            return Err(bad());
        }
        let reader = Self { file, inode: status.st_ino };
        match reader.words(0, 2)?[..] {
            [MAGIC, VERSION] => Ok(reader),
            _ => Err(bad()),
        }
    }

    /// Which file it is: the same one may be handed over again.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The devices that the program used, with what it counted for each, queue pairs that are there included.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn devices(&self) -> io::Result<Vec<DeviceBlock>> {
        let mut blocks = Vec::new();
        for _ in 0..TRIES {
            let before = self.word(AT_RETIRED)?;
            blocks = self.blocks()?;
            self.add_live(&mut blocks)?;
            if before & 1 == 0 && self.word(AT_RETIRED)? == before {
                break;
            }
        }
        Ok(blocks)
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
            // A name that no device can have shows nothing.
            let name = String::from_utf8(name).unwrap_or_default();
            let name = if name.chars().all(|c| c.is_ascii_graphic()) { name } else { String::new() };
            let totals = Totals {
                device: from(AT_COUNTERS, DEVICE_COUNTERS.len()).collect(),
                transport: from(AT_TRANSPORT, TRANSPORT_COUNTERS.len()).collect(),
            };
            blocks.push(DeviceBlock { block, id, name, totals });
        }
        Ok(blocks)
    }

    /// Adds the counters of queue pairs that are there.
    fn add_live(&self, blocks: &mut [DeviceBlock]) -> io::Result<()> {
        for qp in self.records(Table::Qp)? {
            if let Some(block) = blocks.get_mut(qp.block()) {
                block.totals.add(&[], qp.counters());
            }
        }
        Ok(())
    }

    /// All objects of a kind.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn records(&self, table: Table) -> io::Result<Vec<Record>> {
        const AT_ONCE: usize = 256;
        let (count, stride, start) = table.shape();
        let used = usize::try_from(self.word(AT_USED + table as usize)?).unwrap_or(count).min(count);
        let slot = self.word(AT_SLOT)? as u8;
        let mut found = Vec::new();
        for first in (0..used).step_by(AT_ONCE) {
            let words = self.words(start + first * stride, AT_ONCE.min(used - first) * stride)?;
            for (place, words) in words.chunks_exact(stride).enumerate() {
                if words.first().is_some_and(|head| *head > 0) {
                    let number = (u32::from(slot) << 20) + (first + place) as u32 + 1;
                    found.push(Record { number, words: words.to_vec() });
                }
            }
        }
        Ok(found)
    }

    /// How many objects of each kind there are, by device's block.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn counts(&self) -> io::Result<BTreeMap<(usize, Table), u32>> {
        let mut counts = BTreeMap::new();
        for table in Table::ALL {
            for record in self.records(table)? {
                *counts.entry((record.block(), table)).or_insert(0) += 1;
            }
        }
        Ok(counts)
    }

    fn word(&self, at: usize) -> io::Result<u64> {
        Ok(self.words(at, 1)?.first().copied().unwrap_or(0))
    }

    fn words(&self, at: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * WORD];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.file, rest, (at * WORD + done) as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => done += more,
            }
        }
        let (words, _) = bytes.as_chunks::<WORD>();
        Ok(words.iter().copied().map(u64::from_ne_bytes).collect())
    }
}

impl AsFd for LedgerReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
