//! The memory map of the process, as the kernel reports it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use ferroce_host::PerProcess;
use ferroce_host::fork::Guarded;

/// The map of this process, kept open where the kernel answers queries about it, so that a program that
/// enters a sandbox behind the opening of a device can register memory there. `None` before Linux 6.11.
static KEPT: PerProcess<OnceLock<Option<Guarded<File>>>> = PerProcess::new();

/// Opens the map of this process, once; registrations then make no system call but the query.
pub(crate) fn keep() -> Option<&'static File> {
    let kept = KEPT.get().get_or_init(|| {
        let file = File::open("/proc/self/maps").ok()?;
        let probe = Range { addr: (&raw const KEPT) as u64, end: (&raw const KEPT) as u64 + 1, write: false };
        probe.query(&file).map(|_| Guarded::new(file))
    });
    kept.as_ref().map(|file| &**file)
}

/// Whether each byte of `len` at `addr` is mapped, with read permission, or write permission if `write`.
///
/// Mapped is no promise: a file mapping may reach beyond the end of its file. Costs a few microseconds, and
/// more where the kernel is older than 6.11 and the process has many mappings.
pub(crate) fn permit(addr: u64, len: u64, write: bool) -> io::Result<bool> {
    let Some(end) = addr.checked_add(len) else { return Ok(false) };
    // Miri's memory is not in the kernel's map of the process.
    if cfg!(miri) {
        return Ok(true);
    }
    let range = Range { addr, end, write };
    // A program may have closed descriptors that are not its own; then the map is opened anew.
    if let Some(answer) = keep().and_then(|maps| range.query(maps)) {
        return Ok(answer);
    }
    let file = match File::open("/proc/self/maps") {
        Ok(file) => file,
        // No /proc here, or no descriptor left: whether it is mapped at all can still be told.
        Err(_) => return Ok(range.is_mapped()),
    };
    match range.query(&file) {
        Some(answer) => Ok(answer),
        None => range.read(file),
    }
}

/// Whether each byte of `len` at `addr` is persistent memory whose file system lets us see to it ourselves
/// that what is written survives: a DAX file mapped with `MAP_SYNC`.
pub(crate) fn persist(addr: u64, len: u64) -> io::Result<bool> {
    let Some(end) = addr.checked_add(len) else { return Ok(false) };
    match File::open("/proc/self/smaps") {
        Ok(maps) => is_synchronous(addr, end, BufReader::new(maps)),
        Err(_) => Ok(false),
    }
}

/// Whether the mappings from `at` to `end` have the flag `sf` (synchronous page faults) in the text of smaps.
fn is_synchronous(mut at: u64, end: u64, maps: impl BufRead) -> io::Result<bool> {
    let mut mapping: Option<Mapping> = None;
    for line in maps.split(b'\n') {
        let line = line?;
        let Some(flags) = line.strip_prefix(b"VmFlags:") else {
            // Between the heads stand lines as `Size:   4 kB`, which are none.
            mapping = parse(&line).or(mapping);
            continue;
        };
        let Some(Mapping { start, end: until, .. }) = mapping.take() else { continue };
        if until <= at {
            continue;
        }
        if start > at || !flags.split(|&b| b == b' ').any(|flag| flag == b"sf") {
            return Ok(false);
        }
        at = until;
        if at >= end {
            return Ok(true);
        }
    }
    Ok(at >= end)
}

struct Range {
    addr: u64,
    end: u64,
    write: bool,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611_u32 as libc::Ioctl;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;

impl Range {
    /// Asks mapping by mapping; `None` where the kernel cannot (before 6.11).
    fn query(&self, maps: &File) -> Option<bool> {
        let mut at = self.addr;
        while at < self.end {
            let mut query = ProcmapQuery {
                size: size_of::<ProcmapQuery>() as u64,
                query_addr: at,
                ..ProcmapQuery::default()
            };
            // SAFETY: the ioctl reads and writes one `procmap_query` of the size it says; the descriptor is
            // open. The kernel writes nothing else, because both name sizes are 0.
            let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
            if rc != 0 {
                let unmapped = io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
                return unmapped.then_some(false);
            }
            let needed = if self.write { VMA_WRITABLE } else { VMA_READABLE };
            if query.vma_flags & needed == 0 {
                return Some(false);
            }
            at = query.vma_end;
        }
        Some(true)
    }

    /// Reads the text form.
    fn read(&self, mut maps: impl Read) -> io::Result<bool> {
        let mut chunk = vec![0; 32 << 10];
        let mut filled = 0;
        let mut at = self.addr;
        loop {
            let n = match maps.read(&mut chunk[filled..]) {
                Ok(0) => return Ok(at >= self.end),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            filled += n;
            let mut lines = chunk[..filled].split_inclusive(|&b| b == b'\n');
            let mut done = 0;
            for line in lines.by_ref().take_while(|line| line.ends_with(b"\n")) {
                done += line.len();
                let mapping = parse(line).ok_or(io::ErrorKind::InvalidData)?;
                if mapping.end <= at {
                    continue;
                }
                let permitted = if self.write { mapping.writable } else { mapping.readable };
                if mapping.start > at || !permitted {
                    return Ok(false);
                }
                at = mapping.end;
                if at >= self.end {
                    return Ok(true);
                }
            }
            if done == 0 && filled == chunk.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            chunk.copy_within(done..filled, 0);
            filled -= done;
        }
    }

    /// Whether all pages are mapped, whatever they allow.
    fn is_mapped(&self) -> bool {
        const STEP: u64 = 64 << 20;
        // SAFETY: sysconf reads a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64;
        let mut pages = vec![0_u8; (STEP / page) as usize];
        let mut at = self.addr / page * page;
        while at < self.end {
            let len = STEP.min((self.end - at).next_multiple_of(page));
            // SAFETY: mincore writes a byte for each page of the range, `len / page` of them, which `pages`
            // holds; it touches no byte of the range itself, mapped or not.
            let rc =
                unsafe { libc::mincore(at as *mut libc::c_void, len as usize, pages.as_mut_ptr().cast()) };
            if rc != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
                return false;
            }
            at += len;
        }
        true
    }
}

struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

/// A line as `7f00-8f00 rw-p …`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let hex = |digits: &[u8]| {
        (1..=16).contains(&digits.len()).then_some(())?;
        digits.iter().try_fold(0_u64, |n, &digit| Some(n << 4 | u64::from(char::from(digit).to_digit(16)?)))
    };
    let (range, rest) = line.split_at_checked(line.iter().position(|&b| b == b' ')?)?;
    let (start, end) = range.split_at_checked(range.iter().position(|&b| b == b'-')?)?;
    Some(Mapping {
        start: hex(start)?,
        end: hex(end.get(1..)?)?,
        readable: *rest.get(1)? == b'r',
        writable: *rest.get(2)? == b'w',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0 [heap]\n\
                        3000-4000 r--p 00000000 08:01 77 /a name with spaces\n\
                        4000-5000 -w-s 00000000 00:00 0\n\
                        6000-7000 rw-p 00000000 00:00 0\n\
                        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    const CASES: &[(u64, u64, bool, bool)] = &[
        (0x1000, 0x2000, false, true),
        (0x1000, 0x2000, true, true),
        (0x1001, 1, true, true),
        (0xfff, 2, false, false),
        (0x1000, 0x3000, false, true),
        (0x1000, 0x2001, true, false),
        (0x2fff, 2, false, true),
        (0x4000, 0x1000, true, true),
        (0x4000, 0x1000, false, false),
        (0x4fff, 2, true, false),
        (0x5000, 1, false, false),
        (0x6000, 0x1000, true, true),
        (0x6000, 0x1001, true, false),
        (0x9000, 1, false, false),
        (0xffff_ffff_ff60_0000, 1, false, false),
    ];

    /// Gives few bytes at a time, as a kernel may.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn the_text_form() {
        for &(addr, len, write, want) in CASES {
            for step in [1, 7, 39, 40, 4096] {
                let range = Range { addr, end: addr + len, write };
                assert_eq!(
                    range.read(Trickle(MAPS.as_bytes(), step)).unwrap(),
                    want,
                    "{addr:#x} {len:#x} {write}"
                );
            }
        }
        let range = Range { addr: 0x1000, end: 0x2000, write: false };
        assert!(range.read(&b"nonsense\n"[..]).is_err());
    }

    #[test]
    fn persistent_memory_is_told_by_its_flag() {
        const SMAPS: &str = "1000-2000 rw-s 00000000 103:00 7 /mnt/pmem/a\n\
                             Size:                  4 kB\n\
                             VmFlags: rd wr sh mr mw me ms sf mm hg \n\
                             2000-3000 rw-s 00000000 103:00 7 /mnt/pmem/sf b\n\
                             VmFlags: rd wr sf\n\
                             3000-4000 rw-p 00000000 00:00 0 [heap]\n\
                             VmFlags: rd wr mr mw me ac sd \n\
                             6000-7000 rw-s 00000000 103:00 8 /mnt/pmem/c\n\
                             VmFlags: sf\n";
        for (addr, end, want) in [
            (0x1000, 0x2000, true),
            (0x1fff, 0x2001, true),
            (0x1000, 0x3000, true),
            (0x1000, 0x1000, true),
            (0x2000, 0x3001, false),
            (0x3000, 0x4000, false),
            (0xfff, 0x1001, false),
            (0x5fff, 0x6001, false),
            (0x6000, 0x7001, false),
            (0x9000, 0x9001, false),
        ] {
            assert_eq!(is_synchronous(addr, end, SMAPS.as_bytes()).unwrap(), want, "{addr:#x} {end:#x}");
        }
        let heap = vec![0_u8; 100_000];
        assert!(!persist(heap.as_ptr() as u64, 100_000).unwrap());
        assert!(!persist(u64::MAX, 2).unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri's memory is not in the kernel's map of the process")]
    fn all_ways_agree_on_this_process() {
        let here = vec![0_u8; 100_000];
        let code = all_ways_agree_on_this_process as fn() as usize as u64;
        let cases = [
            (here.as_ptr() as u64, here.len() as u64, true, true),
            (here.as_ptr() as u64, here.len() as u64, false, true),
            (code, 1, false, true),
            (code, 1, true, false),
            (4096, 1, false, false),
            (0xffff_8000_0000_0000, 4096, false, false),
        ];
        for (addr, len, write, want) in cases {
            assert_eq!(permit(addr, len, write).unwrap(), want, "{addr:#x} {write}");
            let range = Range { addr, end: addr + len, write };
            let maps = File::open("/proc/self/maps").unwrap();
            assert_eq!(range.read(&maps).unwrap(), want, "{addr:#x} {write}");
            assert_eq!(range.is_mapped(), want || addr == code);
        }
        assert!(!permit(u64::MAX, 2, false).unwrap());
    }
}
