//! Multicast groups: which queue pairs are attached to which, and the lanes that bring their packets.
//!
//! A group is a lane for each interface of its device: a socket of this process that is a member of
//! the IP group there (see [`RxSocket::join`]). Each process gets one copy of a packet and hands it
//! to every queue pair that is attached; the broker has no part in it.
//!
//! Attaching and detaching are slow calls under one lock. It comes before all others in the lock
//! order; lanes read the list of members without a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ferroce_datapath::udp::RxSocket;
use ferroce_wire::Gid;
use parking_lot::Mutex;

use crate::device::{DeviceInfo, MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::error::{AttachError, LimitReached, NotAttached};
use crate::lane::{Endpoint, Lane, Lanes, Members};

/// All groups of a process.
#[derive(Default)]
pub(crate) struct Groups {
    /// The groups, by device and address.
    table: Mutex<BTreeMap<(u32, IpAddr), Group>>,
}

struct Group {
    members: Members,
    /// The lanes of the group, by interface.
    lanes: BTreeMap<u32, Arc<Lane>>,
}

impl Groups {
    /// Attaches an endpoint to the group on the interfaces of `device`. A second time changes nothing.
    pub(crate) fn attach(
        &self,
        endpoint: &Arc<Endpoint>,
        mgid: Gid,
        device: &DeviceInfo,
        lanes: &Lanes,
    ) -> Result<(), AttachError> {
        let ip = mgid.to_ip();
        let mut groups = self.table.lock();
        let count = groups.len() as u32;
        let group = groups.get(&(device.id, ip));
        let members = group.map(|group| group.members.load_full()).unwrap_or_default();
        if members.iter().any(|member| Arc::ptr_eq(member, endpoint)) {
            return Ok(());
        }
        if group.is_none() && count >= MAX_MCAST_GRP {
            return Err(LimitReached { what: "multicast groups", max: MAX_MCAST_GRP }.into());
        }
        if members.len() as u32 >= MAX_MCAST_QP_ATTACH {
            return Err(AttachError::Members { max: MAX_MCAST_QP_ATTACH });
        }
        let fresh = match group {
            Some(_) => None,
            None => Some(Group::open(ip, device, lanes)?),
        };
        if !endpoint.join(mgid) {
            if let Some(group) = fresh {
                group.lanes.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, lanes));
            }
            return Err(AttachError::Destroyed);
        }
        let group = groups.entry((device.id, ip)).or_insert_with(|| fresh.expect("made if there was none"));
        // The lanes come first, so that a thread that polls the queue finds the new member's packets.
        group.lanes.values().for_each(|lane| endpoint.outputs.add_lane(lane));
        group.publish(members.iter().chain([endpoint]).cloned().collect());
        Ok(())
    }

    /// Takes an endpoint out of the group; the last one to go ends the membership.
    pub(crate) fn detach(
        &self,
        endpoint: &Arc<Endpoint>,
        mgid: Gid,
        device: u32,
        lanes: &Lanes,
    ) -> Result<(), NotAttached> {
        let ip = mgid.to_ip();
        let mut groups = self.table.lock();
        let unknown = NotAttached { mgid };
        let group = groups.get_mut(&(device, ip)).ok_or(unknown)?;
        let members = group.members.load_full();
        if !members.iter().any(|member| Arc::ptr_eq(member, endpoint)) {
            return Err(unknown);
        }
        let left: Vec<_> = members.iter().filter(|member| !Arc::ptr_eq(member, endpoint)).cloned().collect();
        let empty = left.is_empty();
        group.publish(left);
        group.lanes.values().for_each(|lane| endpoint.outputs.remove_lane(lane));
        endpoint.leave(mgid);
        if empty && let Some(group) = groups.remove(&(device, ip)) {
            group.lanes.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, lanes));
        }
        Ok(())
    }

    /// The addresses of a device changed, perhaps its interfaces too: joins where a group is missing,
    /// leaves what is gone.
    pub(crate) fn follow(&self, device: &DeviceInfo, lanes: &Lanes) {
        let mut table = self.table.lock();
        let mine = table.iter_mut().filter(|((id, _), _)| *id == device.id);
        for ((_, ip), group) in mine {
            let wanted = interfaces(device, *ip);
            let members = group.members.load_full();
            group.lanes.retain(|ifindex, lane| {
                let keep = wanted.contains(ifindex);
                if !keep {
                    members.iter().for_each(|member| member.outputs.remove_lane(lane));
                    close(lane, *ifindex, lanes);
                }
                keep
            });
            for ifindex in wanted {
                if group.lanes.contains_key(&ifindex) {
                    continue;
                }
                match RxSocket::join(*ip, ifindex) {
                    Ok(socket) => {
                        let lane = lanes.open_group(socket, ifindex, &group.members);
                        members.iter().for_each(|member| member.outputs.add_lane(&lane));
                        group.lanes.insert(ifindex, lane);
                    }
                    Err(error) => {
                        tracing::warn!(%error, group = %ip, ifindex, "cannot join a multicast group")
                    }
                }
            }
        }
    }
}

impl Group {
    fn open(ip: IpAddr, device: &DeviceInfo, lanes: &Lanes) -> Result<Self, AttachError> {
        let members = Members::default();
        let mut open = BTreeMap::new();
        for ifindex in interfaces(device, ip) {
            match RxSocket::join(ip, ifindex) {
                Ok(socket) => {
                    open.insert(ifindex, lanes.open_group(socket, ifindex, &members));
                }
                Err(source) => {
                    open.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, lanes));
                    return Err(AttachError::Join { group: ip, ifindex, source });
                }
            }
        }
        Ok(Self { members, lanes: open })
    }

    fn publish(&self, members: Vec<Arc<Endpoint>>) {
        self.members.store(Arc::new(members));
    }
}

/// The interfaces that the device's addresses of the group's family are on, or the device's own while there
/// are none.
fn interfaces(device: &DeviceInfo, group: IpAddr) -> BTreeSet<u32> {
    let gids = device.gids.iter().filter(|entry| entry.gid.is_ipv4() == group.is_ipv4());
    let found: BTreeSet<u32> = gids.map(|entry| entry.ifindex).collect();
    if found.is_empty() { BTreeSet::from([device.ifindex]) } else { found }
}

fn close(lane: &Arc<Lane>, ifindex: u32, lanes: &Lanes) {
    lanes.close(lane);
    if let Err(error) = lane.leave_group(ifindex) {
        // The interface may be gone, and its memberships with it.
        tracing::debug!(%error, group = %lane.local(), ifindex, "cannot leave a multicast group");
    }
}
