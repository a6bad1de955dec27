//! The ports that DPDK drives, and the tap of each.
//!
//! A port has a tap, an interface of the kernel with the port's hardware address and MTU, on which the device
//! stands: its addresses, neighbours and routes are the kernel's. A thread of the switch receives from the
//! port. It gives RoCE packets to the programs, and everything else to the tap; the frames that the kernel
//! sends by the tap leave by the port (`switch/poller.rs`).
//!
//! The tap of a link that outlives the broker is persistent, so that it keeps its addresses until the next
//! broker drives the port.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferroce_datapath::dpdk::{Burst, Dpdk, LIBRARY, Rx, Tx};
use ferroce_datapath::tap::Tap;
use ferroce_host::environment;
use ferroce_host::fork::Guarded;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};

/// The arguments of DPDK's EAL about memory, unless `FERROCE_DPDK_EAL` has others. The memory is taken from
/// the system as ports need it.
const MEMORY: &str = "--no-huge -m 256";
/// An address that no PCI device has. With a list of permitted devices DPDK drives no device but those that a
/// link names.
const NO_DEVICE: &str = "ffff:ff:1f.7";
/// How long the end of a port's thread is waited for.
const LONGEST_END: Duration = Duration::from_secs(5);

/// All ports of this process, by the index of their tap.
#[derive(Debug, Default)]
pub struct Ports {
    state: Mutex<OpenPorts>,
    /// The broker is a thread of a program, whose process is not DPDK's to use.
    embedded: bool,
}

#[derive(Debug, Default)]
struct OpenPorts {
    /// Started with the first port.
    dpdk: Option<Dpdk>,
    ports: BTreeMap<u32, Arc<DpdkPort>>,
}

/// A port with its tap.
#[derive(Debug)]
pub struct DpdkPort {
    /// Name of the tap.
    pub name: String,
    /// Index of the tap.
    pub ifindex: u32,
    /// The port's hardware address.
    pub mac: [u8; 6],
    /// Octets of the largest IP packet.
    pub mtu: u16,
    pub tap: Guarded<Tap>,
    /// Wakes the port's thread.
    wake: Guarded<OwnedFd>,
    /// The receiving half, until the thread takes it.
    rx: Mutex<Option<Rx>>,
    /// The sending half, until the port is closed.
    tx: Mutex<Option<Sending>>,
    /// Frames that were lost because the device's queue was full, and are not counted yet.
    lost: AtomicUsize,
    stopped: AtomicBool,
    /// Whether the port's thread runs.
    running: Mutex<bool>,
    ended: Condvar,
}

#[derive(Debug)]
struct Sending {
    tx: Tx,
    burst: Burst,
}

/// Parts of `devargs`: those for DPDK, and the MTU that `,mtu=N` asks for.
fn split(devargs: &str) -> Result<(String, Option<u16>), String> {
    let is_mtu = |part: &&str| part.starts_with("mtu=");
    let (ours, theirs): (Vec<&str>, Vec<&str>) = devargs.split(',').partition(is_mtu);
    let mtu = match ours.as_slice() {
        [] => None,
        [one] => match one.trim_start_matches("mtu=").parse() {
            Ok(mtu @ 576..=9600) => Some(mtu),
            _ => return Err(format!("{one}: the MTU of a port is a number from 576 to 9600")),
        },
        _ => return Err(format!("{devargs} has more than one mtu=")),
    };
    Ok((theirs.join(","), mtu))
}

impl Ports {
    /// No ports yet. If the broker is `embedded` in a program, there never will be any.
    pub fn new(embedded: bool) -> Self {
        Self { state: Mutex::default(), embedded }
    }

    /// Opens the port of a device of DPDK with the tap `name`. With `keep` the tap outlives this process. The
    /// error is a sentence.
    pub fn open(&self, devargs: &str, name: &str, keep: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.ports.values().any(|port| port.name == name) {
            return Ok(());
        }
        if self.embedded {
            return Err("a broker inside a program drives no ports of DPDK: start ferroced".to_owned());
        }
        let (devargs, mtu) = split(devargs)?;
        if state.dpdk.is_none() {
            state.dpdk = Some(start()?);
        }
        let Some(dpdk) = &state.dpdk else { return Err("DPDK is not there".to_owned()) };
        let opened = dpdk.open(&devargs, mtu).map_err(|e| e.to_string())?;
        let tap = Tap::open(name, opened.mac, opened.mtu, keep).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("the tap {name} cannot be made: ferroced needs CAP_NET_ADMIN in this network namespace ({e})")
            }
            io::ErrorKind::NotFound => format!("the tap {name} cannot be made: there is no /dev/net/tun ({e})"),
            _ => format!("the tap {name} cannot be made: {e}"),
        })?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|e| format!("no event counter can be made: {e}"))?;
        let port = DpdkPort {
            name: name.to_owned(),
            ifindex: tap.ifindex(),
            mac: opened.mac,
            mtu: opened.mtu,
            tap: Guarded::new(tap),
            wake: Guarded::new(wake),
            rx: Mutex::new(Some(opened.rx)),
            tx: Mutex::new(Some(Sending { tx: opened.tx, burst: Burst::new(opened.mtu) })),
            lost: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            running: Mutex::new(false),
            ended: Condvar::new(),
        };
        info!(devargs, tap = name, mtu = port.mtu, "DPDK drives the port");
        state.ports.insert(port.ifindex, Arc::new(port));
        Ok(())
    }

    /// Closes the port with the tap `name`, if it is open. Without `keep` the tap is removed.
    pub fn close(&self, name: &str, keep: bool) {
        let port = {
            let mut state = self.state.lock();
            let ifindex = state.ports.values().find(|port| port.name == name).map(|port| port.ifindex);
            ifindex.and_then(|ifindex| state.ports.remove(&ifindex))
        };
        let removed = match &port {
            Some(port) => {
                port.stop();
                if keep { Ok(()) } else { port.tap.set_persistent(false) }
            }
            None if keep => Ok(()),
            None => Tap::remove(name),
        };
        if let Err(e) = removed {
            warn!("the tap {name} stays: {e}");
        }
    }

    /// Closes all ports; persistent taps stay.
    pub fn close_all(&self) {
        let ports = std::mem::take(&mut self.state.lock().ports);
        ports.values().for_each(|port| port.stop());
    }

    /// The port whose tap has this index.
    pub fn get(&self, ifindex: u32) -> Option<Arc<DpdkPort>> {
        self.state.lock().ports.get(&ifindex).cloned()
    }

    /// The ports.
    pub fn all(&self) -> Vec<Arc<DpdkPort>> {
        self.state.lock().ports.values().cloned().collect()
    }
}

impl DpdkPort {
    /// The receiving half, for the one thread that calls this first.
    pub fn start(&self) -> Option<Rx> {
        let rx = self.rx.lock().take()?;
        *self.running.lock() = true;
        Some(rx)
    }

    /// The port's thread has dropped the receiving half and ends.
    pub fn end(&self) {
        *self.running.lock() = false;
        self.ended.notify_all();
    }

    /// Whether the port's thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Readable when the port's thread is to look at [`DpdkPort::is_stopped`].
    pub fn wake(&self) -> &impl AsFd {
        &self.wake
    }

    /// Gives the device back. Frames that are sent afterwards are lost.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        drop(self.tx.lock().take());
        drop(self.rx.lock().take());
        let mut running = self.running.lock();
        if *running && self.ended.wait_for(&mut running, LONGEST_END).timed_out() {
            warn!("the thread of the port of {} does not end", self.name);
        }
    }

    /// Sends a frame, at the latest with the next [`Self::flush`]. `false`: it is lost, because the port is
    /// closed or the frame is longer than the port takes.
    pub fn send(&self, frame: &[u8]) -> bool {
        self.send_with(|place| {
            place.get_mut(..frame.len())?.copy_from_slice(frame);
            Some(frame.len())
        })
    }

    /// As [`Self::send`], of a frame that `write` writes into its place and whose length it returns; with
    /// `None` there is none.
    pub fn send_with(&self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let mut tx = self.tx.lock();
        let Some(sending) = tx.as_mut() else { return false };
        if sending.burst.is_full() {
            self.send_burst(sending);
        }
        sending.burst.push_with(write)
    }

    /// Sends the frames that wait.
    pub fn flush(&self) {
        if let Some(sending) = self.tx.lock().as_mut() {
            self.send_burst(sending);
        }
    }

    /// Returns how many frames were lost since the last call, because the device's queue was full.
    pub fn take_lost(&self) -> usize {
        if self.lost.load(Ordering::Relaxed) == 0 { 0 } else { self.lost.swap(0, Ordering::Relaxed) }
    }

    fn send_burst(&self, sending: &mut Sending) {
        let lost = sending.tx.send(&mut sending.burst);
        if lost > 0 {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }
}

/// Starts DPDK in this process.
fn start() -> Result<Dpdk, String> {
    Dpdk::start(&libraries(), &arguments()).map_err(|e| e.to_string())
}

/// The places of the library, in the order in which they are tried.
fn libraries() -> Vec<PathBuf> {
    let named = environment::variable("FERROCE_DPDK_LIB").map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let folder = program.as_ref().and_then(|program| program.parent());
    let beside = folder.into_iter().flat_map(|folder| {
        let above = folder.parent().map(|above| above.join("lib"));
        let folders = [Some(folder.to_owned()), above.clone(), above.map(|lib| lib.join("ferroce"))];
        folders.into_iter().flatten().map(|folder| folder.join(LIBRARY)).collect::<Vec<_>>()
    });
    named.into_iter().chain(beside).collect()
}

/// The arguments of DPDK's EAL. DPDK uses one core, without being bound to it, shares no file and listens to
/// nobody.
fn arguments() -> Vec<String> {
    let memory = environment::text("FERROCE_DPDK_EAL").unwrap_or_else(|| MEMORY.to_owned());
    let cores = sched_getaffinity(Pid::from_raw(0)).map(|cores| {
        let numbers = (0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap_or(false));
        numbers.map(|core| core.to_string()).collect::<Vec<_>>().join(",")
    });
    let cores = cores.unwrap_or_else(|_| "0".to_owned());
    let prefix = format!("ferroce-{}", std::process::id());
    let fixed = ["ferroced", "--no-telemetry", "--no-shconf", "--log-level=warning", "-a", NO_DEVICE];
    let fixed = fixed.into_iter().map(str::to_owned);
    let cores = ["--lcores".to_owned(), format!("0@({cores})")];
    let prefix = ["--file-prefix".to_owned(), prefix];
    fixed.chain(cores).chain(prefix).chain(memory.split_whitespace().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_no_argument_of_dpdk() {
        let parts = |devargs| split(devargs);
        assert_eq!(parts("0000:03:00.0"), Ok(("0000:03:00.0".to_owned(), None)));
        assert_eq!(
            parts("net_af_packet0,mtu=9000,iface=a"),
            Ok(("net_af_packet0,iface=a".to_owned(), Some(9000)))
        );
        for bad in ["a,mtu=", "a,mtu=575", "a,mtu=9601", "a,mtu=-1", "a,mtu=1500,mtu=1500"] {
            assert!(parts(bad).is_err_and(|sentence| sentence.contains("mtu=")), "{bad}");
        }
    }

    #[test]
    fn dpdk_gets_no_device_that_no_link_names() {
        let arguments = arguments();
        let allowed = arguments.iter().position(|argument| argument == "-a");
        assert_eq!(allowed.and_then(|at| arguments.get(at + 1)).map(String::as_str), Some(NO_DEVICE));
        assert!(arguments.iter().any(|argument| argument == "--no-shconf"));
    }
}
