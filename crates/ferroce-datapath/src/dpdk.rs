//! Ports of DPDK.
//!
//! DPDK's functions that move packets are inline functions of C, so a small library with C functions stands
//! between: `libferroce-dpdk.so`, from `shim/ferroce_dpdk.c`. It is loaded when the first port is opened, and
//! it is the only part that depends on DPDK.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::{self, Library};

/// Frames of one burst at most.
pub const BURST: usize = sys::BURST;

/// The name of the library's file.
pub const LIBRARY: &str = "libferroce-dpdk.so";
/// Octets of a frame besides the packet that counts for the MTU: hardware addresses, type and two tags.
const AROUND: usize = 22;
/// Octets of a frame's place in a burst at least.
const SHORTEST_STRIDE: usize = 2048;

/// Held by a thread that opens or closes ports: DPDK's functions for that are not for two threads at a time.
static CONTROL: Mutex<()> = Mutex::new(());

fn control() -> MutexGuard<'static, ()> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// The library is not installed, or DPDK's own libraries are not.
    #[error(
        "{LIBRARY} cannot be loaded ({0}): install DPDK (Debian: librte-ethdev) and a ferroce that was built with it"
    )]
    Library(String),
    /// An argument has a zero octet.
    #[error("an argument for DPDK has a zero octet")]
    Argument,
    /// DPDK does not start.
    #[error("DPDK does not start: {log} ({source})")]
    Start {
        /// DPDK's error.
        source: io::Error,
        /// DPDK's log.
        log: String,
    },
    /// There is no such device, or no driver for it.
    #[error(
        "DPDK finds no device {devargs}: {log} ({source}); its driver is a package of its own (Debian: librte-net-af-packet, \
         librte-net-mlx5, …), and a PCI device must be bound to vfio-pci unless its driver says otherwise"
    )]
    Device {
        /// The device arguments.
        devargs: String,
        /// DPDK's error.
        source: io::Error,
        /// DPDK's log.
        log: String,
    },
    /// The device is in use by this process.
    #[error("the device {0} has a link already")]
    Taken(String),
    /// The port does not start.
    #[error("the port of {devargs} does not start: {log} ({source})")]
    Port {
        /// The device arguments.
        devargs: String,
        /// DPDK's error.
        source: io::Error,
        /// DPDK's log.
        log: String,
    },
}

/// DPDK, which was started in this process and stays until the process ends.
#[derive(Clone, Debug)]
pub struct Dpdk {
    library: Arc<Library>,
}

/// A port that is open in both directions.
#[derive(Debug)]
pub struct Port {
    /// The receiving half.
    pub rx: Rx,
    /// The sending half.
    pub tx: Tx,
    /// The port's hardware address.
    pub mac: [u8; 6],
    /// Octets of the largest IP packet.
    pub mtu: u16,
}

/// The receiving half of a port. The port closes with its second half.
#[derive(Debug)]
pub struct Rx(Arc<Open>);

/// The sending half of a port.
#[derive(Debug)]
pub struct Tx(Arc<Open>);

#[derive(Debug)]
struct Open {
    library: Arc<Library>,
    port: u16,
}

impl Drop for Open {
    fn drop(&mut self) {
        let _control = control();
        let _ = self.library.close(self.port); // it may be unplugged
    }
}

/// Frames, each at a place of its own in one piece of memory.
#[derive(Debug)]
pub struct Burst {
    bytes: Box<[u8]>,
    stride: usize,
    lengths: [u32; BURST],
    count: usize,
}

impl Dpdk {
    /// Loads the first of these files that exists, or else asks the system's loader for [`LIBRARY`], and
    /// starts DPDK with `arguments`, which are those of DPDK's EAL. Once in a process, because DPDK cannot be
    /// started again.
    ///
    /// # Errors
    /// [`DpdkError::Library`], [`DpdkError::Argument`] or [`DpdkError::Start`].
    pub fn start(files: &[PathBuf], arguments: &[String]) -> Result<Self, DpdkError> {
        let file = files.iter().find(|file| file.exists()).map_or(Path::new(LIBRARY), PathBuf::as_path);
        let library = Library::load(file).map_err(DpdkError::Library)?;
        let arguments = arguments.iter().map(|argument| CString::new(argument.as_str()));
        let arguments: Vec<CString> = arguments.collect::<Result<_, _>>().map_err(|_| DpdkError::Argument)?;
        let _control = control();
        let started = library.init(&arguments);
        let log = library.message();
        started.map_err(|errno| DpdkError::Start { source: error(errno), log })?;
        Ok(Self { library: Arc::new(library) })
    }

    /// Opens the port of a device and starts it. `devargs` are DPDK's device arguments, such as
    /// `net_af_packet0,iface=eth1` or `0000:03:00.0`. Without an `mtu` the port keeps its own.
    ///
    /// # Errors
    /// [`DpdkError::Argument`], [`DpdkError::Device`], [`DpdkError::Taken`] or [`DpdkError::Port`].
    pub fn open(&self, devargs: &str, mtu: Option<u16>) -> Result<Port, DpdkError> {
        let name = CString::new(devargs).map_err(|_| DpdkError::Argument)?;
        let devargs = devargs.to_owned();
        let control = control();
        let Self { library } = self;
        let _ = library.message();
        let port = library.probe(&name).map_err(|errno| match -errno {
            libc::EEXIST => DpdkError::Taken(devargs.clone()),
            _ => DpdkError::Device { devargs: devargs.clone(), source: error(errno), log: library.message() },
        })?;
        let info = library.start(port, mtu.unwrap_or(0));
        let log = library.message();
        // From here on the port closes when `open` is dropped, for which the lock must be free.
        drop(control);
        let open = Arc::new(Open { library: Arc::clone(library), port });
        let info = info.map_err(|errno| DpdkError::Port { devargs, source: error(errno), log })?;
        Ok(Port { rx: Rx(Arc::clone(&open)), tx: Tx(open), mac: info.mac, mtu: info.mtu })
    }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(-errno)
}

impl Rx {
    /// Makes DPDK know the calling thread, for which it then keeps packet buffers.
    pub fn know_thread(&self) {
        self.0.library.know_thread();
    }

    /// Replaces the frames of `burst` by frames that arrived. Never blocks.
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        let Burst { bytes, stride, lengths, count } = burst;
        *count = self.0.library.rx(self.0.port, bytes, *stride, lengths);
        *count
    }

    /// Returns whether the link is up; `None` if the driver does not say.
    pub fn link(&self) -> Option<bool> {
        self.0.library.link(self.0.port)
    }
}

impl Tx {
    /// Sends the frames of `burst` and empties it. Returns how many of them were lost, because the device's
    /// queue was full. Never blocks.
    pub fn send(&mut self, burst: &mut Burst) -> usize {
        let Burst { bytes, stride, lengths, count } = burst;
        let all = std::mem::take(count);
        let lengths = lengths.get(..all).unwrap_or_default();
        if lengths.is_empty() {
            return 0;
        }
        all - self.0.library.tx(self.0.port, bytes, *stride, lengths).min(all)
    }
}

impl Burst {
    /// A burst without frames, with room for [`BURST`] frames of packets of `mtu` octets.
    pub fn new(mtu: u16) -> Self {
        let stride = (usize::from(mtu) + AROUND).next_multiple_of(64).max(SHORTEST_STRIDE);
        Self { bytes: vec![0; stride * BURST].into(), stride, lengths: [0; BURST], count: 0 }
    }

    /// Returns the frames. A frame that was longer than its place is empty.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let places = self.bytes.chunks_exact(self.stride).zip(&self.lengths).take(self.count);
        places.map(|(place, len)| place.get(..*len as usize).unwrap_or_default())
    }

    /// Returns whether another frame has no place.
    pub fn is_full(&self) -> bool {
        self.count >= BURST
    }

    /// Adds a frame, which `write` writes into its place and whose length it returns; with `None` nothing is
    /// added. Returns whether a frame was added.
    pub fn push_with(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Self { bytes, stride, lengths, count } = self;
        let place = bytes.get_mut(*count * *stride..(*count + 1) * *stride);
        let (Some(place), Some(length)) = (place, lengths.get_mut(*count)) else { return false };
        let Some(len) = write(place).filter(|len| *len <= place.len()) else { return false };
        *length = len as u32;
        *count += 1;
        true
    }

    /// Adds a frame. Returns `false` if the burst is full or the frame is longer than a place.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.push_with(|place| {
            place.get_mut(..frame.len())?.copy_from_slice(frame);
            Some(frame.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_keeps_its_frames_apart() {
        let mut burst = Burst::new(1500);
        assert_eq!(burst.frames().count(), 0);
        let frames: Vec<Vec<u8>> = (0..BURST).map(|k| vec![k as u8; 60 + k * 20]).collect();
        assert!(!burst.push(&[0; 2049]), "longer than its place");
        for frame in &frames {
            assert!(!burst.is_full() && burst.push(frame));
        }
        assert!(burst.is_full() && !burst.push(&[1]));
        assert!(burst.frames().eq(frames.iter().map(Vec::as_slice)));
        let mut jumbo = Burst::new(9000);
        assert!(jumbo.push(&[1; 9018]));
        assert!(!jumbo.push_with(|_| None));
        assert_eq!(jumbo.frames().map(<[u8]>::len).collect::<Vec<_>>(), [9018]);
    }

    #[test]
    fn without_the_library_the_sentence_names_it_and_what_to_install() {
        let files = [PathBuf::from("/nonexistent/libferroce-dpdk.so")];
        let text = std::env::temp_dir().join(format!("ferroce-no-library-{}", std::process::id()));
        std::fs::write(&text, "no library").unwrap();
        for files in [&files[..], &[files[0].clone(), text.clone()]] {
            let sentence = match Dpdk::start(files, &[]) {
                Err(e @ DpdkError::Library(_)) => e.to_string(),
                // The system's loader may find an installed one.
                other => {
                    assert!(files.len() == 1, "{other:?}");
                    continue;
                }
            };
            assert!(sentence.contains(LIBRARY) && sentence.contains("install DPDK"), "{sentence}");
        }
        std::fs::remove_file(&text).unwrap();
    }
}
