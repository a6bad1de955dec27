// Applies one input to a connection manager: commands, messages and time in any order. Included by the fuzz target and
// by the test that replays its corpus, so it has no doc comment of its own.

use ferroce_cm::{
    AcceptParams, Bind, CmConfig, ConnectParams, ConnectionManager, Kind, ListenParams, Route, SidrAnswer,
    SidrParams,
};
use ferroce_wire::cm::{
    CmTime, CommId, Ece, Info, IpCmHeader, Mad, Message, PortSpace, PrivateData, RejReason, Req, ServiceId,
    SidrStatus,
};
use ferroce_wire::{Instant, Qkey, Qpn};

const OWNER: u16 = 7;
const MOST: usize = 64;
const SERVICE: ServiceId = PortSpace::Tcp.service_id(7174);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const THERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const ROUTE: Route = Route { local: HERE, remote: THERE, interface: 0 };

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn octet(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// Panics on a broken promise.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let config = CmConfig { key: [3, 5], max_connections: MOST, max_per_owner: MOST };
    let mut world = World {
        cm: ConnectionManager::new(config),
        now: Instant::from_nanos(1),
        known: Vec::new(),
        template: None,
    };
    let listen = ListenParams { service_id: SERVICE, bind: Bind::Any, kind: Kind::Both, backlog: 8 };
    world.cm.listen(OWNER, listen).unwrap();
    while world.step(&mut input).is_some() {
        world.drain();
        assert!(world.cm.in_use() <= MOST);
    }
    world.cm.close_owner(world.now, OWNER, usize::MAX);
    for _ in 0..100_000 {
        world.drain();
        let Some(at) = world.cm.poll_timeout() else { break };
        world.now = world.now.max(at);
        world.cm.handle_timeout(world.now);
    }
    assert!(world.cm.is_empty(), "{:?}", world.cm);
}

struct World {
    cm: ConnectionManager,
    now: Instant,
    /// Ids that the programs have heard of.
    known: Vec<CommId>,
    /// A REQ of the manager's own, from which a peer's are made.
    template: Option<Req>,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (op, which) = (input.octet()?, input.octet()?);
        let id = self.known.get(usize::from(which) % self.known.len().max(1)).copied().unwrap_or(CommId(1));
        let (cm, now) = (&mut self.cm, self.now);
        match op % 20 {
            0 | 1 => {
                let peer_to_peer = op % 20 == 1;
                let header = IpCmHeader { source_port: 1, source: HERE, destination: THERE };
                let params = ConnectParams {
                    peer_to_peer,
                    private: PrivateData::new(&header.emit()).unwrap(),
                    ..ConnectParams::new(ROUTE, SERVICE, 22, Qpn::new(which.into()))
                };
                self.known.extend(cm.connect(now, OWNER, &params));
            }
            2 => drop(cm.accept(now, id, &AcceptParams::new(22, Qpn::new(which.into()))).ok()),
            3 => drop(cm.reject(now, id, RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY).ok()),
            4 => drop(cm.establish(id).ok()),
            5 => drop(cm.disconnect(now, id).ok()),
            6 => cm.close(now, id),
            7 => drop(cm.send_mra(id, CmTime::saturating(input.octet()?), which > 127).ok()),
            8 => {
                let params = SidrParams {
                    route: ROUTE,
                    service_id: SERVICE,
                    response_timeout: CmTime::saturating(which),
                    max_cm_retries: which,
                    traffic_class: 0,
                    private: PrivateData::EMPTY,
                };
                self.known.extend(cm.resolve(now, OWNER, &params));
            }
            9 => {
                let answer = SidrAnswer {
                    status: SidrStatus::VALID,
                    qpn: Qpn::new(5),
                    qkey: Qkey::new(5),
                    ece: Ece::default(),
                    private: PrivateData::EMPTY,
                };
                let _ = cm.answer_sidr(id, &answer);
            }
            10 => {
                self.now = self.now.max(cm.poll_timeout().unwrap_or(now));
                cm.handle_timeout(self.now);
            }
            // Another broker takes it over, forged a little.
            11 => {
                if let Ok(mut record) = cm.export(now, id) {
                    cm.close(now, id);
                    let (at, value) = (input.octet()?, input.octet()?);
                    if let Some(octet) = record.get_mut(usize::from(at) * 2) {
                        *octet = value;
                    }
                    self.known.extend(cm.import(now, OWNER, &record, |route| *route == ROUTE));
                }
            }
            _ => {
                let mad = self.message(id, input)?;
                let interface = u32::from(which == 255);
                let _ = self.cm.handle_mad(now, Route { interface, ..ROUTE }, &mad);
            }
        }
        Some(())
    }

    /// A message that names a connection, with up to seven octets changed.
    fn message(&mut self, id: CommId, input: &mut Input<'_>) -> Option<[u8; 256]> {
        let (kind, theirs, changes) = (input.octet()?, input.octet()?, input.octet()?);
        let header = IpCmHeader { source_port: 1, source: THERE, destination: HERE };
        let mut req = *self.template.get_or_insert_with(template);
        (req.local_id, req.qpn) = (CommId(u32::from(theirs) + 1), Qpn::new(u32::from(theirs) + 1));
        (req.ca_guid, req.private) = (33, PrivateData::new(&header.emit()).unwrap());
        let mut mad = Mad { transaction_id: 1, message: Message::Req(req) }.emit();
        let attribute = 0x10 + kind % 11;
        mad[17] = attribute;
        match attribute {
            0x10 => {}
            0x17 => mad[32..40].copy_from_slice(&SERVICE.0.to_be_bytes()),
            0x18 => {
                mad[24..28].copy_from_slice(&id.0.to_be_bytes());
                mad[36..44].copy_from_slice(&SERVICE.0.to_be_bytes());
            }
            _ => mad[28..32].copy_from_slice(&id.0.to_be_bytes()),
        }
        for _ in 0..changes % 8 {
            let (at, value) = (input.octet()?, input.octet()?);
            mad[usize::from(at)] = value;
        }
        Some(mad)
    }

    fn drain(&mut self) {
        while self.cm.poll_transmit().is_some() {}
        while let Some(event) = self.cm.poll_event() {
            assert_eq!((event.owner, ConnectionManager::owner(event.id)), (OWNER, OWNER));
            self.known.push(event.id);
        }
        self.known.dedup();
    }
}

/// A REQ as a manager makes it.
fn template() -> Req {
    let mut cm = ConnectionManager::new(CmConfig { key: [1, 1], max_connections: 1, max_per_owner: 1 });
    let params = ConnectParams::new(ROUTE, SERVICE, 33, Qpn::new(1));
    let id = cm.connect(Instant::ZERO, 1, &params).unwrap();
    *cm.messages(id).unwrap().0
}
