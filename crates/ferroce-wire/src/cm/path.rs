//! A path between two ports, as a REQ proposes it.

use super::CmTime;
use crate::Gid;
use crate::bits::Bits;

/// A path. LIDs and SL have no meaning on RoCE, but are preserved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Path {
    /// LID of the sender: 0xffff or 0 on RoCE.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Static rate as in `ibv_rate`, 6 bits; 0 means the port's rate.
    pub rate: u8,
    /// IP's type of service.
    pub traffic_class: u8,
    /// IP's time to live.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are in one subnet, without a router between them.
    pub subnet_local: bool,
    /// Local ACK timeout of the receiver's queue pair.
    pub ack_timeout: CmTime,
}

impl Path {
    /// Passes all but the three bits behind the ACK timeout. A LAP has the rate in another place.
    pub(super) fn pass(&self, io: &mut Bits<'_>, in_lap: bool) -> Self {
        let (local_lid, remote_lid) = (io.u16(16, self.local_lid), io.u16(16, self.remote_lid));
        let [local_gid, remote_gid] = [self.local_gid, self.remote_gid].map(|gid| Gid(io.octets(gid.0)));
        let flow_label = io.u32(20, self.flow_label);
        io.skip(4);
        let mut rate = self.rate;
        if !in_lap {
            rate = io.skip(2).u8(6, rate);
        }
        let (traffic_class, hop_limit) = (io.u8(8, self.traffic_class), io.u8(8, self.hop_limit));
        if in_lap {
            rate = io.skip(2).u8(6, rate);
        }
        let (sl, subnet_local) = (io.u8(4, self.sl), io.flag(self.subnet_local));
        let ack_timeout = io.skip(3).time(self.ack_timeout);
        Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label,
            rate,
            traffic_class,
            hop_limit,
            sl,
            subnet_local,
            ack_timeout,
        }
    }
}
