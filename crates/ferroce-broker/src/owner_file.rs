//! The file that says which user each slot without sockets belongs to, for the next broker.
//!
//! A program with sockets proves its slots by them. One without has no proof that another user could not make
//! as well, so the broker keeps the users in its own directory: four octets for each slot, the user plus one,
//! 0 for none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use ferroce_host::runtime_dir::{OFlags, RuntimeDir};
use ferroce_ipc::is_leasable;
use tracing::warn;

/// Slots that a queue pair number has room for.
const SLOTS: usize = 1 << 12;
const ENTRY: usize = 4;

/// The file, opened when it is first needed.
#[derive(Debug, Default)]
pub struct OwnerFile {
    file: Option<File>,
    failed: bool,
}

impl OwnerFile {
    /// Keeps the user of a slot, or that it has none. Without the file, programs lose these slots with the
    /// broker.
    pub fn keep(&mut self, slot: u16, uid: Option<u32>) {
        if self.failed {
            return;
        }
        let word = uid.map_or(0, |uid| uid.wrapping_add(1));
        let kept = self
            .open()
            .and_then(|file| file.write_all_at(&word.to_ne_bytes(), usize::from(slot) as u64 * ENTRY as u64));
        if let Err(e) = kept {
            warn!("programs of other users will lose their queue pairs if ferroced ends: {e}");
            self.failed = true;
        }
    }

    /// The users that were kept.
    pub fn read(&self) -> BTreeMap<u16, u32> {
        let mut octets = [0; SLOTS * ENTRY];
        let read = open(false).and_then(|file| file.read_at(&mut octets, 0));
        let Ok(len) = read else { return BTreeMap::new() };
        let words = octets.get(..len).unwrap_or_default().as_chunks::<ENTRY>().0;
        let words = (0..).zip(words.iter().map(|word| u32::from_ne_bytes(*word)));
        words
            .filter(|(slot, word)| *word != 0 && is_leasable(*slot))
            .map(|(slot, word)| (slot, word - 1))
            .collect()
    }

    fn open(&mut self) -> io::Result<&File> {
        match &mut self.file {
            Some(file) => Ok(file),
            empty => Ok(empty.insert(open(true)?)),
        }
    }
}

fn open(create: bool) -> io::Result<File> {
    named("slots", if create { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY })
}

/// The file of this network namespace with `what`.
pub fn named(what: &str, flags: OFlags) -> io::Result<File> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    RuntimeDir::open()?.file(&format!("{what}-{namespace}"), flags)
}
