//! One connection manager and a peer made by hand.

use ferroce_cm::{AcceptParams, CmDropReason, CmEvent, CmEventKind, ConnectionManager, ListenerId, Route};
use ferroce_wire::cm::{
    About, CmTime, CommId, Drep, Dreq, Ece, Info, Lap, Mad, Message, PrivateData, Rej, RejReason, Rep, Req,
    Rtu, SidrReq, Transport,
};
use ferroce_wire::{Gid, Instant, Pkey, Psn, Qkey, Qpn};

use crate::world::{SECOND, SERVICE, address, guid, header, listen, manager, qpn, route};

/// The peer's communication id.
pub const THEIRS: CommId = CommId(0x0500_1234);
pub const TID: u64 = 0x77_0000_0001;

/// End 1 of the world; the peer is end 0.
pub struct Probe {
    pub now: Instant,
    pub cm: ConnectionManager,
    pub listener: ListenerId,
}

pub fn req() -> Req {
    Req {
        local_id: THEIRS,
        ece: Ece::default(),
        service_id: SERVICE,
        ca_guid: guid(0),
        qkey: Qkey::new(0),
        qpn: qpn(0),
        responder_resources: 3,
        initiator_depth: 2,
        local_eecn: Qpn::new(0),
        remote_eecn: Qpn::new(0),
        remote_timeout: CmTime::saturating(20),
        local_timeout: CmTime::saturating(20),
        transport: Transport::Rc,
        flow_control: false,
        starting_psn: Psn::new(0x1d38dd),
        retry_count: 5,
        pkey: Pkey::DEFAULT,
        path_mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: false,
        primary: ferroce_wire::cm::Path {
            local_gid: Gid::from_ip(address(0)),
            remote_gid: Gid::from_ip(address(1)),
            ack_timeout: CmTime::saturating(17),
            ..Default::default()
        },
        alternate: Default::default(),
        sap_supported: false,
        private: PrivateData::concat(&header(0), &[7; 56]).unwrap(),
    }
}

pub fn rep(to: CommId) -> Rep {
    Rep {
        local_id: THEIRS,
        remote_id: to,
        qkey: Qkey::new(0),
        qpn: qpn(0),
        eecn: Qpn::new(0),
        ece: Ece::default(),
        starting_psn: Psn::new(0x842db5),
        responder_resources: 4,
        initiator_depth: 5,
        target_ack_delay: CmTime::saturating(15),
        failover: 0,
        flow_control: false,
        rnr_retry_count: 6,
        srq: false,
        ca_guid: guid(0),
        private: PrivateData([9; 196]),
    }
}

pub fn rtu(to: CommId) -> Message {
    Message::Rtu(Rtu { local_id: THEIRS, remote_id: to, private: PrivateData::EMPTY })
}

pub fn lap(to: CommId) -> Lap {
    Lap {
        local_id: THEIRS,
        remote_id: to,
        remote_qpn: qpn(1),
        remote_timeout: CmTime::saturating(20),
        path: Default::default(),
        private: PrivateData::EMPTY,
    }
}

pub fn dreq(to: CommId) -> Message {
    Message::Dreq(Dreq { local_id: THEIRS, remote_id: to, remote_qpn: qpn(1), private: PrivateData::EMPTY })
}

pub fn drep(to: CommId) -> Message {
    Message::Drep(Drep { local_id: THEIRS, remote_id: to, private: PrivateData::EMPTY })
}

pub fn rej(to: CommId, about: About, reason: RejReason) -> Message {
    let (info, private) = (Info::NONE, PrivateData::new(b"why").unwrap());
    Message::Rej(Rej { local_id: THEIRS, remote_id: to, about, reason, info, private })
}

pub fn sidr_req() -> SidrReq {
    let private = PrivateData::new(&header(0)).unwrap();
    SidrReq { request_id: THEIRS, pkey: Pkey::DEFAULT, service_id: SERVICE, private }
}

impl Probe {
    pub fn new() -> Self {
        let mut cm = manager(5);
        let listener = cm.listen(9, listen(4)).unwrap();
        Self { now: Instant::from_nanos(1), cm, listener }
    }

    pub fn give(&mut self, message: Message) -> Result<(), CmDropReason> {
        self.give_from(route(1), message)
    }

    pub fn give_from(&mut self, from: Route, message: Message) -> Result<(), CmDropReason> {
        let mad = Mad { transaction_id: TID, message };
        self.cm.handle_mad(self.now, from, &mad.emit())
    }

    /// The messages sent, all to the peer.
    pub fn out(&mut self) -> Vec<Message> {
        let cm = &mut self.cm;
        std::iter::from_fn(|| cm.poll_transmit())
            .map(|transmit| {
                assert_eq!(transmit.route, route(1));
                Mad::parse(&transmit.mad[..]).unwrap().message
            })
            .collect()
    }

    pub fn only(&mut self) -> Message {
        let out = self.out();
        let [message] = out[..] else { panic!("{out:?}") };
        message
    }

    pub fn rejected(&mut self) -> (CommId, CommId, About, RejReason) {
        let Message::Rej(rej) = self.only() else { panic!() };
        (rej.local_id, rej.remote_id, rej.about, rej.reason)
    }

    pub fn events(&mut self) -> Vec<CmEvent> {
        let cm = &mut self.cm;
        std::iter::from_fn(|| cm.poll_event()).collect()
    }

    pub fn event(&mut self) -> CmEvent {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// A REQ that was taken.
    pub fn request(&mut self, req: Req) -> CommId {
        self.give(Message::Req(req)).unwrap();
        let event = self.event();
        assert!(matches!(event.kind, CmEventKind::Request { .. }), "{event:?}");
        event.id
    }

    /// A connection of which this is the passive end.
    pub fn established(&mut self) -> CommId {
        let id = self.request(req());
        self.cm.accept(self.now, id, &AcceptParams::new(guid(1), qpn(1))).unwrap();
        self.give(rtu(id)).unwrap();
        assert_eq!(self.event().kind, CmEventKind::Established);
        self.out();
        id
    }

    /// To the next timer; whether there was one.
    pub fn tick(&mut self) -> bool {
        let Some(at) = self.cm.poll_timeout() else { return false };
        self.now = self.now.max(at);
        self.cm.handle_timeout(self.now);
        true
    }

    pub fn later(&mut self, seconds: u32) {
        self.now += SECOND * seconds;
        self.cm.handle_timeout(self.now);
    }
}
