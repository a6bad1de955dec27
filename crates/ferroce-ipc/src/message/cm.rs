//! Connection management between a program and the broker, which owns queue pair 1 and the port spaces.
//!
//! A program names its binds by handles of its own choice, so that it can make them again at another broker, and
//! connections by their communication id. MADs stand for the many fields of a REQ, REP, REJ, SIDR_REQ or SIDR_REP; of one
//! that goes to the broker only what a program decides is looked at.

use std::net::IpAddr;

use ferroce_wire::cm::{
    CmTime, CommId, Mad, Message as CmMessage, PortSpace, Rej, Rep, Req, SidrRep, SidrReq,
};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Gid, Psn};

use crate::codec::{MessageError, Reader, Writer};

/// Ports of a block: the first is a multiple of this.
pub const PORT_BLOCK: u16 = 64;
/// Most octets of a connection's record.
pub const MAX_RECORD: usize = 1024;

/// What a program wants of connection management. Answered by [`super::Message::CmDone`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmRequest {
    /// Takes a port. The answer has its number.
    Bind(CmBind),
    /// Takes requests at a port from now on: this many may wait, 0 for as many as there may be.
    Listen {
        /// The bind.
        handle: u64,
        /// Requests that may wait.
        backlog: u16,
    },
    /// Gives a port back, and listens no more.
    Unbind {
        /// The bind.
        handle: u64,
    },
    /// Asks a peer for a connection. The answer has its id.
    Connect(Box<CmConnect>),
    /// Agrees to a request: `local_id` names it.
    Accept(Box<Rep>),
    /// Refuses a request or a reply: `local_id` names it.
    Reject(Box<Rej>),
    /// The queue pair is set up after a reply; or data came before the RTU.
    Establish(CommId),
    /// Ends a connection, or agrees that the peer ends it.
    Disconnect(CommId),
    /// No more news of a connection, question or request; it is ended as its state wants.
    Close(CommId),
    /// A decision will take longer.
    Mra {
        /// The request, or the connection with a reply.
        id: CommId,
        /// How much longer.
        service_timeout: CmTime,
        /// Whether the peer is told now, or when it asks again.
        at_once: bool,
    },
    /// Asks a peer for the queue pair of datagrams behind a service. The answer has the question's id.
    Ask(Box<CmAsk>),
    /// Answers such a question: `request_id` names it.
    Answer(Box<SidrRep>),
    /// To a new broker: a connection as the earlier one described it.
    Restore {
        /// Which.
        id: CommId,
        /// The last record.
        record: Vec<u8>,
    },
    /// To a new broker: that was all.
    Restored,
    /// Takes [`PORT_BLOCK`] ports that nobody has, of those for whom any will do, for connections of this program: it
    /// gives them out and takes them back by itself, and the answer has the first. What a program has already, and what a
    /// new broker is told of, has its number.
    PortBlock {
        /// Which ports.
        space: PortSpace,
        /// The first, 0 for any that are free.
        first: u16,
    },
    /// Gives a block back.
    PortBlockReturn {
        /// Which ports.
        space: PortSpace,
        /// The first.
        first: u16,
    },
}

/// A port to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmBind {
    /// The program's own name for it, not in use.
    pub handle: u64,
    /// Which ports.
    pub space: PortSpace,
    /// 0: any that is free.
    pub port: u16,
    /// The unspecified address of a family: all of them; `::` means those of IPv4 as well, unless `v6_only`.
    pub address: IpAddr,
    /// Interface of a link-local address, else 0.
    pub interface: u32,
    /// Others that say so too may have the same port, as long as none of them listens.
    pub reuse: bool,
    /// IPv6 alone.
    pub v6_only: bool,
}

/// Between whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmRoute {
    /// An address of this host.
    pub local: IpAddr,
    /// The peer's, of the same family.
    pub remote: IpAddr,
    /// Interface of a link-local address, else 0.
    pub interface: u32,
}

/// A connection to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmConnect {
    /// Between whom.
    pub route: CmRoute,
    /// The peer connects to us at the same time; nobody listens.
    pub peer_to_peer: bool,
    /// How long a packet may be under way.
    pub packet_life: CmTime,
    /// How long our queue pair may take to acknowledge.
    pub ack_delay: CmTime,
    /// What to ask. Its id, addresses and times of the path are the broker's business.
    pub req: Req,
}

/// A question for a queue pair of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmAsk {
    /// Between whom.
    pub route: CmRoute,
    /// How soon the peer answers.
    pub response_timeout: CmTime,
    /// How often to ask again, at most 15.
    pub retries: u8,
    /// IP's type of service.
    pub traffic_class: u8,
    /// What to ask. Its id is the broker's business.
    pub req: SidrReq,
}

/// A [`CmRequest`] was done.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CmDone {
    /// The connection or question that it was about, or that there is now.
    pub id: CommId,
    /// The port that was bound.
    pub port: u16,
    /// Orders records: a larger one is newer, of one broker.
    pub serial: u64,
    /// The connection for another broker; empty if there is none.
    pub record: Vec<u8>,
}

/// What happened to a connection, question or request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmNews {
    /// Which.
    pub id: CommId,
    /// As in [`CmDone`].
    pub serial: u64,
    /// The connection for another broker; empty: there is none any more.
    pub record: Vec<u8>,
    /// What.
    pub what: CmWhat,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmWhat {
    /// Somebody wants a connection.
    Request {
        /// The bind that listens; `None` if this is a peer that was asked too.
        handle: Option<u64>,
        /// Between whom, as the packet said.
        route: CmRoute,
        /// The PSN that our queue pair is to expect first.
        starting_psn: Psn,
        /// What they want.
        req: Box<Req>,
    },
    /// The peer agreed.
    Reply(Box<Rep>),
    /// The connection is there at both ends.
    Established,
    /// The peer refused, or took back what it had asked for.
    Rejected(Box<Rej>),
    /// The peer does not answer.
    Unreachable,
    /// The connection ends.
    Disconnected(CmEnd),
    /// Time-wait is over.
    TimeWaitOver,
    /// Somebody asks for a queue pair of datagrams.
    SidrRequest {
        /// The bind that listens.
        handle: u64,
        /// Between whom, as the packet said.
        route: CmRoute,
        /// What they want.
        req: Box<SidrReq>,
    },
    /// The answer to a question.
    SidrReply(Box<SidrRep>),
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CmEnd {
    /// The peer asked for it: agree by [`CmRequest::Disconnect`].
    ByPeer = 0,
    /// We asked, and the peer agreed.
    ByUs = 1,
    /// We asked, and the peer is silent.
    NoAnswer = 2,
}

/// The one layout of all three: each uses the fields it needs, the others are zero.
struct Layout {
    kind: u8,
    flags: u8,
    /// A code, a number of retries.
    small: u8,
    times: [u8; 2],
    class: u8,
    port: u16,
    space: u16,
    id: u32,
    interface: u32,
    psn: u32,
    handle: u64,
    serial: u64,
    local: Gid,
    remote: Gid,
    mad: Option<CmMessage>,
    record: Vec<u8>,
}

/// Both families' unspecified address, for messages about no address.
const NOWHERE: Gid = Gid([0; 16]);

impl Layout {
    const fn new(kind: u8) -> Self {
        Self {
            kind,
            flags: 0,
            small: 0,
            times: [0; 2],
            class: 0,
            port: 0,
            space: 0,
            id: 0,
            interface: 0,
            psn: 0,
            handle: 0,
            serial: 0,
            local: NOWHERE,
            remote: NOWHERE,
            mad: None,
            record: Vec::new(),
        }
    }

    fn of(kind: u8, id: CommId) -> Self {
        Self { id: id.0, ..Self::new(kind) }
    }

    fn by(kind: u8, handle: u64) -> Self {
        Self { handle, ..Self::new(kind) }
    }

    fn with(self, mad: CmMessage) -> Self {
        Self { mad: Some(mad), ..self }
    }

    fn along(self, route: &CmRoute) -> Self {
        let CmRoute { local, remote, interface } = *route;
        Self { local: Gid::from_ip(local), remote: Gid::from_ip(remote), interface, ..self }
    }

    /// Appends it; returns where the fixed part ends.
    fn write(&self, mut w: Writer<'_>) -> Result<usize, MessageError> {
        if self.record.len() > MAX_RECORD {
            return Err(MessageError::TooLong { field: "record" });
        }
        w.u8(self.kind);
        w.u8(self.flags);
        w.u8(self.small);
        w.bytes(&self.times);
        w.u8(self.class);
        w.u16(self.port);
        w.u16(self.space);
        w.u16(self.record.len() as u16);
        w.u32(self.id);
        w.u32(self.interface);
        w.u32(self.psn);
        w.u64(self.handle);
        w.u64(self.serial);
        w.bytes(&self.local.0);
        w.bytes(&self.remote.0);
        w.u8(self.mad.is_some().into());
        let end = w.0.len();
        if let Some(message) = self.mad {
            w.bytes(&Mad { transaction_id: 0, message }.emit());
        }
        w.bytes(&self.record);
        Ok(end)
    }

    fn read(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Self, MessageError> {
        let mut layout = Self {
            kind: body.u8()?,
            flags: body.u8()?,
            small: body.u8()?,
            times: body.array()?,
            class: body.u8()?,
            port: body.u16()?,
            space: body.u16()?,
            ..Self::new(0)
        };
        let record = usize::from(body.u16()?);
        if record > MAX_RECORD {
            return Err(MessageError::Value { field: "record", value: record as u64 });
        }
        layout.id = body.u32()?;
        layout.interface = body.u32()?;
        layout.psn = body.u32()?;
        layout.handle = body.u64()?;
        layout.serial = body.u64()?;
        layout.local = Gid(body.array()?);
        layout.remote = Gid(body.array()?);
        if body.bool("mad")? {
            let mad = Mad::parse(tail.take(MAD_LEN)?);
            layout.mad = Some(mad.map_err(|_| MessageError::Value { field: "mad", value: 0 })?.message);
        }
        layout.record = tail.take(record)?.to_vec();
        Ok(layout)
    }

    const fn id(&self) -> CommId {
        CommId(self.id)
    }

    fn flag(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    fn time(&self, which: usize) -> Result<CmTime, MessageError> {
        let code = self.times.get(which).copied().unwrap_or(0);
        CmTime::new(code).ok_or(MessageError::Value { field: "time", value: code.into() })
    }

    fn space(&self) -> Result<PortSpace, MessageError> {
        PortSpace::from_code(self.space)
            .ok_or(MessageError::Value { field: "space", value: self.space.into() })
    }

    fn route(&self) -> Result<CmRoute, MessageError> {
        let route =
            CmRoute { local: self.local.to_ip(), remote: self.remote.to_ip(), interface: self.interface };
        match route.local.is_ipv4() == route.remote.is_ipv4() {
            true => Ok(route),
            false => Err(MessageError::Value { field: "remote", value: 0 }),
        }
    }
}

/// The MAD of a message that has to be of one kind.
macro_rules! expect {
    ($layout:expr, $variant:ident) => {
        match $layout.mad {
            Some(CmMessage::$variant(message)) => message,
            _ => return Err(MessageError::Value { field: "mad", value: 1 }),
        }
    };
}

const REUSE: u8 = 1;
const V6_ONLY: u8 = 2;
const PEER_TO_PEER: u8 = 1;
const AT_ONCE: u8 = 1;
const HAS_HANDLE: u8 = 1;

impl CmRequest {
    pub(super) fn encode(&self, w: Writer<'_>) -> Result<usize, MessageError> {
        let layout = match self {
            Self::Bind(bind) => Layout {
                flags: if bind.reuse { REUSE } else { 0 } | if bind.v6_only { V6_ONLY } else { 0 },
                port: bind.port,
                space: bind.space as u16,
                interface: bind.interface,
                local: Gid::from_ip(bind.address),
                ..Layout::by(1, bind.handle)
            },
            Self::Listen { handle, backlog } => Layout { port: *backlog, ..Layout::by(2, *handle) },
            Self::Unbind { handle } => Layout::by(3, *handle),
            Self::Connect(connect) => Layout {
                flags: if connect.peer_to_peer { PEER_TO_PEER } else { 0 },
                times: [connect.packet_life.code(), connect.ack_delay.code()],
                ..Layout::new(4).along(&connect.route).with(CmMessage::Req(connect.req))
            },
            Self::Accept(rep) => Layout::of(5, rep.local_id).with(CmMessage::Rep(**rep)),
            Self::Reject(rej) => Layout::of(6, rej.local_id).with(CmMessage::Rej(**rej)),
            Self::Establish(id) => Layout::of(7, *id),
            Self::Disconnect(id) => Layout::of(8, *id),
            Self::Close(id) => Layout::of(9, *id),
            Self::Mra { id, service_timeout, at_once } => Layout {
                flags: if *at_once { AT_ONCE } else { 0 },
                times: [service_timeout.code(), 0],
                ..Layout::of(10, *id)
            },
            Self::Ask(ask) => Layout {
                small: ask.retries,
                class: ask.traffic_class,
                times: [ask.response_timeout.code(), 0],
                ..Layout::new(11).along(&ask.route).with(CmMessage::SidrReq(ask.req))
            },
            Self::Answer(rep) => Layout::of(12, rep.request_id).with(CmMessage::SidrRep(**rep)),
            Self::Restore { id, record } => Layout { record: record.clone(), ..Layout::of(13, *id) },
            Self::Restored => Layout::new(14),
            Self::PortBlock { space, first } => {
                Layout { space: *space as u16, port: *first, ..Layout::new(15) }
            }
            Self::PortBlockReturn { space, first } => {
                Layout { space: *space as u16, port: *first, ..Layout::new(16) }
            }
        };
        layout.write(w)
    }

    pub(super) fn decode(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Self, MessageError> {
        let layout = Layout::read(body, tail)?;
        let id = layout.id();
        Ok(match layout.kind {
            1 => Self::Bind(CmBind {
                handle: layout.handle,
                space: layout.space()?,
                port: layout.port,
                address: layout.local.to_ip(),
                interface: layout.interface,
                reuse: layout.flag(REUSE),
                v6_only: layout.flag(V6_ONLY),
            }),
            2 => Self::Listen { handle: layout.handle, backlog: layout.port },
            3 => Self::Unbind { handle: layout.handle },
            4 => Self::Connect(Box::new(CmConnect {
                route: layout.route()?,
                peer_to_peer: layout.flag(PEER_TO_PEER),
                packet_life: layout.time(0)?,
                ack_delay: layout.time(1)?,
                req: expect!(layout, Req),
            })),
            5 => Self::Accept(Box::new(expect!(layout, Rep))),
            6 => Self::Reject(Box::new(expect!(layout, Rej))),
            7 => Self::Establish(id),
            8 => Self::Disconnect(id),
            9 => Self::Close(id),
            10 => Self::Mra { id, service_timeout: layout.time(0)?, at_once: layout.flag(AT_ONCE) },
            11 => Self::Ask(Box::new(CmAsk {
                route: layout.route()?,
                response_timeout: layout.time(0)?,
                retries: layout.small,
                traffic_class: layout.class,
                req: expect!(layout, SidrReq),
            })),
            12 => Self::Answer(Box::new(expect!(layout, SidrRep))),
            13 => Self::Restore { id, record: layout.record },
            14 => Self::Restored,
            15 => Self::PortBlock { space: layout.space()?, first: layout.port },
            16 => Self::PortBlockReturn { space: layout.space()?, first: layout.port },
            other => return Err(MessageError::Value { field: "cm request", value: other.into() }),
        })
    }
}

impl CmDone {
    pub(super) fn encode(&self, w: Writer<'_>) -> Result<usize, MessageError> {
        let layout = Layout { port: self.port, serial: self.serial, ..Layout::of(0, self.id) };
        Layout { record: self.record.clone(), ..layout }.write(w)
    }

    pub(super) fn decode(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Self, MessageError> {
        let layout = Layout::read(body, tail)?;
        Ok(Self { id: layout.id(), port: layout.port, serial: layout.serial, record: layout.record })
    }
}

impl CmNews {
    pub(super) fn encode(&self, w: Writer<'_>) -> Result<usize, MessageError> {
        let id = self.id;
        let layout = match &self.what {
            CmWhat::Request { handle, route, starting_psn, req } => Layout {
                flags: if handle.is_some() { HAS_HANDLE } else { 0 },
                handle: handle.unwrap_or(0),
                psn: starting_psn.value(),
                ..Layout::of(1, id).along(route).with(CmMessage::Req(**req))
            },
            CmWhat::Reply(rep) => Layout::of(2, id).with(CmMessage::Rep(**rep)),
            CmWhat::Established => Layout::of(3, id),
            CmWhat::Rejected(rej) => Layout::of(4, id).with(CmMessage::Rej(**rej)),
            CmWhat::Unreachable => Layout::of(5, id),
            CmWhat::Disconnected(end) => Layout { small: *end as u8, ..Layout::of(6, id) },
            CmWhat::TimeWaitOver => Layout::of(7, id),
            CmWhat::SidrRequest { handle, route, req } => {
                Layout { handle: *handle, ..Layout::of(8, id).along(route).with(CmMessage::SidrReq(**req)) }
            }
            CmWhat::SidrReply(rep) => Layout::of(9, id).with(CmMessage::SidrRep(**rep)),
        };
        Layout { serial: self.serial, record: self.record.clone(), ..layout }.write(w)
    }

    pub(super) fn decode(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Self, MessageError> {
        let layout = Layout::read(body, tail)?;
        let what = match layout.kind {
            1 => CmWhat::Request {
                handle: layout.flag(HAS_HANDLE).then_some(layout.handle),
                route: layout.route()?,
                starting_psn: Psn::new(layout.psn),
                req: Box::new(expect!(layout, Req)),
            },
            2 => CmWhat::Reply(Box::new(expect!(layout, Rep))),
            3 => CmWhat::Established,
            4 => CmWhat::Rejected(Box::new(expect!(layout, Rej))),
            5 => CmWhat::Unreachable,
            6 => CmWhat::Disconnected(match layout.small {
                0 => CmEnd::ByPeer,
                1 => CmEnd::ByUs,
                2 => CmEnd::NoAnswer,
                other => return Err(MessageError::Value { field: "end", value: other.into() }),
            }),
            7 => CmWhat::TimeWaitOver,
            8 => CmWhat::SidrRequest {
                handle: layout.handle,
                route: layout.route()?,
                req: Box::new(expect!(layout, SidrReq)),
            },
            9 => CmWhat::SidrReply(Box::new(expect!(layout, SidrRep))),
            other => return Err(MessageError::Value { field: "cm news", value: other.into() }),
        };
        Ok(Self { id: layout.id(), serial: layout.serial, record: layout.record, what })
    }
}
