//! The paths of datagrams: a queue pair receives them on all lanes of its device, and sends them from the
//! sockets of address handles.

use std::sync::Arc;

use ferroce_proto::{SendTo, SendWr};
use ferroce_wire::Qkey;
use rustix::thread::{CapabilitySet, capabilities};

use super::Qp;
use crate::lane::{Attachment, Core};

impl Qp {
    /// From RTR on, datagrams come in on all lanes of the device, and leave by its port.
    pub(super) fn follow_lanes(&self, core: &mut Core) {
        let (engine, device) = (self.context().engine(), self.endpoint.device);
        self.endpoint.follow_lanes(core, || engine.lanes_of(device), || engine.port_for_datagrams(device));
    }

    /// A datagram leaves from the socket that its address handle opened.
    pub(super) fn open_tx_path(&self, core: &mut Core, wr: &SendWr<'_>) {
        if let (SendTo::Datagram { path, .. }, Attachment::Datagrams(datagrams)) =
            (&wr.to, &mut core.attachment)
        {
            let lanes = self.context().engine().lanes();
            let rings = || lanes.rings().map(|(port, _)| Arc::clone(port));
            datagrams.paths.open(path, rings, || lanes.datagram_socket(path));
        }
    }

    /// Whether this thread may give a queue pair the Q_Key. One with the highest bit set is controlled (IBTA
    /// 10.2.5) and needs CAP_NET_RAW, here in the user namespace of the program (Linux 6.12, `modify_qp` in
    /// `uverbs_cmd.c`).
    pub(super) fn may_set(qkey: Qkey) -> bool {
        let may = || capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::NET_RAW));
        qkey.value() >> 31 == 0 || may()
    }
}
