//! Tells systemd that the broker goes on (`WatchdogSec=`, sd_notify(3)). A broker whose main thread is stuck
//! is silent, and systemd ends it.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use ferroce_host::environment::of_service_manager;
use ferroce_host::fork::Guarded;
use tracing::warn;

/// The socket of the service manager, and when it is to hear from us.
#[derive(Debug)]
pub struct KeepAlive {
    socket: Guarded<UnixDatagram>,
    manager: SocketAddr,
    period: Duration,
    next: Instant,
}

impl KeepAlive {
    /// As `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` say; `None` without a watchdog for this
    /// process.
    pub fn from_environment(now: Instant) -> Option<Self> {
        let limit: u64 = of_service_manager("WATCHDOG_USEC")?.to_str()?.parse().ok()?;
        let is_ours =
            |pid: OsString| pid.to_str().and_then(|pid| pid.parse().ok()) == Some(std::process::id());
        if limit == 0 || !of_service_manager("WATCHDOG_PID").is_none_or(is_ours) {
            return None;
        }
        let name = of_service_manager("NOTIFY_SOCKET")?;
        let manager = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound();
        let opened = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        match (opened, manager) {
            (Ok(socket), Ok(manager)) => {
                let period = Duration::from_micros(limit) / 3;
                Some(Self { socket: Guarded::new(socket), manager, period, next: now })
            }
            (Err(e), _) | (_, Err(e)) => {
                warn!("the service manager cannot be told that ferroced goes on: {e}");
                None
            }
        }
    }

    /// Time at which [`Self::beat`] is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Tells the manager that we go on, if it is time. A manager that does not read hears nothing.
    pub fn beat(&mut self, now: Instant) {
        if now >= self.next {
            self.next = now + self.period;
            let _ = self.socket.send_to_addr(b"WATCHDOG=1", &self.manager);
        }
    }
}
