//! A cache of the kernel's routes and interfaces, valid until the kernel reports a change.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fork::Guarded;
use crate::netdev::Netdev;
use crate::rtnetlink::{self, Monitor};

/// Routes that are kept.
const MOST: usize = 64;
/// How long, although nothing changes: the kernel does not tell of path MTUs that it learns and forgets.
const KEPT: Duration = Duration::from_secs(1);

/// The kernel's answer about a source, perhaps the wildcard, and a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The local address.
    pub from: SocketAddr,
    /// The destination, as the kernel understood it.
    pub to: SocketAddr,
    /// The MTU of the way.
    pub mtu: u32,
    /// Time to live or hop limit.
    pub hop_limit: u8,
}

/// Answers of the kernel.
#[derive(Debug, Default)]
pub struct Routes {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// `Some(None)`: the system does not report changes, so nothing is cached.
    monitor: Option<Option<Guarded<Monitor>>>,
    /// How often something changed.
    changes: u64,
    answers: Vec<(SocketAddr, SocketAddr, Instant, Answer)>,
    /// The interfaces with their addresses.
    interfaces: Option<Arc<Vec<Netdev>>>,
}

impl Routes {
    /// The answer about `source` and `destination`, both without ports; from `ask` if none is known that
    /// still holds.
    pub fn get<E>(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        ask: impl FnOnce() -> Result<Answer, E>,
    ) -> Result<Answer, E> {
        let changes = {
            let mut known = self.known.lock();
            // A change is there to be read before the call that made it returns, so what is found below
            // holds.
            known.follow();
            let is = |known: &&(SocketAddr, SocketAddr, Instant, Answer)| {
                known.0 == source && known.1 == destination && known.2.elapsed() < KEPT
            };
            if let Some((.., answer)) = known.answers.iter().find(is) {
                return Ok(*answer);
            }
            known.changes
        };
        let since = Instant::now();
        let answer = ask()?;
        let mut known = self.known.lock();
        // The next lookup detects a change after this point.
        if known.changes == changes && matches!(known.monitor, Some(Some(_))) {
            known
                .answers
                .retain(|known| known.2.elapsed() < KEPT && (known.0, known.1) != (source, destination));
            if known.answers.len() < MOST {
                known.answers.push((source, destination, since, answer));
            }
        }
        Ok(answer)
    }

    /// The indices of the interfaces that have this address: none if the kernel does not tell.
    pub fn holders(&self, address: SocketAddr) -> Vec<u32> {
        let ip = address.ip().to_canonical();
        let scope = match address {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
            _ => None,
        };
        let interfaces = self.interfaces();
        let here = |netdev: &&Netdev| has(netdev, ip) && scope.is_none_or(|scope| netdev.ifindex == scope);
        interfaces.iter().filter(here).map(|netdev| netdev.ifindex).collect()
    }

    fn interfaces(&self) -> Arc<Vec<Netdev>> {
        let changes = {
            let mut known = self.known.lock();
            known.follow();
            if let Some(interfaces) = &known.interfaces {
                return Arc::clone(interfaces);
            }
            known.changes
        };
        let asked = rtnetlink::netdevs().inspect_err(|e| tracing::warn!("no interfaces are known: {e}"));
        let interfaces = Arc::new(asked.unwrap_or_default());
        let mut known = self.known.lock();
        if known.changes == changes && matches!(known.monitor, Some(Some(_))) && !interfaces.is_empty() {
            known.interfaces = Some(Arc::clone(&interfaces));
        }
        interfaces
    }
}

/// Whether an interface has the address. `lo` has all of 127.0.0.0/8, as the kernel's table of local
/// addresses says.
fn has(netdev: &Netdev, ip: IpAddr) -> bool {
    let loopback = netdev.loopback && ip.is_ipv4() && ip.is_loopback();
    netdev.up && (loopback || netdev.addresses.contains(&ip))
}

impl Known {
    /// Forgets what may be wrong by now.
    fn follow(&mut self) {
        let monitor = self.monitor.get_or_insert_with(|| {
            let monitor = Monitor::of_routes();
            monitor.inspect_err(|e| tracing::debug!("routes are not kept: {e}")).ok().map(Guarded::new)
        });
        if monitor.as_ref().is_none_or(|monitor| monitor.drain()) {
            self.changes += 1;
            self.answers.clear();
            self.interfaces = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_whole_network() {
        let lo = Netdev { addresses: vec![[127, 0, 0, 1].into()], ..Netdev::assumed_loopback() };
        let eth0 = Netdev { up: true, addresses: vec![[192, 0, 2, 1].into()], ..Netdev::default() };
        let down = Netdev { up: false, ..eth0.clone() };
        for (netdev, ip, want) in [
            (&lo, "127.0.0.1", true),
            (&lo, "127.9.9.9", true),
            (&lo, "192.0.2.1", false),
            (&eth0, "192.0.2.1", true),
            (&eth0, "127.0.0.1", false),
            (&down, "192.0.2.1", false),
        ] {
            assert_eq!(has(netdev, ip.parse().unwrap()), want, "{ip}");
        }
    }

    #[test]
    fn the_kernel_is_asked_for_the_holder_of_an_address() {
        let routes = Routes::default();
        let lo = routes.holders(([127, 0, 0, 1], 7).into());
        assert_eq!(lo.len(), 1);
        assert_eq!(routes.holders("[::ffff:127.0.0.1]:0".parse().unwrap()), lo);
        assert!(routes.holders(([192, 0, 2, 77], 0).into()).is_empty());
    }
}
