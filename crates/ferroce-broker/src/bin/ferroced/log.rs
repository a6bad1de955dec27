//! The log of a broker in the background: standard error, which is a file there, and stays small.

use std::os::fd::BorrowedFd;

use ferroce_host::output::{self, LogWriter};
use ferroce_host::runtime_dir::RuntimeDir;
use rustix::fs::{FileType, fstat, ftruncate};
use tracing_subscriber::fmt::MakeWriter;

/// Writes to standard error. When the file that this is has grown over [`RuntimeDir::MOST_LOG`], it is
/// renamed as at the broker's start, and standard error becomes the new one.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Whether the file is ours. The log never changes a file that somebody else opened.
    pub ours: bool,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = LogWriter<BorrowedFd<'static>>;

    fn make_writer(&'a self) -> Self::Writer {
        let errors = output::stderr();
        if self.ours && is_full(errors) {
            let fresh = RuntimeDir::open().and_then(|dir| dir.log());
            let renewed = fresh.and_then(|log| Ok(rustix::stdio::dup2_stderr(&log)?));
            if renewed.is_err() || is_full(errors) {
                // The file cannot be renamed, so it is emptied: the next line is its first one.
                let _ = ftruncate(errors, 0);
            }
        }
        LogWriter(errors)
    }
}

fn is_full(log: BorrowedFd<'_>) -> bool {
    let is_large = |size: i64| u64::try_from(size).is_ok_and(|size| size > RuntimeDir::MOST_LOG);
    fstat(log).is_ok_and(|log| FileType::from_raw_mode(log.st_mode).is_file() && is_large(log.st_size))
}
