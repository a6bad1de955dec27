//! Ports that are open for management datagrams, and the datagrams that pass through them.
//!
//! A datagram to the port itself is answered at once, by [`super::agent`], in the program's own process; no
//! privilege and no device file is needed. Others would need a path by LIDs, which Ethernet does not have:
//! EINVAL, as from the kernel for RoCE ports. Queue pair 1, where connection management lives, is the
//! broker's alone.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, Held, NotifyQueue, PerProcess, RemovalWatch, Sleep};
use parking_lot::Mutex;

use super::agent::{self, Asked, MAD, NoAnswer};
use super::devices::find;
use super::negative;
use crate::call;
use crate::entry::{Ptr, Text, export};
use crate::errno::{self, Errno};
use crate::handle::get;
use crate::wait::{self, Step};

/// Octets before the datagram.
const HEADER: usize = size_of::<abi::ib_user_mad>();
/// Datagrams that wait to be received.
const MOST_WAITING: usize = 256;
/// Agents of one port.
const MOST_AGENTS: usize = 32;
/// A destination that is the port itself.
const NO_LID: u16 = 0;
const PERMISSIVE_LID: u16 = 0xffff;

/// Open ports by their descriptor.
static PORTS: PerProcess<Mutex<BTreeMap<RawFd, Arc<UmadPort>>>> = PerProcess::new();

struct UmadPort {
    /// The device's name.
    device: String,
    /// Ends with the device.
    waiting: Arc<NotifyQueue<Reply>>,
    /// From the first wait on.
    watch: OnceLock<Arc<RemovalWatch>>,
    /// The classes of agents, by their number.
    agents: Mutex<BTreeMap<u32, u8>>,
}

/// A datagram for an agent.
struct Reply {
    agent: u32,
    /// 0, or ETIMEDOUT with the request itself.
    status: u32,
    address: abi::ib_mad_addr,
    mad: Vec<u8>,
}

fn port(fd: c_int) -> Result<Arc<UmadPort>, Errno> {
    PORTS.get().lock().get(&fd).cloned().ok_or(Errno::EINVAL)
}

/// Opens a port.
fn open(ca_name: Text, portnum: c_int) -> c_int {
    negative(|_| {
        let DeviceInfo { name, .. } = find(ca_name)?;
        if !(0..=1).contains(&portnum) {
            return Err(Errno::EINVAL);
        }
        let waiting = Arc::new(NotifyQueue::writable()?);
        let fd = waiting.fd().as_raw_fd();
        let port = UmadPort { device: name, waiting, watch: OnceLock::new(), agents: Mutex::default() };
        PORTS.get().lock().insert(fd, Arc::new(port));
        usize::try_from(fd).map_err(|_| Errno::EBADF)
    })
}

export! {
    /// Opens a port, 1 or 0 for any, and returns the number by which the other calls know it: its descriptor.
    pub fn umad_open_port(ca_name: Text, portnum: c_int) -> c_int {
        open(ca_name, portnum)
    }

    /// As [`umad_open_port`]: there is one port for all classes.
    pub fn umad_open_smi_port(ca_name: Text, portnum: c_int) -> c_int {
        open(ca_name, portnum)
    }
}

/// Closes a port with all of its agents. EINVAL for a number of no port.
pub extern "C" fn umad_close_port(fd: c_int) -> c_int {
    negative(|_| PORTS.get().lock().remove(&fd).map(|_| 0).ok_or(Errno::EINVAL))
}

/// A descriptor that is readable while a datagram waits, and after the end of the device. It is the port's,
/// and must not be closed or read.
pub extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    negative(|_| {
        port(fd)?.watch_device();
        usize::try_from(fd).map_err(|_| Errno::EBADF)
    })
}

impl UmadPort {
    /// Has the queue end with the device. Not at once, because most programs never wait, and the watch takes
    /// a thread.
    fn watch_device(&self) {
        if self.watch.get().is_some() {
            return;
        }
        let started = match ferroce_engine::device_named(&self.device) {
            Ok(None) => return self.waiting.end(),
            Ok(Some(info)) => {
                let waiting = Arc::clone(&self.waiting);
                RemovalWatch::start(info.id, move || waiting.end())
            }
            Err(error) => Err(error.into()),
        };
        match started {
            Ok(watch) => drop(self.watch.set(watch)),
            Err(error) => tracing::debug!(%error, "a umad port does not learn of the end of its device"),
        }
    }

    /// The device as it is now; EIO if it is gone (libibumad's answer to each failed `write`).
    fn info(&self) -> Result<DeviceInfo, Errno> {
        let named = ferroce_engine::device_named(&self.device)?.ok_or(Errno::EIO)?;
        if self.waiting.is_ended() { Err(Errno::EIO) } else { Ok(named) }
    }

    fn register(&self, class: u8) -> Result<u32, Errno> {
        let mut agents = self.agents.lock();
        if class == 0 || agents.len() >= MOST_AGENTS {
            return Err(if class == 0 { Errno::EINVAL } else { Errno::ENOMEM });
        }
        let free = (0..).find(|number| !agents.contains_key(number)).unwrap_or(0);
        agents.insert(free, class);
        Ok(free)
    }
}

/// Makes an agent of a class, and returns its number. Requests never come, since nobody sends any; so
/// `_method_mask` names nothing.
pub extern "C" fn umad_register(
    fd: c_int,
    mgmt_class: c_int,
    _mgmt_version: c_int,
    _rmpp_version: u8,
    _method_mask: *mut c_void,
) -> c_int {
    negative(|_| Ok(port(fd)?.register(u8::try_from(mgmt_class).map_err(|_| Errno::EINVAL)?)? as usize))
}

/// Makes an agent of a vendor's class, 0x30 to 0x4f.
pub extern "C" fn umad_register_oui(
    fd: c_int,
    mgmt_class: c_int,
    _rmpp_version: u8,
    oui: *mut u8,
    _method_mask: *mut c_void,
) -> c_int {
    negative(|_| match u8::try_from(mgmt_class) {
        Ok(class @ 0x30..=0x4f) if !oui.is_null() => Ok(port(fd)?.register(class)? as usize),
        _ => Err(Errno::EINVAL),
    })
}

export! {
    /// Makes an agent and stores its number. Returns 0 or an errno.
    pub fn umad_register2(fd: c_int, attr: Ptr<abi::umad_reg_attr>, agent_id: Ptr<u32>) -> c_int = call::code |_| {
        let (attr, agent_id) = (attr.some()?, agent_id.some()?);
        let class = get!(attr.mgmt_class);
        let number = port(fd)?.register(class)?;
        agent_id.write(number);
        Ok(())
    }
}

/// Ends an agent. EINVAL if no agent has this number.
pub extern "C" fn umad_unregister(fd: c_int, agent_id: c_int) -> c_int {
    negative(|_| {
        let number = u32::try_from(agent_id).map_err(|_| Errno::EINVAL)?;
        port(fd)?.agents.lock().remove(&number).map(|_| 0).ok_or(Errno::EINVAL)
    })
}

export! {
    /// Sends a datagram of `length` octets. The answer waits for [`umad_recv`] when this returns; if nobody
    /// here serves its class, the datagram itself with the status ETIMEDOUT.
    ///
    /// EINVAL for what is no request, or is for another port; ENOMEM while 256 answers wait; EIO if the
    /// device is gone.
    pub fn umad_send(
        fd: c_int,
        agent_id: c_int,
        umad: *mut c_void,
        length: c_int,
        _timeout_ms: c_int,
        _retries: c_int,
    ) -> c_int = negative |_| {
        let port = port(fd)?;
        let agent = u32::try_from(agent_id).map_err(|_| Errno::EINVAL)?;
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        if umad.is_null() || length > MAD || !port.agents.lock().contains_key(&agent) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a buffer's header, of no certain alignment.
        let address = unsafe { (&raw const (*umad.cast::<abi::ib_user_mad>()).addr).read_unaligned() };
        let mut request = vec![0; length];
        // SAFETY: a datagram of `length` octets follows the header, and `request` has room for it.
        unsafe {
            request.as_mut_ptr().copy_from_nonoverlapping(umad.byte_add(HEADER).cast::<u8>(), length);
        }
        let info = port.info()?;
        if !is_here(&address, &info) {
            return Err(Errno::EINVAL);
        }
        if port.waiting.len() >= MOST_WAITING {
            return Err(Errno::ENOMEM);
        }
        let counters = || ferroce_engine::device_statistics(&info.name).unwrap_or_default();
        let (status, mad) = match agent::answer(&request, &Asked { info: &info, counters: &counters }) {
            Ok(mad) => (0, mad.to_vec()),
            Err(NoAnswer::Nobody) => (Errno::ETIMEDOUT.code() as u32, request),
            Err(NoAnswer::Malformed | NoAnswer::Elsewhere) => return Err(Errno::EINVAL),
        };
        port.waiting.push(Reply { agent, status, address, mad });
        Ok(0)
    }
}

/// Whether a destination is the port itself: by a GID of it, or without any path.
fn is_here(address: &abi::ib_mad_addr, info: &DeviceInfo) -> bool {
    if address.grh_present != 0 {
        // SAFETY: every octet pattern is a GID.
        let gid = unsafe { address.unnamed.gid };
        return info.gids.iter().any(|entry| entry.gid.0 == gid);
    }
    matches!(u16::from_be(address.lid), NO_LID | PERMISSIVE_LID)
}

/// Waits until a datagram is there: for ever if `timeout_ms` is negative. ETIMEDOUT otherwise, EIO if it
/// cannot wait, if the device is gone, or after a signal handler (errno is then EINTR). A cancellation point.
pub extern "C-unwind" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    let until = until(timeout_ms);
    wait::negative(|_, woken| {
        if woken.is_err() {
            return Ok(interrupted());
        }
        let port = port(fd)?;
        if port.waiting.is_empty() { port.sleep(until) } else { Ok(Step::Done(0)) }
    })
}

/// libibumad sleeps in `poll`, answers each of its failures with -EIO, and leaves errno as `poll` set it.
fn interrupted() -> Step<c_int> {
    errno::set(Errno::EINTR);
    Step::Done(-Errno::EIO.code())
}

/// Returns the end of a wait of `timeout_ms` milliseconds; `None`, without limit, if it is negative.
fn until(timeout_ms: c_int) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

impl UmadPort {
    /// Sleeps until there may be a datagram; ETIMEDOUT if the time is over, EIO if the device is gone.
    fn sleep(self: Arc<Self>, until: Option<Instant>) -> Result<Step<c_int>, Errno> {
        let left =
            until.map_or(-1, |until| wait::milliseconds(until.saturating_duration_since(Instant::now())));
        if left != 0 {
            self.watch_device();
        }
        if self.waiting.is_ended() {
            return Err(Errno::EIO);
        }
        if left == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        let held = Held::Shared(Arc::clone(&self) as _);
        Ok(Step::Sleep(Sleep::until_readable(self.waiting.fd(), held).as_poll(), left))
    }
}

export! {
    /// Takes a datagram of at most `*length` octets, whose length is stored there, and returns its agent's
    /// number. Waits as [`umad_poll`] does; for no time if `timeout_ms` is 0, which fails with EAGAIN. ENOSPC
    /// if it is longer than there is room for: it stays, and `*length` says what it needs. A cancellation
    /// point.
    pub waiting fn umad_recv(
        fd: c_int,
        umad: *mut c_void,
        length: Ptr<c_int>,
        timeout_ms: c_int,
    ) -> c_int {
        let until = until(timeout_ms);
        wait::negative(|_, woken| {
            if woken.is_err() {
                return Ok(interrupted());
            }
            let length = length.some()?;
            if umad.is_null() {
                return Err(Errno::EINVAL);
            }
            let port = port(fd)?;
            let room = usize::try_from(length.read()).map_err(|_| Errno::EINVAL)?;
            if timeout_ms != 0 && port.waiting.is_empty() {
                return port.sleep(until);
            }
            let none = if port.waiting.is_ended() { Errno::EIO } else { Errno::EAGAIN };
            let needed = port.waiting.peek(|reply| reply.mad.len()).ok_or(none)?;
            if needed > room {
                length.write(needed as c_int);
                return Err(Errno::ENOSPC);
            }
            let Reply { agent, status, address, mad } = port.waiting.pop(|reply| reply).ok_or(Errno::EAGAIN)?;
            // Another thread took the one that was looked at, and this one is longer.
            let mad = mad.get(..room.min(mad.len())).unwrap_or_default();
            let header = abi::ib_user_mad {
                agent_id: agent,
                status,
                timeout_ms: 0,
                retries: 0,
                length: (HEADER + mad.len()) as u32,
                addr: address,
                data: [],
            };
            // SAFETY: the buffer has room for the header and `room` octets behind it, which `mad` does not
            // exceed.
            unsafe {
                umad.cast::<abi::ib_user_mad>().write_unaligned(header);
                umad.byte_add(HEADER).cast::<u8>().copy_from_nonoverlapping(mad.as_ptr(), mad.len());
            }
            length.write(mad.len() as c_int);
            Ok(Step::Done(agent as c_int))
        })
    }
}
