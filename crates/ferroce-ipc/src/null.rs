//! A stand-in for a standard stream that nobody uses.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

/// A descriptor for a standard stream that has no use: `/dev/null`, or, without that file (in a bare chroot,
/// or a container without device nodes), the read end of a pipe that has no writer. Reading it yields the end
/// of the file. Writing to it fails with EBADF, which Rust's standard streams take as written.
///
/// # Errors
/// The errors of `pipe2(2)`: EMFILE, ENFILE.
pub fn null_stream() -> io::Result<OwnedFd> {
    match OpenOptions::new().read(true).write(true).open("/dev/null") {
        Ok(null) => Ok(null.into()),
        Err(_) => null_pipe(),
    }
}

fn null_pipe() -> io::Result<OwnedFd> {
    let (read, _write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_is_read_as_empty_and_cannot_block_a_writer() {
        let pipe = null_pipe().unwrap();
        let mut cat = Command::new("cat");
        let output = cat.stdin(pipe.try_clone().unwrap()).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
        let error = rustix::io::write(&pipe, b"lost").unwrap_err();
        assert_eq!(error, rustix::io::Errno::BADF);
    }
}
