//! The memory regions and queue pairs of a program, published for other programs of its user on its host.
//!
//! A program that reaches the memory of another one (`process_vm_writev(2)`) checks the keys, ranges and
//! rights of its operation here, as the other program's responder would. The owner writes the file, and the
//! kernel refuses everybody else a mapping that writes. A wrong entry can only misdirect operations within
//! the owner's address space: the process that is written to is never taken from the file, but from the
//! kernel.
//!
//! Layout, in words of 64 bits in native order: a head of 512 words, an entry for each slot of the table of
//! regions, an entry for each queue pair number of a process (its low 16 bits). An entry is a cache line. The
//! file is sparse: only used pages have memory.
//!
//! An entry begins with a count, which is odd while its owner writes the rest. A reader that finds another
//! count behind than before, or an odd one, has read nothing.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ferroce_wire::{Psn, Qpn, RoceVersion};

use crate::shared::{Shared, SharedView, halves, pair};

const MAGIC: u64 = u64::from_le_bytes(*b"FePublic");
const VERSION: u64 = 1;

/// Words of the head.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_NONCE: usize = 2;
const AT_NONCE_ADDRESS: usize = 3;
const AT_OWNER: usize = 4;
const AT_SECRET: usize = 8;
const AT_LIFE: usize = 16;
const HEAD: usize = 512;

/// Words of [`Publication::life`].
pub const LIFE: usize = 16;
/// Slots of the table of regions.
pub const REGIONS: usize = 1 << 18;
/// Queue pair numbers of a process.
pub const QUEUE_PAIRS: usize = 1 << 16;

const ENTRY: usize = 8;
const AT_REGIONS: usize = HEAD;
const AT_QUEUE_PAIRS: usize = AT_REGIONS + REGIONS * ENTRY;
const WORDS: usize = AT_QUEUE_PAIRS + QUEUE_PAIRS * ENTRY;

/// A lock word of the kernel's robust futexes: the holder's thread id, and whether the holder has died.
const TID_MASK: u32 = 0x3fff_ffff;
const OWNER_DIED: u32 = 0x4000_0000;

/// A region or a bound window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Key of the region, never 0.
    pub key: u32,
    /// Protection domain of the region, by a number of the owner's.
    pub pd: u32,
    /// The place in the owner's address space.
    pub addr: u64,
    pub len: u64,
    /// The address by which requests name the first octet.
    pub iova: u64,
    /// Bits of `ibv_access_flags`.
    pub access: u32,
    /// The only queue pair of the owner whose peer may use it.
    pub qpn: Option<Qpn>,
}

/// A queue pair that serves one-sided requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePair {
    pub qpn: Qpn,
    /// The queue pair that it is connected to, and the addresses and the version of RoCE by which.
    pub remote: Qpn,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub version: RoceVersion,
    pub pd: u32,
    pub write: bool,
    pub read: bool,
    /// The connection that it serves.
    pub connection: Connection,
}

/// Names a connection of a queue pair among all that its process ever had, which may have the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Connection(u64);

impl Connection {
    /// `count` is a number that no other connection of the process has, and not 0.
    pub fn new(count: u64, first: Psn) -> Self {
        Self(count << 24 | u64::from(first.value()))
    }

    /// The first PSN that it expects from the peer.
    pub fn first(self) -> Psn {
        Psn::new(self.0 as u32)
    }
}

/// The values of the head that stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// A random number that only this file has, and the address of a word of the owner's that holds it: a
    /// process whose word does not is not the owner.
    pub nonce: u64,
    pub nonce_address: u64,
    /// The secret by which keys become slots.
    pub secret: [u64; 4],
}

/// The owner's side. Each entry has one writer at a time.
#[derive(Debug)]
pub struct Publication {
    shared: Shared,
    file: OwnedFd,
}

impl Publication {
    /// Makes an empty one.
    ///
    /// # Errors
    /// Fails as [`Shared::publish`] does.
    pub fn create(identity: &Identity) -> io::Result<Self> {
        let (shared, file) = Shared::publish("ferroce-published", WORDS)?;
        let publication = Self { shared, file };
        let Identity { nonce, nonce_address, secret } = *identity;
        publication.set(AT_NONCE, nonce);
        publication.set(AT_NONCE_ADDRESS, nonce_address);
        (AT_SECRET..).zip(secret).for_each(|(at, word)| publication.set(at, word));
        publication.set(AT_VERSION, VERSION);
        publication.set(AT_MAGIC, MAGIC);
        Ok(publication)
    }

    /// The file, for [`Published::open`] in other processes.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Room for a lock of the kernel's robust futexes, whose lock word is the first 32 bits. The thread that
    /// [`Self::set_owner`] names holds it as long as the address space exists.
    pub fn life(&self) -> &[AtomicU64] {
        self.shared.words().get(AT_LIFE..AT_LIFE + LIFE).unwrap_or_default()
    }

    /// Names the thread that holds [`Self::life`].
    pub fn set_owner(&self, tid: u32) {
        self.set(AT_OWNER, tid.into());
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.shared.words().get(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Publishes the region of a slot.
    pub fn put_region(&self, slot: u32, region: &Region) {
        let Region { key, pd, addr, len, iova, access, qpn } = *region;
        let qpn = qpn.map_or(0, |qpn| 1 << 31 | qpn.value());
        self.put(region_at(slot), [pair(key, pd), addr, len, iova, pair(access, qpn), 0, 0]);
    }

    /// Publishes that a slot has no region.
    pub fn end_region(&self, slot: u32) {
        self.end(region_at(slot));
    }

    /// Publishes a queue pair.
    pub fn put_queue_pair(&self, queue_pair: &QueuePair) {
        let QueuePair { qpn, remote, source, destination, version, pd, write, read, connection } =
            *queue_pair;
        let v1 = matches!(version, RoceVersion::V1);
        let flags = 1 | u32::from(write) << 1 | u32::from(read) << 2 | u32::from(v1) << 3;
        let [source, destination] = [source, destination].map(octets);
        self.put(
            queue_pair_at(qpn),
            [
                pair(qpn.value(), remote.value()),
                pair(flags, pd),
                source[0],
                source[1],
                destination[0],
                destination[1],
                connection.0,
            ],
        );
    }

    /// Publishes that there is no such queue pair, or none that serves requests.
    pub fn end_queue_pair(&self, qpn: Qpn) {
        self.end(queue_pair_at(qpn));
    }

    fn put(&self, at: usize, words: [u64; ENTRY - 1]) {
        let Some([count, entry @ ..]) = self.shared.words().get(at..at + ENTRY) else { return };
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        entry.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        count.store(before.wrapping_add(2), Ordering::Release);
    }

    fn end(&self, at: usize) {
        self.put(at, [0; ENTRY - 1]);
    }
}

/// The file of another process.
#[derive(Debug)]
pub struct Published(SharedView);

impl Published {
    /// Maps it.
    ///
    /// # Errors
    /// `InvalidData` if the file holds no publication, or its size is not fixed. Otherwise those of
    /// `mmap(2)`.
    pub fn open(file: &impl AsFd) -> io::Result<Self> {
        let published = Self(SharedView::map(file, WORDS)?);
        let head = [AT_MAGIC, AT_VERSION].map(|at| published.0.load(at, Ordering::Acquire));
        if head == [MAGIC, VERSION] { Ok(published) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// The values that stay as they are. A hostile owner changes them: copy them once.
    pub fn identity(&self) -> Identity {
        let load = |at| self.0.load(at, Ordering::Relaxed);
        Identity {
            nonce: load(AT_NONCE),
            nonce_address: load(AT_NONCE_ADDRESS),
            secret: [0, 1, 2, 3].map(|word| load(AT_SECRET + word)),
        }
    }

    /// The thread that holds the lock of [`Publication::life`]; `None` once the owner's address space is
    /// gone, because the process ended or executed another program.
    #[inline]
    pub fn owner(&self) -> Option<u32> {
        let [b0, b1, b2, b3, ..] = self.0.load(AT_LIFE, Ordering::Acquire).to_ne_bytes();
        let word = u32::from_ne_bytes([b0, b1, b2, b3]);
        let named = self.0.load(AT_OWNER, Ordering::Relaxed);
        let holder = word & TID_MASK;
        (word & OWNER_DIED == 0 && holder != 0 && u64::from(holder) == named).then_some(holder)
    }

    /// The region of a slot.
    #[inline]
    pub fn region(&self, slot: u32) -> Option<Region> {
        let [name, addr, len, iova, rights, ..] = self.get(region_at(slot))?;
        let (key, pd) = halves(name);
        let (access, qpn) = halves(rights);
        let qpn = (qpn >> 31 != 0).then(|| Qpn::new(qpn));
        (key != 0).then_some(Region { key, pd, addr, len, iova, access, qpn })
    }

    /// The queue pair of this number.
    #[inline]
    pub fn queue_pair(&self, qpn: Qpn) -> Option<QueuePair> {
        let [name, rights, s0, s1, d0, d1, connection] = self.get(queue_pair_at(qpn))?;
        let (number, remote) = halves(name);
        let (flags, pd) = halves(rights);
        (flags & 1 != 0 && number == qpn.value()).then(|| QueuePair {
            qpn,
            remote: Qpn::new(remote),
            source: address([s0, s1]),
            destination: address([d0, d1]),
            version: if flags & 8 != 0 { RoceVersion::V1 } else { RoceVersion::V2 },
            pd,
            write: flags & 2 != 0,
            read: flags & 4 != 0,
            connection: Connection(connection),
        })
    }

    /// An entry as it is at one moment; `None` while its owner changes it.
    #[inline]
    fn get(&self, at: usize) -> Option<[u64; ENTRY - 1]> {
        let before = self.0.load(at, Ordering::Acquire);
        let words = [1, 2, 3, 4, 5, 6, 7].map(|word| self.0.load(at + word, Ordering::Relaxed));
        fence(Ordering::Acquire);
        let behind = self.0.load(at, Ordering::Relaxed);
        (before == behind && before.is_multiple_of(2)).then_some(words)
    }
}

const fn region_at(slot: u32) -> usize {
    AT_REGIONS + slot as usize % REGIONS * ENTRY
}

const fn queue_pair_at(qpn: Qpn) -> usize {
    AT_QUEUE_PAIRS + qpn.value() as usize % QUEUE_PAIRS * ENTRY
}

fn octets(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .to_bits();
    [(bits >> 64) as u64, bits as u64]
}

fn address([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const IDENTITY: Identity = Identity { nonce: 7, nonce_address: 8, secret: [1, 2, 3, 4] };

    fn both() -> (Publication, Published) {
        let ours = Publication::create(&IDENTITY).unwrap();
        let theirs = Published::open(&ours.file()).unwrap();
        (ours, theirs)
    }

    fn region(n: u64) -> Region {
        Region { key: n as u32, pd: n as u32, addr: n, len: n, iova: n, access: n as u32, qpn: None }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let (ours, theirs) = both();
        assert_eq!(theirs.identity(), IDENTITY);
        let last = REGIONS as u32 - 1;
        assert_eq!(theirs.region(last), None);
        let window = Region { qpn: Some(Qpn::new(0)), ..region(0xffff_ffff) };
        ours.put_region(last, &window);
        assert_eq!(theirs.region(last), Some(window));
        ours.put_region(last, &region(5));
        assert_eq!(theirs.region(last), Some(region(5)));
        ours.end_region(last);
        assert_eq!(theirs.region(last), None);
        for (source, version) in [("127.0.0.1", RoceVersion::V2), ("fe80::1", RoceVersion::V1)] {
            let queue_pair = QueuePair {
                qpn: Qpn::new(0xfe_ffff),
                remote: Qpn::new(0x01_0002),
                source: source.parse().unwrap(),
                destination: "10.0.0.255".parse().unwrap(),
                version,
                pd: 9,
                write: true,
                read: false,
                connection: Connection::new(5, Psn::new(0xff_fffe)),
            };
            assert_eq!(queue_pair.connection.first(), Psn::new(0xff_fffe));
            ours.put_queue_pair(&queue_pair);
            assert_eq!(theirs.queue_pair(Qpn::new(0xfe_ffff)), Some(queue_pair));
            assert_eq!(theirs.queue_pair(Qpn::new(0xfd_ffff)), None, "of another slot");
        }
        ours.end_queue_pair(Qpn::new(0xfe_ffff));
        assert_eq!(theirs.queue_pair(Qpn::new(0xfe_ffff)), None);
    }

    #[test]
    fn the_owner_is_the_holder_of_the_lock() {
        let (ours, theirs) = both();
        let word = |value: u32| {
            let mut octets = [0; 8];
            octets[..4].copy_from_slice(&value.to_ne_bytes());
            ours.life()[0].store(u64::from_ne_bytes(octets), Ordering::Relaxed);
        };
        assert_eq!(theirs.owner(), None);
        ours.set_owner(77);
        assert_eq!(theirs.owner(), None);
        word(77 | 1 << 31);
        assert_eq!(theirs.owner(), Some(77));
        word(78);
        assert_eq!(theirs.owner(), None);
        word(77 | OWNER_DIED);
        assert_eq!(theirs.owner(), None);
        word(OWNER_DIED);
        assert_eq!(theirs.owner(), None);
    }

    #[test]
    fn an_entry_is_never_mixed() {
        let (ours, theirs) = both();
        let stop = Arc::new(AtomicBool::new(false));
        let writer = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                for n in (1..=255).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    ours.put_region(3, &region(n));
                    // Miri changes threads within most writes, so that the reader would hardly find the end
                    // of one.
                    if cfg!(miri) {
                        std::thread::yield_now();
                    }
                }
            }
        });
        let mut read = 0;
        while read < if cfg!(miri) { 30 } else { 10_000 } {
            let Some(found) = theirs.region(3) else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(found, region(found.addr));
            read += 1;
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    }

    #[test]
    fn another_file_is_refused() {
        let (_, file) = Shared::publish("test", WORDS).unwrap();
        assert_eq!(Published::open(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (_, file) = Shared::publish("test", WORDS - 1).unwrap();
        assert_eq!(Published::open(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
