//! XRC: connections that several processes of a host may share; here, all in one process.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{QpAccess, QpAttr, QpCaps, QpInit, QpState, Service};
use ferroce_wire::{Qpn, SrqNumber};

use crate::capacity::Requests;
use crate::error::Cause;
use crate::qp::{self, Owned};
use crate::shared::Capacity;
use crate::{
    Access, Address, CompletionQueue, Connection, Error, ProtectionDomain, QpOptions, SendOptions, Slice,
    WorkRequest, XrcDomain,
};

impl XrcDomain {
    /// Creates a target. Peers access memory of the protection domain of the queue that they name.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target(&self) -> Result<XrcTarget, Error> {
        let qp = self.shared.xrcd.create_target(None, 0)?;
        Ok(XrcTarget { qp: Owned(qp), _domain: self.clone() })
    }
}

/// The responding and receiving end of an XRC connection.
pub struct XrcTarget {
    qp: Owned,
    _domain: XrcDomain,
}

/// The requesting end of an XRC connection. Each request names a queue of the peer:
/// [`WorkRequest::to_queue`].
pub struct XrcInitiator {
    qp: Owned,
    _domain: ProtectionDomain,
    send: CompletionQueue,
    _capacity: Capacity,
}

impl ProtectionDomain {
    /// Creates an initiator, which uses only the send sizes of the options.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_initiator(&self, send: &CompletionQueue, options: QpOptions) -> Result<XrcInitiator, Error> {
        let QpOptions { max_send_wr, max_send_sge, max_inline, .. } = options;
        let capacity = Capacity::new(&send.shared, Requests::Own(max_send_wr))?;
        let qp = self.shared.pd.create_qp(QpInit {
            service: Service::XrcInitiator,
            send_cq: Arc::clone(send.engine()),
            recv_cq: Arc::clone(send.engine()),
            srq: None,
            caps: QpCaps { max_send_wr, max_send_sge, max_inline, ..QpCaps::default() },
            sq_sig_all: false,
            user: 0,
        })?;
        Ok(XrcInitiator { qp: Owned(qp), _domain: self.clone(), send: send.clone(), _capacity: capacity })
    }
}

/// Moves a queue pair from RESET to RTS.
fn connect(
    qp: &engine::Qp,
    connection: &Connection,
    access: Access,
    options: SendOptions,
) -> Result<(), Error> {
    let receiving = qp::receiving(connection)?;
    let access = QpAccess::from_bits_retain(access.engine().bits());
    let init = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
    for attr in [init, receiving, qp::sending(connection.local.psn, options)] {
        qp.modify(&attr, engine::bring_up_mask(qp.service(), attr.state))?;
    }
    Ok(())
}

impl XrcTarget {
    /// Returns its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.0.qpn()
    }

    /// Returns this end's address of a connection over the GID at `gid_index`.
    pub fn address(&self, gid_index: u8) -> Result<Address, Error> {
        qp::address(&self.qp.0, gid_index)
    }

    /// Accepts requests of an initiator with the rights `access` from now on. Call it once.
    pub fn connect(&self, connection: &Connection, access: Access) -> Result<(), Error> {
        connect(&self.qp.0, connection, access, SendOptions::default())
    }
}

impl XrcInitiator {
    /// Returns its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.0.qpn()
    }

    /// Returns the completion queue of its sends.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.send
    }

    /// Returns this end's address of a connection over the GID at `gid_index`.
    pub fn address(&self, gid_index: u8) -> Result<Address, Error> {
        qp::address(&self.qp.0, gid_index)
    }

    /// Connects to a target. Call it once.
    pub fn connect(&self, connection: &Connection, options: SendOptions) -> Result<(), Error> {
        connect(&self.qp.0, connection, Access::empty(), options)
    }

    /// Posts send work requests in order, and transmits on this thread. It stops at the first one that is
    /// refused, see [`Error::index`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(&self, requests: impl IntoIterator<Item = &'a WorkRequest>) -> Result<(), Error> {
        self.qp
            .0
            .post_send(requests.into_iter().map(WorkRequest::as_wr))
            .map_err(|(index, source)| Cause::PostSend(index, source).into())
    }

    /// Posts one [`WorkRequest::send`] to the peer's queue `number`.
    pub fn send(&self, wr_id: u64, from: &[Slice], number: SrqNumber) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, from).to_queue(number)])
    }
}
