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

use arc_swap::ArcSwap;
use ferroce_datapath::udp::RxSocket;
use ferroce_wire::Gid;
use parking_lot::Mutex;

use crate::Qp;
use crate::device::{DeviceInfo, MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::engine::Engine;
use crate::error::{AttachError, DetachError};
use crate::lane::Lane;

/// The queue pairs that are attached to one group, as its lanes see them.
pub(crate) type Members = Arc<ArcSwap<Vec<Arc<Qp>>>>;

/// All groups of a process.
#[derive(Default)]
pub(crate) struct Groups {
    /// By device and address.
    table: Mutex<BTreeMap<(u32, IpAddr), Group>>,
}

struct Group {
    members: Members,
    /// By interface.
    lanes: BTreeMap<u32, Arc<Lane>>,
}

impl Groups {
    /// Attaches `qp` to the group on the interfaces of `device`. A second time changes nothing.
    pub(crate) fn attach(
        &self,
        qp: &Arc<Qp>,
        mgid: Gid,
        device: &DeviceInfo,
        engine: &Engine,
    ) -> Result<(), AttachError> {
        let ip = mgid.to_ip();
        let mut groups = self.table.lock();
        let count = groups.len() as u32;
        let group = groups.get(&(device.id, ip));
        let members = group.map(|group| group.members.load_full()).unwrap_or_default();
        if members.iter().any(|member| Arc::ptr_eq(member, qp)) {
            return Ok(());
        }
        if group.is_none() && count >= MAX_MCAST_GRP {
            return Err(AttachError::Groups { max: MAX_MCAST_GRP });
        }
        if members.len() as u32 >= MAX_MCAST_QP_ATTACH {
            return Err(AttachError::Members { max: MAX_MCAST_QP_ATTACH });
        }
        let fresh = match group {
            Some(_) => None,
            None => Some(Group::open(ip, device, engine)?),
        };
        if !qp.join(mgid) {
            if let Some(group) = fresh {
                group.lanes.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, engine));
            }
            return Err(AttachError::Destroyed);
        }
        let group = groups.entry((device.id, ip)).or_insert_with(|| fresh.expect("made if there was none"));
        // First the lanes, so that whoever polls the queue finds what the new member is given.
        group.lanes.values().for_each(|lane| qp.listen(lane));
        group.publish(members.iter().chain([qp]).cloned().collect());
        Ok(())
    }

    /// Takes `qp` out of the group; the last one to go ends the membership.
    pub(crate) fn detach(
        &self,
        qp: &Arc<Qp>,
        mgid: Gid,
        device: u32,
        engine: &Engine,
    ) -> Result<(), DetachError> {
        let ip = mgid.to_ip();
        let mut groups = self.table.lock();
        let unknown = DetachError::NotAttached { mgid };
        let group = groups.get_mut(&(device, ip)).ok_or(unknown)?;
        let members = group.members.load_full();
        if !members.iter().any(|member| Arc::ptr_eq(member, qp)) {
            return Err(unknown);
        }
        let left: Vec<_> = members.iter().filter(|member| !Arc::ptr_eq(member, qp)).cloned().collect();
        let empty = left.is_empty();
        group.publish(left);
        group.lanes.values().for_each(|lane| qp.listen_no_more(lane));
        qp.leave(mgid);
        if empty && let Some(group) = groups.remove(&(device, ip)) {
            group.lanes.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, engine));
        }
        Ok(())
    }

    /// The addresses of a device changed, perhaps its interfaces too: joins where a group is missing,
    /// leaves what is gone.
    pub(crate) fn follow(&self, device: &DeviceInfo, engine: &Engine) {
        let mut table = self.table.lock();
        let mine = table.iter_mut().filter(|((id, _), _)| *id == device.id);
        for ((_, ip), group) in mine {
            let wanted = interfaces(device, *ip);
            let members = group.members.load_full();
            group.lanes.retain(|ifindex, lane| {
                let keep = wanted.contains(ifindex);
                if !keep {
                    members.iter().for_each(|qp| qp.listen_no_more(lane));
                    close(lane, *ifindex, engine);
                }
                keep
            });
            for ifindex in wanted {
                if group.lanes.contains_key(&ifindex) {
                    continue;
                }
                match RxSocket::join(*ip, ifindex) {
                    Ok(socket) => {
                        let lane = engine.open_group_lane(socket, ifindex, &group.members);
                        members.iter().for_each(|qp| qp.listen(&lane));
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
    fn open(ip: IpAddr, device: &DeviceInfo, engine: &Engine) -> Result<Self, AttachError> {
        let members = Members::default();
        let mut open = BTreeMap::new();
        for ifindex in interfaces(device, ip) {
            match RxSocket::join(ip, ifindex) {
                Ok(socket) => {
                    open.insert(ifindex, engine.open_group_lane(socket, ifindex, &members));
                }
                Err(source) => {
                    open.iter().for_each(|(ifindex, lane)| close(lane, *ifindex, engine));
                    return Err(AttachError::Join { group: ip, ifindex, source });
                }
            }
        }
        Ok(Self { members, lanes: open })
    }

    fn publish(&self, members: Vec<Arc<Qp>>) {
        self.members.store(Arc::new(members));
    }
}

/// The interfaces that the device's addresses of the group's family are on, or the device's own while there are none.
fn interfaces(device: &DeviceInfo, group: IpAddr) -> BTreeSet<u32> {
    let gids = device.gids.iter().filter(|entry| entry.gid.is_ipv4() == group.is_ipv4());
    let found: BTreeSet<u32> = gids.map(|entry| entry.ifindex).collect();
    if found.is_empty() { BTreeSet::from([device.ifindex]) } else { found }
}

fn close(lane: &Arc<Lane>, ifindex: u32, engine: &Engine) {
    engine.close_lane(lane);
    if let Err(error) = lane.leave_group(ifindex) {
        // The interface may be gone, and its memberships with it.
        tracing::debug!(%error, group = %lane.local(), ifindex, "cannot leave a multicast group");
    }
}
