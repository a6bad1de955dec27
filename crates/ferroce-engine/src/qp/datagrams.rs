//! Where the datagrams of a queue pair come in and leave: on all lanes of its device, from the sockets of address handles.

use std::sync::Arc;

use ferroce_proto::{QpState, SendTo, SendWr, Service};

use super::Qp;
use super::locked::Core;
use crate::lane::Lane;

impl Qp {
    /// Whoever waits for its completions receives on this lane.
    pub(crate) fn listen(&self, lane: &Arc<Lane>) {
        self.cqs().for_each(|cq| cq.add_lane(lane));
        self.xrcd().inspect(|xrcd| xrcd.domain().add_lane(lane));
    }

    pub(crate) fn listen_no_more(&self, lane: &Arc<Lane>) {
        self.cqs().for_each(|cq| cq.remove_lane(lane));
        self.xrcd().inspect(|xrcd| xrcd.domain().remove_lane(lane));
    }

    /// An address of this process appeared or went: datagrams come to any address of the device.
    pub(crate) fn follow_lanes(&self) {
        if self.service == Service::Ud {
            self.settle_in(&mut self.core.lock());
        }
    }

    /// From RTR on, datagrams come in on all lanes of the device. Frames have a lane of their own.
    pub(super) fn settle_in(&self, core: &mut Core) {
        let hears = !matches!(core.transport.state(), QpState::Reset | QpState::Init);
        let wanted = match (&self.frames, self.service) {
            _ if core.destroyed => Vec::new(),
            (Some(frames), _) => vec![Arc::clone(&frames.lane)],
            (None, Service::Ud) if hears => self.context().lanes(),
            (None, _) => Vec::new(),
        };
        let before = std::mem::replace(&mut core.homes, wanted);
        let is_in =
            |lane: &Arc<Lane>, lanes: &[Arc<Lane>]| lanes.iter().any(|other| Arc::ptr_eq(lane, other));
        for lane in core.homes.iter().filter(|lane| !is_in(lane, &before)) {
            lane.receive_headers();
            self.listen(lane);
        }
        before.iter().filter(|lane| !is_in(lane, &core.homes)).for_each(|lane| self.listen_no_more(lane));
        let (first, now) = (before.first(), core.homes.first());
        if first.map(Arc::as_ptr) != now.map(Arc::as_ptr) {
            if let Some(lane) = first {
                lane.detach(self);
            }
            if let (Some(lane), Some(me)) = (now, self.me.upgrade()) {
                lane.attach(&me);
            }
        }
    }

    /// A datagram leaves from the socket that its address handle opened.
    pub(super) fn open_outlet(&self, core: &mut Core, wr: &SendWr<'_>) {
        if let (SendTo::Datagram { path, .. }, Service::Ud) = (&wr.to, self.service) {
            core.outlets.open(path, self.context().engine());
        }
    }
}
