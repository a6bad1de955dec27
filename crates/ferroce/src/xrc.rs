//! XRC: connections that several processes of a host may share; here, all in one process.

use std::os::fd::AsFd;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{Inode, QpAccess, QpAttr, QpCaps, QpInit, QpState, Service, XrcdInit};
use ferroce_wire::{Qpn, SrqNumber};

use crate::capacity::{Capacity, Requests};
use crate::qp::{self, Owned};
use crate::{
    Access, Address, CompletionQueue, Connection, Context, Error, ProtectionDomain, QpOptions, SendOptions,
    SharedReceiveQueue, Slice, SrqOptions, WorkRequest,
};

/// An XRC domain: its targets receive into the queue that the peer names. Clones are the same one; it closes after the
/// last clone and the last object created from it are dropped.
#[derive(Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    shared: Arc<Shared>,
}

struct Shared {
    xrcd: Arc<engine::Xrcd>,
    _context: Context,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The domain is unused, because each user holds a reference.
        let _ = self.xrcd.close();
    }
}

impl Context {
    /// Opens a private XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, None)
    }

    /// Opens the XRC domain of a file; the first opener creates it.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain_of(&self, file: impl AsFd) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, Some(Inode::of(file.as_fd())?))
    }
}

impl XrcDomain {
    fn open(context: &Context, inode: Option<Inode>) -> Result<Self, Error> {
        let init = XrcdInit { inode, create: true, exclusive: false };
        let xrcd = context.open.context.open_xrcd(&init)?;
        Ok(Self { shared: Arc::new(Shared { xrcd, _context: context.clone() }) })
    }

    /// Creates a shared receive queue of this domain, with memory of `domain` and completions in `queue`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn shared_receive_queue(
        &self,
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        options: SrqOptions,
    ) -> Result<SharedReceiveQueue, Error> {
        let capacity = Capacity::new(queue, Requests::Own(options.max_wr))?;
        SharedReceiveQueue::new(domain, Some((self.clone(), capacity)), |number| {
            self.shared.xrcd.create_srq(&domain.shared.pd, queue.engine(), options.init(number))
        })
    }

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

/// The requesting end of an XRC connection. Each request names a queue of the peer: [`WorkRequest::to_queue`].
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
        let capacity = Capacity::new(send, Requests::Own(max_send_wr))?;
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
    let access = QpAccess::from_bits_retain(access.bits());
    let init = QpAttr { qp_state: QpState::Init, access, ..QpAttr::default() };
    for attr in [init, receiving, qp::sending(connection.local.psn, options)] {
        qp.modify(&attr, engine::bring_up_mask(qp.service(), attr.qp_state))?;
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

    /// Posts send work requests in order, and transmits on this thread. It stops at the first one that is refused, see
    /// [`Error::PostSend`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(&self, requests: impl IntoIterator<Item = &'a WorkRequest>) -> Result<(), Error> {
        self.qp
            .0
            .post_send(requests.into_iter().map(WorkRequest::as_wr))
            .map_err(|(index, source)| Error::PostSend { index, source })
    }

    /// Posts one [`WorkRequest::send`] to the peer's queue `number`.
    pub fn send(&self, wr_id: u64, from: &[Slice], number: SrqNumber) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, from).to_queue(number)])
    }
}
