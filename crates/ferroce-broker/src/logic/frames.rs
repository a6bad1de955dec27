//! The addresses, interfaces and programs whose packets travel as frames.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use ferroce_ipc::{DeviceInfo, GidEntry, Refusal, RefusalCode};
use ferroce_wire::RoceVersion;

use super::{Broker, Client, Output};
use crate::switch::{PortView, ProgramView, View, Way};
use crate::system::System;
use crate::{ClientId, refusal};
use ferroce_host::netdev::Netdev;

impl<S: System> Broker<S> {
    /// A program wants rings: those who have them send from queue pairs of their slots.
    pub(super) fn open_rings(
        &mut self,
        client: ClientId,
        id: u32,
        v2: bool,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Option<Refusal>> {
        if self.slots.of(client).is_empty() {
            let sentence = "rings are for programs that hold slots";
            return Err(Some(refusal(RefusalCode::BadRequest, sentence)));
        }
        let bell = descriptors.into_iter().next().ok_or(None)?;
        if let Some(known) = self.clients.get_mut(&client) {
            known.frames_v2 = v2;
        }
        self.view_changes += 1;
        self.output.push_back(Output::OpenRings { client, id, bell });
        Ok(())
    }

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
        let all: Vec<DeviceInfo> = self.devices.all().cloned().collect();
        let ways = of(&all);
        let frames_v2 = self.clients.values().any(|known| known.frames_v2);
        if !frames_v2 && !ways.iter().any(|way| way.version == RoceVersion::V1) {
            return View::default();
        }
        let port = |n: &&Netdev| ways.iter().any(|way| way.ifindex == n.ifindex);
        let ports = self.host.iter().filter(port).map(|n| PortView {
            ifindex: n.ifindex,
            mac: n.mac,
            mtu: n.mtu,
            vlan: n.lower.zip(n.vlan.as_ref().map(|vlan| vlan.id)),
            loopback: n.loopback,
        });
        let program = |(client, known): (&ClientId, &Client)| {
            let slots = self.slots.of(*client);
            let ways = of(&self.view(known.view));
            (!slots.is_empty()).then_some(ProgramView { client: *client, slots, ways, v2: known.frames_v2 })
        };
        View { ports: ports.collect(), programs: self.clients.iter().filter_map(program).collect(), ways }
    }
}
