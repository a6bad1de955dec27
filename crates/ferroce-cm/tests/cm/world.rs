//! Two connection managers, a clock, a network, and programs that do what a scenario says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ferroce_cm::{
    AcceptParams, Bind, CmConfig, CmDropReason, CmEvent, CmEventKind, ConnectParams, ConnectionManager,
    Disconnect, Kind, ListenParams, Route, SidrAnswer, SidrParams,
};
use ferroce_sim::{Datagram, Network};
use ferroce_wire::cm::{
    CmTime, CommId, Ece, Info, IpCmHeader, Mad, PortSpace, PrivateData, RejReason, ServiceId, SidrStatus,
};
use ferroce_wire::{Instant, Qkey, Qpn};

pub const SERVICE: ServiceId = PortSpace::Tcp.service_id(7174);
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

pub fn address(end: usize) -> IpAddr {
    [192, 0, 2, 1 + end as u8].into()
}

/// From one end to the other.
pub fn route(end: usize) -> Route {
    Route { local: address(end), remote: address(1 - end), interface: 0 }
}

pub fn guid(end: usize) -> u64 {
    0x1111 * (end as u64 + 1)
}

pub fn qpn(end: usize) -> Qpn {
    Qpn::new(0x10_0000 * (end as u32 + 1) + 7)
}

pub fn header(end: usize) -> [u8; IpCmHeader::LEN] {
    IpCmHeader { source_port: 999, source: address(end), destination: address(1 - end) }.emit()
}

pub fn connect_params(end: usize) -> ConnectParams {
    ConnectParams {
        private: PrivateData::concat(&header(end), b"hello").unwrap(),
        ..ConnectParams::new(route(end), SERVICE, guid(end), qpn(end))
    }
}

pub fn sidr_params(end: usize) -> SidrParams {
    SidrParams {
        route: route(end),
        service_id: SERVICE,
        response_timeout: CmTime::saturating(20),
        max_cm_retries: 15,
        traffic_class: 0,
        private: PrivateData::new(&header(end)).unwrap(),
    }
}

pub fn manager(seed: u64) -> ConnectionManager {
    ConnectionManager::new(CmConfig { key: [seed, !seed], max_connections: 1000, max_per_owner: 500 })
}

pub fn listen(backlog: usize) -> ListenParams {
    ListenParams { service_id: SERVICE, bind: Bind::AnyV4, kind: Kind::Both, backlog }
}

/// A MAD under way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// As the receiver sees it.
    pub route: Route,
    pub mad: Vec<u8>,
}

impl Packet {
    pub fn name(&self) -> &'static str {
        Mad::parse(&self.mad).map_or("?", |mad| mad.message.name())
    }
}

impl Datagram for Packet {
    fn corrupt(&mut self, noise: u64) {
        let len = self.mad.len() as u64 * 8;
        let bit = noise % len;
        self.mad[(bit / 8) as usize] ^= 1 << (bit % 8);
    }

    fn wire_len(&self) -> usize {
        self.mad.len() + 52
    }
}

/// How a program answers a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Accept,
    /// After saying that it takes three seconds.
    AcceptLate,
    Reject,
}

/// A later action of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Connect,
    Accept(CommId),
    Disconnect(CommId),
    Close(CommId),
    Data(CommId),
    /// The host starts anew and knows nothing; its programs connect again, with the queue pair numbers they had.
    Restart,
}

/// The events that a program has seen of one connection or SIDR request.
#[derive(Clone, Default, Debug)]
pub struct Story {
    pub established: bool,
    pub disconnected: Vec<Disconnect>,
    pub rejected: Option<RejReason>,
    pub unreachable: bool,
    pub time_wait_over: bool,
    pub sidr: Option<SidrStatus>,
    pub answered: bool,
}

impl Story {
    /// How often it ended.
    pub fn ends(&self) -> usize {
        self.disconnected.len().max(usize::from(self.rejected.is_some()))
            + usize::from(self.unreachable)
            + usize::from(self.sidr.is_some() || self.answered)
    }
}

/// The behaviour of programs.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub answer: Answer,
    pub listens: bool,
    /// The passive end connects too, so much later.
    pub peer_to_peer: Option<Duration>,
    pub datagrams: bool,
    /// Which ends disconnect a second after the connection is there.
    pub disconnects: [bool; 2],
    /// The active end closes in place of disconnecting.
    pub closes: bool,
    /// Data follow the connection, so that the passive end need not wait for the RTU.
    pub data: bool,
    /// The active end's host starts anew, so late.
    pub restarts: Option<Duration>,
}

pub const PLAIN: Script = Script {
    answer: Answer::Accept,
    listens: true,
    peer_to_peer: None,
    datagrams: false,
    disconnects: [true, false],
    closes: false,
    data: false,
    restarts: None,
};

pub struct World<'r> {
    pub now: Instant,
    pub ends: [ConnectionManager; 2],
    pub network: Network<'r, Packet>,
    pub script: Script,
    pub stories: [BTreeMap<CommId, Story>; 2],
    /// Everything sent, in order.
    pub sent: Vec<(usize, &'static str)>,
    pub drops: Vec<(usize, CmDropReason)>,
    pub last_sent: Instant,
    /// After these numbers of messages of the two ends, another broker takes over at this end.
    pub restart: Option<(usize, usize)>,
    records: [BTreeMap<CommId, Vec<u8>>; 2],
    plans: BTreeMap<(Instant, usize), (usize, Action)>,
    planned: usize,
}

impl World<'_> {
    pub fn new(script: Script, seed: u64) -> Self {
        let mut world = Self {
            now: Instant::from_nanos(1_000),
            ends: [manager(seed), manager(seed ^ 0xffff)],
            network: Network::new(MS),
            script,
            stories: Default::default(),
            sent: Vec::new(),
            drops: Vec::new(),
            last_sent: Instant::ZERO,
            restart: None,
            records: Default::default(),
            plans: BTreeMap::new(),
            planned: 0,
        };
        if script.listens {
            world.ends[1].listen(5, listen(10)).unwrap();
        }
        world.plan(Duration::ZERO, 0, Action::Connect);
        if let Some(later) = script.peer_to_peer {
            world.plan(later, 1, Action::Connect);
        }
        if let Some(later) = script.restarts {
            world.plan(later, 0, Action::Restart);
        }
        world
    }

    fn plan(&mut self, after: Duration, end: usize, action: Action) {
        self.planned += 1;
        self.plans.insert((self.now + after, self.planned), (end, action));
    }

    /// Until nothing is under way, no timer runs and nobody has plans.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            self.drain();
            let plan = self.plans.first_key_value().map(|((at, _), _)| *at);
            let timers = self.ends.iter().filter_map(ConnectionManager::poll_timeout);
            let Some(next) = self.network.next_arrival().into_iter().chain(timers).chain(plan).min() else {
                return;
            };
            self.now = self.now.max(next);
            while let Some((end, packet)) = self.network.receive(self.now) {
                if let Err(reason) = self.ends[end].handle_mad(self.now, packet.route, &packet.mad) {
                    self.drops.push((end, reason));
                }
            }
            self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
            self.drain();
            while let Some(entry) = self.plans.first_entry()
                && entry.key().0 <= self.now
            {
                let (end, action) = entry.remove();
                self.act(end, action);
                let ids: Vec<_> = self.stories[end].keys().copied().collect();
                ids.into_iter().for_each(|id| self.keep(end, id));
            }
        }
        panic!("no end: {:?}", self.sent);
    }

    fn drain(&mut self) {
        if let Some((_, end)) = self.restart.take_if(|(messages, _)| self.sent.len() >= *messages) {
            self.replace_broker(end);
        }
        for end in 0..2 {
            while let Some(event) = self.ends[end].poll_event() {
                let id = event.id;
                self.handle(end, event);
                self.keep(end, id);
            }
            while let Some(transmit) = self.ends[end].poll_transmit() {
                assert_eq!(transmit.route, route(end));
                let packet = Packet { route: route(1 - end), mad: transmit.mad.to_vec() };
                self.sent.push((end, packet.name()));
                self.last_sent = self.now;
                self.network.send(self.now, 1 - end, packet);
            }
        }
    }

    /// A new broker takes over what programs hand back: connections and listeners. Events that were not delivered are
    /// lost with the old one, and so is what programs had closed.
    fn replace_broker(&mut self, end: usize) {
        self.ends[end] = manager(self.now.as_nanos());
        if self.script.listens && end == 1 {
            self.ends[1].listen(5, listen(10)).unwrap();
        }
        for (id, record) in &self.records[end] {
            let owner = ConnectionManager::owner(*id);
            let ours = |at: &Route| *at == route(end);
            assert_eq!(self.ends[end].import(self.now, owner, record, ours), Ok(*id));
        }
    }

    /// A program keeps a record of each of its connections, as it was after the last event or command.
    fn keep(&mut self, end: usize, id: CommId) {
        match self.ends[end].export(self.now, id) {
            Ok(record) => {
                assert!(record.len() <= ConnectionManager::MAX_RECORD);
                self.records[end].insert(id, record);
            }
            Err(_) => drop(self.records[end].remove(&id)),
        }
    }

    fn act(&mut self, end: usize, action: Action) {
        let now = self.now;
        if action == Action::Restart {
            self.ends[end] = manager(now.as_nanos());
            self.stories[end].clear();
            self.records[end].clear();
            return self.act(end, Action::Connect);
        }
        let cm = &mut self.ends[end];
        match action {
            Action::Connect => {
                let id = if self.script.datagrams {
                    cm.resolve(now, 4, &sidr_params(end)).unwrap()
                } else {
                    let peer_to_peer = self.script.peer_to_peer.is_some();
                    cm.connect(now, 4, &ConnectParams { peer_to_peer, ..connect_params(end) }).unwrap()
                };
                self.stories[end].insert(id, Story::default());
            }
            Action::Accept(id) => {
                // It may be gone meanwhile.
                let _ = cm.accept(now, id, &AcceptParams::new(guid(end), qpn(end)));
            }
            Action::Disconnect(id) => drop(cm.disconnect(now, id)),
            Action::Data(id) => {
                let passive = cm.messages(id).and_then(|(_, rep)| rep).map(|rep| rep.local_id);
                if let Some(passive) = passive {
                    let _ = self.ends[1 - end].establish(passive);
                }
            }
            Action::Close(id) => {
                cm.close(now, id);
                // A program that closes gets no further event.
                self.stories[end].get_mut(&id).unwrap().answered = true;
            }
            Action::Restart => {}
        }
    }

    fn established(&mut self, end: usize, id: CommId) {
        let story = self.stories[end].get_mut(&id).unwrap();
        assert!(!story.established, "twice");
        story.established = true;
        if self.script.closes && end == 0 {
            self.plan(SECOND, end, Action::Close(id));
        } else if self.script.disconnects[end] {
            self.plan(SECOND, end, Action::Disconnect(id));
        } else {
            // Its queue pair would notice in the end.
            self.plan(SECOND * 300, end, Action::Disconnect(id));
        }
    }

    fn handle(&mut self, end: usize, event: CmEvent) {
        let CmEvent { owner, id, kind } = event;
        assert_eq!(ConnectionManager::owner(id), owner);
        let now = self.now;
        match kind {
            CmEventKind::Request { req, route: from, .. } => {
                assert_eq!(from, route(end));
                assert_eq!(req.service_id, SERVICE);
                self.stories[end].entry(id).or_default();
                match self.script.answer {
                    Answer::Accept => self.act(end, Action::Accept(id)),
                    Answer::AcceptLate => {
                        self.ends[end].send_mra(id, CmTime::saturating(20), true).unwrap();
                        self.plan(SECOND * 3, end, Action::Accept(id));
                    }
                    Answer::Reject => {
                        let private = PrivateData::new(b"no").unwrap();
                        self.ends[end].reject(now, id, RejReason::CONSUMER, Info::NONE, private).unwrap();
                        self.stories[end].get_mut(&id).unwrap().answered = true;
                    }
                }
            }
            CmEventKind::Reply { rep } => {
                assert_eq!((rep.qpn, rep.ca_guid), (qpn(1 - end), guid(1 - end)));
                self.ends[end].establish(id).unwrap();
                self.established(end, id);
                if self.script.data {
                    self.plan(MS * 100, end, Action::Data(id));
                }
            }
            CmEventKind::Established => self.established(end, id),
            CmEventKind::Rejected { reason, .. } => {
                let story = self.stories[end].get_mut(&id).unwrap();
                assert_eq!(story.rejected.replace(reason), None);
                if end == 0 && reason == RejReason::STALE_CONNECTION && self.script.restarts.is_some() {
                    self.plan(SECOND, end, Action::Connect);
                }
            }
            CmEventKind::Unreachable => {
                let story = self.stories[end].get_mut(&id).unwrap();
                assert!(!std::mem::replace(&mut story.unreachable, true));
            }
            CmEventKind::Disconnected(how) => {
                self.stories[end].get_mut(&id).unwrap().disconnected.push(how);
                if how == Disconnect::ByPeer {
                    self.ends[end].disconnect(now, id).unwrap();
                }
            }
            CmEventKind::Lost => panic!("a connection manager does not say so"),
            CmEventKind::TimeWaitOver => {
                let story = self.stories[end].get_mut(&id).unwrap();
                assert!(!std::mem::replace(&mut story.time_wait_over, true));
            }
            CmEventKind::SidrRequest { req, .. } => {
                assert_eq!(req.service_id, SERVICE);
                let answer = SidrAnswer {
                    status: if self.script.answer == Answer::Reject {
                        SidrStatus::REJECTED
                    } else {
                        SidrStatus::VALID
                    },
                    qpn: qpn(end),
                    qkey: Qkey::new(0x0123_4567),
                    ece: Ece::default(),
                    private: PrivateData::EMPTY,
                };
                self.ends[end].answer_sidr(id, &answer).unwrap();
            }
            CmEventKind::SidrReply { rep } => {
                let story = self.stories[end].get_mut(&id).unwrap();
                assert_eq!(story.sidr.replace(rep.status), None);
            }
        }
    }

    /// Each connection of each program ended once, soon enough, and nothing is left.
    pub fn check_end(&mut self) {
        for (end, stories) in self.stories.iter().enumerate() {
            for (id, story) in stories {
                assert_eq!(story.ends(), 1, "end {end}, {id:?}: {story:?}\n{:?}", self.sent);
            }
        }
        assert!(self.now.saturating_since(Instant::ZERO) < SECOND * 900, "{:?}", self.now);
        for end in &mut self.ends {
            end.close_owner(self.now, 5, usize::MAX);
        }
        for end in &self.ends {
            assert!(end.is_empty(), "{end:?}");
        }
    }

    /// Whether both ends were connected, or the SIDR request was answered. A passive end may learn of the end first.
    pub fn connected(&self) -> bool {
        let [active, passive] = &self.stories;
        if self.script.datagrams {
            return active.values().all(|story| story.sidr == Some(SidrStatus::VALID));
        }
        let there = |end: &BTreeMap<_, Story>| end.values().any(|story| story.established);
        let over = |end: &BTreeMap<_, Story>| end.values().any(|story| !story.disconnected.is_empty());
        there(active) && (there(passive) || over(passive)) || there(passive) && over(active)
    }
}
