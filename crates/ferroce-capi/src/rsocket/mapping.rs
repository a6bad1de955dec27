//! Memory that is opened to the peer, and WRITEs to that of the peer.

use core::ffi::{c_int, c_void};
use ferroce_rsocket::Progress;
use libc::off_t;

use super::{data, table};
use crate::entry::export;
use crate::errno::Errno;
use crate::{call, wait};

export! {
    /// Opens memory to the peer (`PROT_WRITE`) or registers it (`PROT_NONE`), under `offset`, or under its
    /// own address if that is -1. ENOMEM if the peer has no room for another.
    pub fn riomap(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        _flags: c_int,
        offset: off_t,
    ) -> off_t {
        call::value(-1, |_| {
            let entry = table::get(socket)?;
            if prot & !libc::PROT_WRITE != 0 {
                return Err(Errno::EINVAL);
            }
            let offset = if offset == -1 { None } else { Some(offset as u64) };
            let offset = entry.socket.stream()?.map(buf as u64, len, prot & libc::PROT_WRITE != 0, offset)?;
            Ok(offset as off_t)
        })
    }
}

/// Closes memory that was opened, named as it was then. EINVAL if it was not.
pub extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    call::minus_one(|_| {
        table::get(socket)?.socket.stream()?.unmap(buf as u64, len)?;
        Ok(0)
    })
}

export! {
    /// Writes to what the peer opened at `offset`; the peer is not told. EINVAL if nothing is open there.
    pub waiting fn riowrite(
        socket: c_int,
        buf: *const c_void,
        count: usize,
        offset: off_t,
        flags: c_int,
    ) -> usize {
        let mut sent = Progress::NONE;
        wait::waiting(
            |_| usize::MAX,
            |_, woken| {
                let entry = table::get(socket)?;
                // SAFETY: `count` is the length of `buf`.
                let octets = unsafe { data::given(buf, count) }?;
                let nonblocking = entry.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
                let stream = entry.socket.stream()?;
                data::go_on(woken, &mut sent, |sent| stream.send_direct(octets, sent, offset as u64, nonblocking))
            },
        )
    }
}
