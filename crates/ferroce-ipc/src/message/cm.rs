//! Connection management between a program and the broker, which owns queue pair 1 and the port spaces.
//!
//! A program names its binds by handles of its own choice, so that it can make them again at another broker,
//! and connections by their communication id.

use std::net::IpAddr;

use ferroce_cm::{
    AcceptParams, CmEvent, CmEventKind, ConnectParams, ConnectionManager, SidrAnswer, SidrParams,
};
use ferroce_wire::cm::{CmTime, CommId, Info, PortSpace, PrivateData, RejReason};

use super::fields::{Field, fields, variants};
use crate::codec::{MessageError, Reader, Writer};

/// Ports of a block: the first is a multiple of this.
pub const PORT_BLOCK: u16 = 64;

/// A program's request to connection management. Answered by [`super::Message::CmDone`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmRequest {
    /// Takes a port. The answer contains the port's number.
    Bind(CmBind),
    /// Takes requests at a port from now on.
    Listen {
        /// The bind.
        handle: u64,
        /// Requests that may wait, 0 for as many as there may be.
        backlog: u16,
    },
    /// Gives a port back, and listens no more.
    Unbind {
        /// The bind.
        handle: u64,
    },
    /// Asks a peer for a connection. The answer has its id.
    Connect(Box<ConnectParams>),
    /// Agrees to a request.
    Accept {
        /// The request.
        id: CommId,
        /// Contents of the REP.
        params: Box<AcceptParams>,
    },
    /// Refuses a request or a reply.
    Reject {
        /// The request, or the connection with a reply.
        id: CommId,
        /// The REJ's reason.
        reason: RejReason,
        /// The REJ's additional information.
        info: Info,
        /// Private data for the peer.
        private: Box<PrivateData<148>>,
    },
    /// The queue pair is set up after a reply; or data came before the RTU.
    Establish(CommId),
    /// Ends a connection, or agrees that the peer ends it.
    Disconnect(CommId),
    /// Stops the events of a connection or SIDR request, and ends it as its state requires.
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
    /// Asks a peer for the UD queue pair behind a service. The answer has the SIDR request's id.
    Resolve(Box<SidrParams>),
    /// Answers a peer's SIDR request.
    Answer {
        /// The SIDR request.
        id: CommId,
        /// Contents of the SIDR_REP.
        answer: Box<SidrAnswer>,
    },
    /// To a new broker: a connection as the earlier one described it.
    Restore {
        /// The connection.
        id: CommId,
        /// The last record of the connection.
        record: Vec<u8>,
    },
    /// To a new broker: that was all.
    Restored,
    /// Takes [`PORT_BLOCK`] free ports, of those that the broker chooses from, for connections of this
    /// program, which gives them out and takes them back by itself. The answer contains the first port. A
    /// program gives the number of the first port for a block that it already has, and for a block that it
    /// reports to a new broker.
    PortBlock {
        /// The port space.
        space: PortSpace,
        /// The first port, 0 for any that are free.
        first: u16,
    },
    /// Gives a block back.
    PortBlockReturn {
        /// The port space.
        space: PortSpace,
        /// The first port.
        first: u16,
    },
}

/// A port to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmBind {
    /// The program's own name for it, not in use.
    pub handle: u64,
    /// The port space.
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

/// A [`CmRequest`] was done.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CmDone {
    /// The connection or SIDR request that it was about, or that there is now.
    pub id: CommId,
    /// The port that was bound.
    pub port: u16,
    /// Orders records: a larger one is newer, of one broker.
    pub serial: u64,
    /// Record of the connection for another broker; empty without a connection.
    pub record: Vec<u8>,
}

/// Something happened to a connection, SIDR request or listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmNotice {
    /// The event. A [`ListenerId`](ferroce_cm::ListenerId) in it is the handle of the program's bind.
    pub event: CmEvent,
    /// As in [`CmDone`].
    pub serial: u64,
    /// Record of the connection for another broker; empty: the connection has ended.
    pub record: Vec<u8>,
}

fields! {
    CmBind { handle, space, port, address, interface, reuse, v6_only }
    CmDone { id, port, serial, record as RECORD }
    // The event is last, so that a newer minor version may lengthen it.
    CmNotice { serial, record as RECORD, event }
}

variants! {
    CmRequest: "cm request" {
        1 => Bind(bind),
        2 => Listen { handle, backlog },
        3 => Unbind { handle },
        4 => Connect(params),
        5 => Accept { id, params },
        6 => Reject { id, reason, info, private },
        7 => Establish(id),
        8 => Disconnect(id),
        9 => Close(id),
        10 => Mra { id, service_timeout, at_once },
        11 => Resolve(params),
        12 => Answer { id, answer },
        13 => Restore { id, record as RECORD },
        14 => Restored,
        15 => PortBlock { space, first },
        16 => PortBlockReturn { space, first },
    }
    CmEventKind: "cm event" {
        1 => Request { listener, route, req, starting_psn },
        2 => Reply { rep },
        3 => Established,
        4 => Rejected { about, reason, info, private },
        5 => Unreachable,
        6 => Disconnected(end),
        7 => TimeWaitOver,
        8 => SidrRequest { listener, route, req },
        9 => SidrReply { rep },
        10 => Lost,
    }
}

impl Field for CmEvent {
    fn put(&self, w: &mut Writer) {
        self.id.put(w);
        self.kind.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let id = Field::take(r)?;
        Ok(Self { owner: ConnectionManager::owner(id), id, kind: Field::take(r)? })
    }
}

/// The rule for a record.
struct Record;
const RECORD: Record = Record;

impl Record {
    fn put(&self, record: &[u8], w: &mut Writer) {
        if record.len() > ConnectionManager::MAX_RECORD {
            w.fail(MessageError::TooLong { field: "record" });
        }
        w.block("record", record);
    }

    fn take(&self, r: &mut Reader<'_>) -> Result<Vec<u8>, MessageError> {
        let length = u16::take(r)?;
        if usize::from(length) > ConnectionManager::MAX_RECORD {
            return Err(MessageError::Value { field: "record", value: length.into() });
        }
        Ok(r.take(length.into())?.to_vec())
    }
}
