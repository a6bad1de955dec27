//! Which programs get a port of AF_XDP at the interface itself.
//!
//! The holder of such a port can send any frame, and the broker cannot take that back while the holder has
//! the descriptor. Therefore a program gets it only if the kernel would give it a packet socket as well
//! ([`crate::privilege`]), or if an administrator chose it for the programs of root. All others get a port at
//! a pair.

use std::collections::BTreeMap;

use ferroce_host::netdev::Netdev;
use ferroce_ipc::{DeviceInfo, XdpPorts};
use tracing::info;

use super::Broker;
use crate::ClientId;
use crate::by_pair::ByPair;
use crate::privilege::{Right, Unprivileged};
use crate::system::System;
use crate::xdp::Place;

impl<S: System> Broker<S> {
    /// A program's right was looked at for a request.
    pub fn judged(&mut self, client: ClientId, right: Right, judged: Result<(), Unprivileged>) {
        if let Some(known) = self.clients.get_mut(&client) {
            match right {
                Right::Frames => known.privilege = judged,
                Right::LowPorts => known.low_ports = judged.is_ok(),
            }
        }
    }

    /// Whether a program gets a direct port on the interface of a device. `able`: it knows such ports.
    pub(super) fn may_have_direct(
        &self,
        client: ClientId,
        device: &DeviceInfo,
        netdev: &Netdev,
        able: bool,
    ) -> Result<(), ByPair> {
        let known = self.clients.get(&client).ok_or(ByPair::Failed)?;
        if device.settings.xdp_ports == XdpPorts::Pairs {
            return Err(ByPair::Setting);
        }
        if !able {
            return Err(ByPair::OldProgram);
        }
        // The user of a broker that is not root's can write the file with its settings, so that the setting
        // proves nothing there.
        let by_setting =
            device.settings.xdp_ports == XdpPorts::Direct && self.uid == 0 && known.peer.uid == 0;
        if !by_setting {
            known.privilege.map_err(ByPair::Unprivileged)?;
        }
        match self.system.receive_queues(netdev) {
            ..=1 => {}
            count => return Err(ByPair::Queues(count)),
        }
        match self.xdp.direct(netdev.ifindex) {
            Some(_) => Err(ByPair::Taken),
            None => Ok(()),
        }
    }

    /// A program gets a port at a pair.
    pub(super) fn count_by_pair(&mut self, client: ClientId, ifindex: u32, reason: ByPair) {
        let pid = self.clients.get(&client).map(|known| known.peer.pid);
        info!(pid, ifindex, "the AF_XDP port of a program is at a pair: {reason}");
        if let Some(attached) = self.xdp.uplinks.get_mut(&ifindex) {
            // Of reasons with parts, the first one stands for all with its counter.
            let same = attached.by_pair.keys().find(|known| known.counter() == reason.counter()).copied();
            *attached.by_pair.entry(same.unwrap_or(reason)).or_default() += 1;
        }
    }

    /// How many ports of each kind there are at the interface of a device, the process with the direct one,
    /// and how often a program got a pair, by reason. Empty without an XDP program.
    pub(super) fn xdp_ports(&self, device: u32) -> BTreeMap<String, u64> {
        let own = self.devices.all().find(|known| known.id == device && !known.is_iwarp());
        let attached = own.and_then(|known| Some((known.ifindex, self.xdp.uplinks.get(&known.ifindex)?)));
        let Some((ifindex, attached)) = attached else { return BTreeMap::new() };
        let here = self.xdp.ports.iter().filter(|((_, index), _)| *index == ifindex);
        let (mut direct, mut pairs, mut pid) = (0, 0, None);
        for ((client, _), open) in here {
            match open.place {
                Place::Pair(_) => pairs += 1,
                Place::Direct => {
                    direct += 1;
                    pid = self.clients.get(client).map(|known| u64::from(known.peer.pid));
                }
            }
        }
        let counts =
            [("xdp_ports_direct", Some(direct)), ("xdp_ports_pairs", Some(pairs)), ("xdp_direct_pid", pid)];
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?)));
        let reasons = attached.by_pair.iter().map(|(reason, count)| (reason.counter().to_owned(), *count));
        counts.chain(reasons).collect()
    }
}
