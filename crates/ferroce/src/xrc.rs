//! XRC: several processes of a host would share connections; here, all of one process.

use std::os::fd::AsFd;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{Inode, QpAccess, QpAttr, QpCaps, QpInit, QpState, Service, XrcdInit};
use ferroce_wire::{Qpn, SrqNumber};

use crate::qp::{self, Owned};
use crate::room::{Requests, Room};
use crate::{
    Access, Address, CompletionQueue, Connection, Context, Error, ProtectionDomain, QpOptions, SendOptions,
    SharedReceiveQueue, Slice, SrqOptions, WorkRequest,
};

/// An XRC domain: its targets receive into whichever of its queues a peer names. Clones are the same one; it closes when the
/// last of them and of everything made from it is dropped.
#[derive(Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    shared: Arc<Shared>,
}

struct Shared {
    xrcd: Arc<engine::Xrcd>,
    /// Dropped after the domain.
    _context: Context,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What uses it holds it.
        let _ = self.xrcd.close();
    }
}

impl Context {
    /// Opens an XRC domain that nobody else can open.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, None)
    }

    /// Opens the XRC domain that a file names, and makes it if this is the first to open it.
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

    /// Makes a shared receive queue of this domain, whose memory is of `domain` and whose completions go to `queue`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn shared_receive_queue(
        &self,
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        options: SrqOptions,
    ) -> Result<SharedReceiveQueue, Error> {
        let room = Room::new(queue, Requests::Own(options.max_wr))?;
        SharedReceiveQueue::new(domain, Some((self.clone(), room)), |number| {
            self.shared.xrcd.create_srq(&domain.shared.pd, queue.engine(), options.init(number))
        })
    }

    /// Makes a target. What peers do with memory is looked for in the protection domain of the queue that they name.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target(&self) -> Result<XrcTarget, Error> {
        let qp = self.shared.xrcd.create_target(None, 0)?;
        Ok(XrcTarget { qp: Owned(qp), _domain: self.clone() })
    }
}

/// The end of an XRC connection that answers and receives.
pub struct XrcTarget {
    qp: Owned,
    _domain: XrcDomain,
}

/// The end of an XRC connection that asks. Each request names a queue of the peer's: [`WorkRequest::to_queue`].
pub struct XrcInitiator {
    qp: Owned,
    _domain: ProtectionDomain,
    send: CompletionQueue,
    _room: Room,
}

impl ProtectionDomain {
    /// Makes an initiator; of the sizes, those of the send queue count.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_initiator(&self, send: &CompletionQueue, options: QpOptions) -> Result<XrcInitiator, Error> {
        let QpOptions { max_send_wr, max_send_sge, max_inline, .. } = options;
        let room = Room::new(send, Requests::Own(max_send_wr))?;
        let qp = self.shared.pd.create_qp(QpInit {
            service: Service::XrcInitiator,
            send_cq: Arc::clone(send.engine()),
            recv_cq: Arc::clone(send.engine()),
            srq: None,
            caps: QpCaps { max_send_wr, max_send_sge, max_inline, ..QpCaps::default() },
            sq_sig_all: false,
            user: 0,
        })?;
        Ok(XrcInitiator { qp: Owned(qp), _domain: self.clone(), send: send.clone(), _room: room })
    }
}

/// Brings a queue pair from RESET to RTS.
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
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.0.qpn()
    }

    /// This end of a connection over the GID at `gid_index`.
    pub fn address(&self, gid_index: u8) -> Result<Address, Error> {
        qp::address(&self.qp.0, gid_index)
    }

    /// Answers an initiator from now on, which may do what `access` says. Once only.
    pub fn connect(&self, connection: &Connection, access: Access) -> Result<(), Error> {
        connect(&self.qp.0, connection, access, SendOptions::default())
    }
}

impl XrcInitiator {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.0.qpn()
    }

    /// Where its completions go.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.send
    }

    /// This end of a connection over the GID at `gid_index`.
    pub fn address(&self, gid_index: u8) -> Result<Address, Error> {
        qp::address(&self.qp.0, gid_index)
    }

    /// Sends to a target from now on. Once only.
    pub fn connect(&self, connection: &Connection, options: SendOptions) -> Result<(), Error> {
        connect(&self.qp.0, connection, Access::empty(), options)
    }

    /// Posts send work requests in order, and transmits on this thread. At the first that is refused it stops, see
    /// [`Error::PostSend`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(&self, requests: impl IntoIterator<Item = &'a WorkRequest>) -> Result<(), Error> {
        self.qp
            .0
            .post_send(requests.into_iter().map(WorkRequest::as_wr))
            .map_err(|(index, source)| Error::PostSend { index, source })
    }

    /// Posts one [`WorkRequest::send`] for the peer's queue `number`.
    pub fn send(&self, wr_id: u64, from: &[Slice], number: SrqNumber) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, from).to_queue(number)])
    }
}
