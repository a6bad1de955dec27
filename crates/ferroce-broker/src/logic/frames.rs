//! The addresses, interfaces and programs whose packets travel as frames.

use std::collections::{BTreeMap, BTreeSet};

use ferroce_ipc::{DatapathState, DeviceInfo, GidEntry};
use ferroce_wire::RoceVersion;

use super::Broker;
use super::clients::Client;
use crate::ClientId;
use crate::slots::member_of;
use crate::switch::{PortView, ProgramView, RelayView, View, Way};
use crate::system::System;
use ferroce_host::netdev::{Address, Netdev};

impl<S: System> Broker<S> {
    /// Another number than before, if [`Broker::switch_view`] may be another.
    pub fn view_changes(&self) -> u64 {
        self.view_changes
    }

    /// The configuration of the switch.
    pub fn switch_view(&self) -> View {
        // The others of IP go by sockets; who sends them as frames all the same may use the same addresses.
        let of = |devices: &[DeviceInfo]| -> BTreeSet<Way> {
            let entries = devices.iter().flat_map(|device| &device.gids);
            let way = |e: &GidEntry| Way { version: e.gid_type.into(), gid: e.gid, ifindex: e.ifindex };
            entries.map(way).collect()
        };
        let all: Vec<DeviceInfo> = self.links.devices.all().cloned().collect();
        let ways = of(&all);
        let frames_v2 = self.clients.iter().any(|(_, known)| known.frames_v2);
        let relays = self.relays(&ways);
        let dpdk = all.iter().any(|device| device.datapath == DatapathState::Dpdk);
        if !frames_v2 && !dpdk && relays.is_empty() && !ways.iter().any(|way| way.version == RoceVersion::V1)
        {
            return View::default();
        }
        let port = |n: &&Netdev| ways.iter().any(|way| way.ifindex == n.ifindex);
        let ports = self.links.host.iter().filter(port).map(|n| PortView {
            ifindex: n.ifindex,
            mac: n.mac,
            mtu: n.mtu,
            vlan: n.lower.zip(n.vlan.as_ref().map(|vlan| vlan.id)),
            loopback: n.loopback,
        });
        // The slots are searched once, and each list of devices once, however many programs there are.
        let mut held = self.leases.slots.by_client();
        let mut seen: BTreeMap<Option<u32>, BTreeSet<Way>> = BTreeMap::new();
        let program = |(client, known): (ClientId, &Client)| {
            let slots = held.remove(&client)?;
            let ways = seen.entry(known.view).or_insert_with(|| of(&self.links.view(known.view))).clone();
            let relayed = slots.first().is_some_and(|slot| self.leases.slots.is_divided(member_of(*slot)));
            Some(ProgramView { client, slots, ways, v2: known.frames_v2, relayed })
        };
        let programs = self.clients.iter().filter_map(program).collect();
        View { ports: ports.collect(), programs, ways, relays, epoch: self.addresses.groups.changes() }
    }

    /// The divided members, on each address.
    fn relays(&self, ways: &BTreeSet<Way>) -> Vec<RelayView> {
        let members: Vec<u8> = self.leases.slots.divided().collect();
        let mut relays = Vec::new();
        for way in ways.iter().filter(|way| way.version == RoceVersion::V2) {
            let address = Address::of(way.gid.to_ip(), way.ifindex);
            let checks = self.checks_crc(address);
            let has = |member: &&u8| self.addresses.groups.has(address, &[**member]);
            let of = |member: &u8| RelayView { address, member: *member, ifindex: way.ifindex, checks };
            relays.extend(members.iter().filter(has).map(of));
        }
        relays.sort_unstable();
        relays.dedup_by_key(|relay| (relay.address, relay.member));
        relays
    }
}
