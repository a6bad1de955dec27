//! The way of a connection: a socket, AF_XDP, shared memory, or the rings to the broker.

use std::cell::Cell;
use std::sync::Arc;

use ferroce_paths::permitted;
use ferroce_paths::pipes::{PeerPipe, PipeEnd};
use ferroce_paths::tx::Destination;
use ferroce_paths::tx_path::TxPath;
use ferroce_proto::{AhAttr, QpAttr, QpAttrMask, Service};
use ferroce_wire::{Flow, Gid, LinkLayer, Qpn, RoceVersion};

use super::Qp;
use crate::ah::{self, ResolvedPath};
use crate::congestion;
use crate::error::{ModifyQpError, PathError};
use crate::lane::{ConnectedPath, Lane};

impl Qp {
    /// The pipe to the peer of a connection that `attr` makes, if the peer is a program of this host.
    pub(super) fn find_pipe(&self, attr: &QpAttr, mask: QpAttrMask) -> Option<(Arc<PeerPipe>, Arc<Lane>)> {
        let connects = mask.contains(QpAttrMask::AV | QpAttrMask::DEST_QPN) && attr.ah.is_global;
        let without = matches!(self.service(), Service::Ud | Service::RawPacket | Service::Iwarp);
        if !connects || without {
            return None;
        }
        self.context().engine().pipe_to(attr.ah.dgid.to_ip(), attr.dest_qp.slot())
    }

    /// The lane and socket for a path, from the tables.
    pub(super) fn resolve(
        &self,
        ah: &AhAttr,
        dest_qp: Qpn,
        pipe: Option<(Arc<PeerPipe>, Arc<Lane>)>,
    ) -> Result<ConnectedPath, ModifyQpError> {
        let ResolvedPath { lane, local, mut class, hop_limit, link } = ah::resolve(self.context(), ah)?;
        class.traffic_class = congestion::traffic_class(&self.context().settings(), class.traffic_class);
        if ah.dgid.is_multicast() {
            return Err(PathError::Dgid { dgid: ah.dgid, sgid: Gid::from_ip(local) }.into());
        }
        // The lanes whose packets carry their flow with them: rings and pipes.
        let flow = |link| Flow {
            source: local,
            destination: ah.dgid.to_ip(),
            source_port: ah::rings_port(link, dest_qp.member()),
            traffic_class: class.traffic_class,
            hop_limit,
            link,
        };
        // Without sockets a path of RoCE v2 leads to the rings, unless the peer has a pipe.
        let by_pipe = pipe.filter(|_| link.version == RoceVersion::V2 && !permitted::v2_by_broker());
        if let Some((pipe, lane)) = by_pipe {
            let link = LinkLayer { sl: class.service_level, ..LinkLayer::UDP };
            let flow = flow(link);
            let socket = TxPath::Pipe(PipeEnd::new(pipe, &flow), flow);
            return Ok(ConnectedPath { lane, beside: None, socket });
        }
        if link.ifindex != 0
            && let Some((port, _)) = self.context().engine().lanes().rings()
        {
            let socket = TxPath::Rings(Arc::clone(port), flow(link), Cell::new(0));
            return Ok(self.with_port(ah, ConnectedPath { lane, beside: None, socket }));
        }
        let ends = Destination {
            destination: ah.dgid.to_ip(),
            local_qpn: self.qpn(),
            remote_qpn: dest_qp,
            class,
            hop_limit,
        };
        let socket = lane.tx_sockets().acquire(&ends).map_err(ModifyQpError::Socket)?;
        Ok(self.with_port(ah, ConnectedPath { lane, beside: None, socket: TxPath::Socket(socket) }))
    }

    /// The same path, by the port of AF_XDP if its interface has one.
    fn with_port(&self, ah: &AhAttr, path: ConnectedPath) -> ConnectedPath {
        let port = self.context().engine().port_of(self.endpoint.device);
        let source = self.context().gid(u32::from(ah.sgid_index)).ok().flatten();
        match (port, source) {
            (Some((port, of_port)), Some(source)) => path.with_port(&port, &of_port, &source),
            _ => path,
        }
    }
}
