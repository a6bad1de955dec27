//! The path of a connection on an interface that has a port of AF_XDP.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_paths::clock;
use ferroce_paths::tx_path::TxPath;
use ferroce_paths::xdp::XdpPort;

use super::{Attachment, ConnectedPath, Core, Endpoint};
use crate::device::GidEntry;
use crate::lane::Lane;

impl ConnectedPath {
    /// Changes the path for an interface that has a port of AF_XDP, whose lane is `of_port`; `source` is the
    /// local GID. Packets of a remote peer arrive there, and packets of RoCE v2 also leave there.
    pub(crate) fn with_port(self, port: &Arc<XdpPort>, of_port: &Arc<Lane>, source: &GidEntry) -> Self {
        let Self { lane, socket, .. } = self;
        let destination = socket.flow().destination;
        match socket {
            TxPath::Socket(sender) if port.reaches(source, destination) => {
                port.prepare(destination, &sender, clock::now());
                let socket = TxPath::Xdp(Arc::clone(port), sender);
                Self { lane: Arc::clone(of_port), beside: Some(lane), socket }
            }
            socket @ (TxPath::Socket(_) | TxPath::Rings(..)) => {
                let arrives = source.ifindex == port.ifindex() && !port.is_local(destination);
                Self { lane, beside: arrives.then(|| Arc::clone(of_port)), socket }
            }
            socket @ (TxPath::Xdp(..) | TxPath::Pipe(..)) => Self { lane, beside: None, socket },
        }
    }
}

impl Endpoint {
    /// A port was opened on the interface of the device, whose GIDs are `gids`. A connection goes on by it.
    pub(crate) fn follow_port(
        &self,
        core: &mut Core,
        port: &Arc<XdpPort>,
        of_port: &Arc<Lane>,
        gids: &[GidEntry],
    ) {
        let Some(path) = core.path().filter(|path| path.beside.is_none() && !core.destroyed) else {
            return;
        };
        let from = path.socket.flow().source;
        let sgid_index = core.transport.query().ah.sgid_index;
        let is_source = |entry: &&GidEntry| entry.index == u16::from(sgid_index) && entry.gid.to_ip() == from;
        let Some(source) = gids.iter().find(is_source) else { return };
        self.change_lanes(core, |attachment| {
            if let Attachment::Connected(path) = attachment {
                *path = path.take().map(|path| path.with_port(port, of_port, source));
            }
        });
        if let Some(home) = core.attachment.lanes().next() {
            home.note_deadline(self.deadline.load(Ordering::SeqCst));
        }
    }
}
