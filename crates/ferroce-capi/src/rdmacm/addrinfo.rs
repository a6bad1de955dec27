//! Names and services, as `getaddrinfo` has them, with what connecting needs beside an address.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_host::PerProcess;
use ferroce_host::thread::spawn_quietly;
use libc::{addrinfo, sockaddr, socklen_t};
use parking_lot::Mutex;

use super::address::AF_IB;
use super::operation;
use super::state::{IdHandle, List, LiveId, What};
use crate::call;
use crate::entry::{ConstPtr, Object, Ptr, Text, export};
use crate::errno::Errno;

/// Result for the passive side.
pub(super) const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 2;
/// There is nothing lengthy to leave out: routes are the kernel's.
const RAI_NOROUTE: c_int = 4;
const RAI_FAMILY: c_int = 8;
/// `rdma_resolve_addrinfo` asks a subnet administrator, of which RoCE has none.
const RAI_SA: c_int = 16;
/// Asks for the system's resolver, which `rdma_getaddrinfo` uses in any case.
const RAI_DNS: c_int = 32;

/// The kind of queue pair, 0 for any.
fn socket_type(qp_type: c_int) -> c_int {
    match qp_type as abi::ibv_qp_type {
        abi::IBV_QPT_RC | abi::IBV_QPT_UC | abi::IBV_QPT_XRC_SEND | abi::IBV_QPT_XRC_RECV => {
            libc::SOCK_STREAM
        }
        abi::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    }
}

fn protocol(ps: c_int) -> c_int {
    match ps as abi::rdma_port_space {
        abi::RDMA_PS_TCP => libc::IPPROTO_TCP,
        abi::RDMA_PS_UDP => libc::IPPROTO_UDP,
        _ => 0,
    }
}

impl List {
    /// Gives the list to the program, which frees it.
    fn give(self) -> *mut abi::rdma_addrinfo {
        let first = self.0;
        std::mem::forget(self);
        first
    }

    /// As it is, without further results: there is one.
    fn duplicate(&self) -> Result<Self, Errno> {
        // SAFETY: it owns an element.
        let original = unsafe { &*self.0 };
        // SAFETY: an element of ours: its addresses are as long as it says.
        unsafe { answer(None, Some(original)) }
    }
}

/// A copy that `free` takes.
///
/// # Safety
///
/// `length` octets can be read at `from`.
unsafe fn copy(from: *const c_void, length: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: malloc has no preconditions.
    let to = unsafe { libc::malloc(length.max(1)) };
    if to.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: both have `length` octets, and the new memory overlaps nothing.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), length) };
    Ok(to)
}

/// Copies an address with its length; copies nothing without an address.
///
/// # Safety
///
/// `address` is NULL or readable for `length` octets.
unsafe fn copy_address(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<(*mut sockaddr, socklen_t), Errno> {
    if address.is_null() || length == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: `address` has `length` octets.
    Ok((unsafe { copy(address.cast(), length as usize) }?.cast(), length))
}

/// The first result of the system's resolver. Error codes `EAI_…`, positive or negative, are the resolver's
/// own.
enum Found {
    Address(System),
    Failure(c_int),
}

/// A list of the system's.
struct System(*mut addrinfo);

impl Drop for System {
    fn drop(&mut self) {
        // SAFETY: from getaddrinfo, once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// Asks the system.
fn ask(node: Option<&CStr>, service: Option<&CStr>, hints: Option<&abi::rdma_addrinfo>) -> Found {
    // SAFETY: plain data and pointers, for which zero is a value.
    let mut ask: addrinfo = unsafe { std::mem::zeroed() };
    // Without a hint it is a stream, as the port space is TCP's.
    ask.ai_socktype = libc::SOCK_STREAM;
    if let Some(hints) = hints {
        let passive = hints.ai_flags & RAI_PASSIVE != 0;
        let numeric = hints.ai_flags & RAI_NUMERICHOST != 0;
        ask.ai_flags =
            if passive { libc::AI_PASSIVE } else { 0 } | if numeric { libc::AI_NUMERICHOST } else { 0 };
        // An answer of IP stands for a family of GIDs, unless just that is wanted.
        let gids = hints.ai_family == c_int::from(AF_IB) && hints.ai_flags & RAI_FAMILY == 0;
        ask.ai_family = if gids { libc::AF_UNSPEC } else { hints.ai_family };
        ask.ai_protocol = protocol(hints.ai_port_space);
        ask.ai_socktype = match (socket_type(hints.ai_qp_type), ask.ai_protocol) {
            (0, libc::IPPROTO_UDP) => libc::SOCK_DGRAM,
            (0, _) => libc::SOCK_STREAM,
            (given, _) => given,
        };
    }
    let mut list = ptr::null_mut();
    let (node, service) = (node.map_or(ptr::null(), CStr::as_ptr), service.map_or(ptr::null(), CStr::as_ptr));
    // SAFETY: C strings or NULL; the hints and the list are in this frame.
    match unsafe { libc::getaddrinfo(node, service, &ask, &mut list) } {
        0 => Found::Address(System(list)),
        failure => Found::Failure(failure),
    }
}

export! {
    /// Resolves a name and a service for either side. 0, or -1 and errno, or one of `getaddrinfo`'s codes.
    ///
    /// Without `node` the hints say where to; nothing at all is EINVAL. Source, canonical names and routes
    /// are given where they are known: the source is left to the routing tables.
    pub fn rdma_getaddrinfo(
        node: Text,
        service: Text,
        hints: ConstPtr<abi::rdma_addrinfo>,
        res: Ptr<*mut abi::rdma_addrinfo>,
    ) -> c_int = call::minus_one |_| {
        let (res, hints) = (res.some()?, hints.read().ok());
        // SAFETY: addresses in a program's structure are as long as it says.
        match unsafe { look_up(node.get(), service.get(), hints.as_ref()) }? {
            Ok(list) => {
                res.write(list.give());
                Ok(0)
            }
            Err(code) => Ok(code),
        }
    }
}

/// Resolves a name; fails with a code of `getaddrinfo`.
///
/// # Safety
///
/// The addresses of the hints are as long as they say.
unsafe fn look_up(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&abi::rdma_addrinfo>,
) -> Result<Result<List, c_int>, Errno> {
    if node.is_none() && service.is_none() && hints.is_none() {
        return Err(Errno::EINVAL);
    }
    let known = RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY | RAI_DNS;
    if hints.is_some_and(|hints| hints.ai_flags & !known != 0) {
        return Ok(Err(libc::EAI_BADFLAGS));
    }
    let found = if node.is_none() && service.is_none() {
        None
    } else {
        match ask(node, service, hints) {
            Found::Address(list) => Some(list),
            Found::Failure(code) => return Ok(Err(code)),
        }
    };
    // SAFETY: the addresses of the hints are as long as they say.
    Ok(Ok(unsafe { answer(found.as_ref(), hints) }?))
}

/// A result: an address that the system found, and the values that the hints add.
///
/// # Safety
///
/// The addresses of the hints are as long as they say.
unsafe fn answer(found: Option<&System>, hints: Option<&abi::rdma_addrinfo>) -> Result<List, Errno> {
    // SAFETY: calloc has no preconditions.
    let place = unsafe { libc::calloc(1, size_of::<abi::rdma_addrinfo>()) }.cast::<abi::rdma_addrinfo>();
    // SAFETY: NULL, or all zeros, which is a value of plain data and pointers.
    let info = unsafe { place.as_mut() }.ok_or(Errno::ENOMEM)?;
    let list = List(place);
    if let Some(hints) = hints {
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
    }
    let passive = info.ai_flags & RAI_PASSIVE != 0;
    if let Some(System(first)) = found {
        // SAFETY: the system's list has an element at least.
        let first = unsafe { &**first };
        info.ai_family = first.ai_family;
        let datagrams = first.ai_socktype == libc::SOCK_DGRAM;
        if info.ai_qp_type == 0 {
            let of = if datagrams { abi::IBV_QPT_UD } else { abi::IBV_QPT_RC };
            info.ai_qp_type = of as c_int;
        }
        if info.ai_port_space == 0 {
            let of = if datagrams { abi::RDMA_PS_UDP } else { abi::RDMA_PS_TCP };
            info.ai_port_space = of as c_int;
        }
        // SAFETY: the system's own address.
        let address = unsafe { copy_address(first.ai_addr, first.ai_addrlen) }?;
        if passive {
            (info.ai_src_addr, info.ai_src_len) = address;
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = address;
        }
    }
    if let Some(hints) = hints {
        if info.ai_dst_addr.is_null() && found.is_none() {
            // SAFETY: the addresses of the hints are as long as they say.
            (info.ai_dst_addr, info.ai_dst_len) =
                unsafe { copy_address(hints.ai_dst_addr, hints.ai_dst_len) }?;
        }
        if info.ai_src_addr.is_null() {
            // SAFETY: the addresses of the hints are as long as they say.
            (info.ai_src_addr, info.ai_src_len) =
                unsafe { copy_address(hints.ai_src_addr, hints.ai_src_len) }?;
        }
    }
    Ok(list)
}

export! {
    /// Frees results.
    pub fn rdma_freeaddrinfo(res: Ptr<abi::rdma_addrinfo>) -> () {
        drop(List(res.as_ptr()));
    }
}

/// A lookup.
struct Search {
    node: Option<CString>,
    service: Option<CString>,
    /// With addresses of its own.
    hints: Option<List>,
}

impl Search {
    /// # Safety
    ///
    /// The addresses of the hints are as long as they say.
    unsafe fn new(
        node: Option<&CStr>,
        service: Option<&CStr>,
        hints: Option<&abi::rdma_addrinfo>,
    ) -> Result<Self, Errno> {
        // SAFETY: the addresses of the hints are as long as they say.
        let hints = hints.map(|hints| unsafe { answer(None, Some(hints)) }).transpose()?;
        Ok(Self { node: node.map(CStr::to_owned), service: service.map(CStr::to_owned), hints })
    }

    /// Looks it up; the result is the id's, the event's status 0, a code of `getaddrinfo`, or a negative
    /// errno.
    fn run(self, id: &'static IdHandle, live: &Arc<LiveId>) {
        // SAFETY: it owns an element.
        let hints = self.hints.as_ref().map(|hints| unsafe { &*hints.0 });
        // SAFETY: hints of ours: their addresses are as long as they say.
        let (found, status) = match unsafe { look_up(self.node.as_deref(), self.service.as_deref(), hints) } {
            Ok(Ok(list)) => (Some(list), 0),
            Ok(Err(code)) => (None, code),
            Err(errno) => (None, -errno.code()),
        };
        let kind = match found {
            Some(_) => abi::RDMA_CM_EVENT_ADDRINFO_RESOLVED,
            None => abi::RDMA_CM_EVENT_ADDRINFO_ERROR,
        };
        let mut state = live.state.lock();
        state.found = found;
        state.queue(id, live, What::Result { kind, status });
    }
}

export! {
    /// As [`rdma_getaddrinfo`] without waiting: ADDRINFO_RESOLVED or ADDRINFO_ERROR tells when it is done,
    /// and [`rdma_query_addrinfo`] what was found. EOPNOTSUPP for a subnet administrator, whom RoCE does not
    /// have.
    pub fn rdma_resolve_addrinfo(
        id: Object<abi::rdma_cm_id>,
        node: Text,
        service: Text,
        hints: ConstPtr<abi::rdma_addrinfo>,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let (node, service, hints) = (node.get(), service.get(), hints.read().ok());
        if node.is_none() && service.is_none() && hints.is_none() {
            return Err(Errno::EINVAL);
        }
        if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: addresses in a program's structure are as long as it says.
        let search = unsafe { Search::new(node, service, hints.as_ref()) }?;
        if live.state.lock().is_synchronous() {
            search.run(handle, &live);
            return operation::complete(handle).map(|()| 0);
        }
        Lookups::begin(search, handle, &live)?;
        Ok(0)
    }
}

/// The lookups that wait for a thread, and the threads.
#[derive(Default)]
struct Lookups {
    waiting: VecDeque<(Search, &'static IdHandle, Arc<LiveId>)>,
    threads: usize,
}

/// The lookups of this process that no caller waits for.
static LOOKUPS: PerProcess<Mutex<Lookups>> = PerProcess::new();

/// Limit of threads that look up at once. A name server may take seconds, and other names do not wait for it.
const MOST_THREADS: usize = 4;

impl Lookups {
    /// Runs the search on one of the threads.
    fn begin(search: Search, id: &'static IdHandle, live: &Arc<LiveId>) -> io::Result<()> {
        let shared = LOOKUPS.get();
        let mut lookups = shared.lock();
        if lookups.threads < MOST_THREADS {
            match spawn_quietly("ferroce-names", || Self::serve(shared)) {
                Ok(()) => lookups.threads += 1,
                Err(error) if lookups.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        lookups.waiting.push_back((search, id, Arc::clone(live)));
        Ok(())
    }

    fn serve(shared: &Mutex<Self>) {
        loop {
            let mut lookups = shared.lock();
            let Some((search, id, live)) = lookups.waiting.pop_front() else {
                lookups.threads -= 1;
                return;
            };
            drop(lookups);
            let ended = live.state.lock().ended;
            if !ended {
                search.run(id, &live);
            }
        }
    }
}

export! {
    /// Returns the result of `rdma_resolve_addrinfo`, which the program frees by [`rdma_freeaddrinfo`];
    /// EINVAL without a result.
    pub fn rdma_query_addrinfo(
        id: Object<abi::rdma_cm_id>,
        info: Ptr<*mut abi::rdma_addrinfo>,
    ) -> c_int = call::minus_one |_| {
        let (_, live) = id.opened()?;
        let info = info.some()?;
        let copy = live.state.lock().found.as_ref().ok_or(Errno::EINVAL)?.duplicate()?;
        info.write(copy.give());
        Ok(0)
    }
}
