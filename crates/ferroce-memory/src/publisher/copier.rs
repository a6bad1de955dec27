//! Peers that copy, and the words by which they announce it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use ferroce_ipc::pipe::{Pipe, Side};
use ferroce_wire::{Qpn, Rkey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The announcement of a copy: the key and the target's queue pair, by its low 16 bits. Never 0.
#[derive(Clone, Copy)]
pub(super) struct Hazard(u64);

impl Hazard {
    fn new(rkey: Rkey, qpn: Qpn) -> Self {
        Self(1 << 63 | u64::from(qpn.value() & 0xffff) << 32 | u64::from(rkey.value()))
    }

    pub(super) fn rkey(self) -> Rkey {
        Rkey::new(self.0 as u32)
    }

    pub(super) fn is_of(self, qpn: Qpn) -> bool {
        (self.0 >> 32) & 0xffff == u64::from(qpn.value() & 0xffff)
    }
}

/// The hazard words of one direction, in the memory of the pipe between the two processes.
#[derive(Clone)]
pub(crate) struct Hazards {
    pipe: Pipe,
    side: Side,
}

impl Hazards {
    /// The hazard words in which one side of the pipe announces its copies.
    pub(crate) fn of(pipe: &Pipe, side: Side) -> Self {
        Self { pipe: pipe.clone(), side }
    }

    fn words(&self) -> &[AtomicU64] {
        self.pipe.copying(self.side)
    }

    /// Announces a copy, behind which the target's entries are to be looked at. `None` if all words are in
    /// use.
    #[inline]
    pub(crate) fn claim(&self, rkey: Rkey, qpn: Qpn) -> Option<Claim<'_>> {
        let words = self.words();
        let start = qpn.value() as usize % words.len().max(1);
        let hazard = Hazard::new(rkey, qpn).0;
        for word in words[start..].iter().chain(&words[..start]) {
            if word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, hazard, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                fence(Ordering::SeqCst);
                return Some(Claim { word });
            }
        }
        None
    }
}

/// A copy that is announced until this is dropped.
pub(crate) struct Claim<'a> {
    word: &'a AtomicU64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

/// A process that may copy.
pub(crate) struct Copier {
    pid: i32,
    pidfd: OwnedFd,
    /// The address space of the process, which ends with the process and when it executes another program.
    /// `None` if the kernel does not show it; then only the end of the process counts.
    space: Option<File>,
    hazards: Hazards,
    gone: AtomicBool,
}

impl Copier {
    /// The process announces its copies in `hazards`.
    pub(crate) fn new(pidfd: OwnedFd, hazards: Hazards) -> io::Result<Self> {
        let pid = pid_of(pidfd.as_fd())?;
        let space = File::open(format!("/proc/{pid}/mem")).ok();
        let gone = AtomicBool::new(false);
        Ok(Self { pid, pidfd, space, hazards, gone })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether a copy of this kind is announced.
    pub(super) fn copies(&self, which: impl Fn(Hazard) -> bool) -> bool {
        let announced = |word: &AtomicU64| {
            let hazard = word.load(Ordering::Acquire);
            hazard != 0 && which(Hazard(hazard))
        };
        self.hazards.words().iter().any(announced) && !self.gone.load(Ordering::Relaxed)
    }

    /// Whether no thread of the process can be inside a copy any more.
    pub(super) fn is_gone(&self) -> bool {
        let mut pidfd = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An address space without threads cannot be read at any address: the kernel answers as at the end
        // of a file. An address at which nothing is mapped is an error.
        let ended = |space: &File| matches!(space.read_at(&mut [0], 0), Ok(0));
        poll(&mut pidfd, Some(&now)).is_ok_and(|ready| ready > 0) || self.space.as_ref().is_some_and(ended)
    }

    /// The process is gone: its announcements mean nothing any more.
    pub(super) fn forget(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// The process of a pidfd, as this process's `/proc` numbers it.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    // 0: of a PID namespace that is not visible from here; -1: it was reaped.
    pid.filter(|&pid| pid > 0).ok_or_else(|| io::ErrorKind::NotFound.into())
}
