//! The broker fed with anything, for the fuzzer and for the test that replays its corpus.
//!
//! The input is a list of steps: connections, bytes of messages, deaths, time, interfaces, the broker's own
//! death. After each step the books are compared: no slot is ever given to a program while another one may
//! hold it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ferroce_cm::{AcceptParams, CmEventKind, ConnectParams, Route, SidrAnswer, SidrParams, Transmit};
use ferroce_ipc::{CmBind, CmNotice, CmRequest, DeviceInfo, Hello, LinkKind, Message, Peer, ResourceCounts};
use ferroce_wire::cm::{
    CmTime, CommId, Ece, Info, IpCmHeader, PortSpace, PrivateData, RejReason, SidrStatus,
};
use ferroce_wire::{Psn, Qkey, Qpn};

use super::fake::{Fake, netdev};
use super::logic::{Broker, Output};
use super::slots::first_of;
use super::{ClientId, ProcessId};
use ferroce_host::netdev::Netdev;

const STEPS: usize = 200;
const CLIENTS: usize = 16;
const MADS: usize = 64;

/// Runs the steps in `input`.
///
/// # Panics
/// Panics if the broker's books are wrong, or if the broker panics.
pub fn run(input: &[u8]) {
    told(input, false);
    told(input, true);
}

/// As [`run`], with a broker of one user or of all; returns how often somebody heard that a connection is
/// there.
fn told(input: &[u8], all_users: bool) -> usize {
    let mut run = Run::new(input, all_users);
    for _ in 0..STEPS {
        let Some(step) = run.byte() else { break };
        run.step(step);
        run.check_output();
    }
    run.established
}

/// The broker's user.
const UID: u32 = 1000;

struct Client {
    id: ClientId,
    process: ProcessId,
    /// The last reading end of parked descriptors that it was given.
    parked: Option<OwnedFd>,
    devices: Vec<DeviceInfo>,
    records: Vec<(CommId, Vec<u8>)>,
    released: Option<Vec<u16>>,
    uid: u32,
}

struct Run<'a> {
    input: &'a [u8],
    now: Instant,
    system: Fake,
    broker: Broker<Fake>,
    clients: Vec<Client>,
    next_client: u64,
    /// MADs under way.
    wire: VecDeque<Transmit>,
    /// Communication ids that somebody was told.
    known: VecDeque<CommId>,
    established: usize,
    /// The holder of each slot, as the programs see it.
    holders: BTreeMap<u16, Holder>,
    all_users: bool,
}

struct Holder {
    process: ProcessId,
    client: ClientId,
    /// Time until which the program may come back after its connection was closed; `None` while it is
    /// connected.
    until: Option<Instant>,
    /// The broker died since, and it has not come back.
    unknown: bool,
    /// It was leased without sockets.
    by_rings: bool,
}

impl<'a> Run<'a> {
    fn new(input: &'a [u8], all_users: bool) -> Self {
        let system = Fake::default();
        let mut broker = Broker::new(system.clone(), UID, [2; 8], interfaces(0));
        if all_users {
            broker.serve_all_users();
        }
        let now = Instant::now();
        Self {
            input,
            now,
            system,
            broker,
            clients: Vec::new(),
            next_client: 0,
            wire: VecDeque::new(),
            known: VecDeque::new(),
            established: 0,
            holders: BTreeMap::new(),
            all_users,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    fn number(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.number()).min(self.input.len());
        let (taken, rest) = self.input.split_at(count);
        self.input = rest;
        taken
    }

    fn client(&mut self) -> Option<usize> {
        let number = usize::from(self.number());
        (!self.clients.is_empty()).then(|| number % self.clients.len())
    }

    fn step(&mut self, step: u8) {
        match step % 15 {
            0 => self.connect(),
            1 => {
                let bytes = self.bytes();
                let count = usize::from(self.number() % 3);
                let Some(client) = self.client() else { return };
                if let Ok((id, message)) = Message::decode(bytes, count) {
                    self.say(client, id, message, (0..count).map(|_| null()).collect());
                }
            }
            2 => {
                let Some(client) = self.client() else { return };
                let message = self.request();
                self.say(client, 1, message, Vec::new());
            }
            3 => self.resume(),
            4 => {
                let Some(client) = self.client() else { return };
                let gone = self.clients.remove(client);
                for holder in self.holders.values_mut().filter(|holder| holder.client == gone.id) {
                    holder.until = Some(self.now + Duration::from_millis(500));
                }
                self.broker.disconnected(self.now, gone.id);
            }
            5 => {
                let Some(client) = self.client() else { return };
                let gone = self.clients.remove(client);
                self.broker.lost(gone.id);
            }
            6 => {
                let Some(client) = self.client() else { return };
                let process = self.clients[client].process;
                self.clients.retain(|client| client.process != process);
                self.holders.retain(|_, holder| holder.process != process);
                self.broker.died(self.now, process);
            }
            7 => {
                let time = u64::from(self.number()) * 20;
                self.now += Duration::from_millis(time);
                self.broker.tick(self.now);
                // Holders that were away for long have lost their slots, and so have holders of which nothing
                // is left.
                let (now, open) = (self.now, self.system.port.borrow().open_elsewhere);
                self.holders.retain(|_, holder| {
                    holder.until.is_none_or(|until| until > now) && (open || !holder.unknown)
                });
            }
            8 => {
                let which = self.number();
                self.broker.netdevs_changed(interfaces(which));
            }
            9 => {
                let mut port = self.system.port.borrow_mut();
                port.out_of_files = !port.out_of_files;
            }
            10 => {
                let open = self.number() % 2 == 1;
                self.system.port.borrow_mut().open_elsewhere = open;
            }
            11 => self.broker_dies(),
            12 => self.ask_for_connection(),
            13 => self.deliver(),
            _ => {
                let mut mad = [0; 256];
                let bytes = self.bytes();
                mad[..bytes.len()].copy_from_slice(bytes);
                let route = self.route();
                let from = Route { local: route.local, remote: route.remote, interface: route.interface };
                self.broker.mad(self.now, from, &mad);
            }
        }
    }

    fn connect(&mut self) {
        let (pid, uid) =
            (u32::from(self.number() % 8) + 1, [UID, UID, 0, 1001][usize::from(self.number() % 4)]);
        if self.clients.len() >= CLIENTS {
            return;
        }
        let (id, process) = (ClientId(self.next_client), ProcessId(pid.into()));
        self.next_client += 1;
        self.broker.connected(id, Peer { pid, uid }, process, true);
        self.clients.push(Client {
            id,
            process,
            parked: None,
            devices: Vec::new(),
            records: Vec::new(),
            released: None,
            uid,
        });
        self.check_output(); // it may have been refused
        if !self.number().is_multiple_of(8)
            && let Some(client) = self.clients.iter().position(|client| client.id == id)
        {
            self.say(client, 0, Message::Hello(Hello::ours("")), Vec::new());
        }
    }

    fn request(&mut self) -> Message {
        let number = self.number();
        match self.number() % 9 {
            0 => Message::Lease(number.clamp(1, 254)),
            1 => Message::Release(if number == 0 { Vec::new() } else { vec![16 + u16::from(number)] }),
            2 => Message::LinkAdd {
                name: format!("fr{}", number % 4),
                kind: LinkKind::Rxe,
                netdev: format!("eth{}", number / 4 % 4),
                transient: number % 8 > 3,
            },
            3 => Message::LinkDel { name: format!("fr{}", number % 4), transient: number % 8 > 3 },
            4 => Message::GetStatus,
            5 => Message::ListDevices,
            6 if number >= 128 => Message::GetMadFaults,
            7 if number >= 128 => Message::MadFaults {
                generation: u32::from(number % 4),
                rules: MAD_RULES[usize::from(number / 4 % 4)].to_owned(),
            },
            6 => Message::Report(ResourceCounts::default()),
            7 => Message::Done,
            _ => Message::Hello(Hello::ours("eth0")),
        }
    }

    fn resume(&mut self) {
        let Some(client) = self.client() else { return };
        let lie = self.number();
        let who = &self.clients[client];
        let own = |(slot, holder): (&u16, &Holder)| (holder.process == who.process).then_some(*slot);
        let lied = u16::from(lie).saturating_sub(223) * 16 + u16::from(lie % 3);
        let slots: Vec<u16> = match lie {
            224.. if !self.holders.contains_key(&lied) => vec![lied],
            _ => self.holders.iter().filter_map(own).collect(),
        };
        let parked = match &who.parked {
            Some(parked) if lie % 16 != 1 => parked.try_clone().expect("a descriptor"),
            _ => null(),
        };
        let (id, devices) = (who.id, who.devices.clone());
        self.say(client, 0, Message::Devices(devices), Vec::new());
        if let Some(client) = self.clients.iter().position(|client| client.id == id) {
            match self.clients[client].uid == UID {
                true => self.say(client, 1, Message::Resume(slots), vec![parked]),
                false => self.say(client, 1, Message::ResumeByRings(slots), Vec::new()),
            }
        }
    }

    /// Any request about a connection, mostly of ones that there are.
    fn ask_for_connection(&mut self) {
        let Some(client) = self.client() else { return };
        let (what, number) = (self.number(), self.number());
        let id = match self.known.get(usize::from(number)) {
            Some(id) => *id,
            None => CommId(u32::from(number) << 24 | 0x10_0005),
        };
        let handle = u64::from(number % 4);
        let request = match what % 13 {
            0 => CmRequest::Bind(CmBind {
                handle,
                space: if what < 64 { PortSpace::Tcp } else { PortSpace::Udp },
                port: [0, 7000, 7001][usize::from(number / 4 % 3)],
                address: ["0.0.0.0", "::", "127.0.0.1", "::1"][usize::from(number / 16 % 4)]
                    .parse()
                    .expect("an address"),
                interface: 0,
                reuse: what >= 128,
                v6_only: number >= 128,
            }),
            1 => CmRequest::Listen { handle, backlog: u16::from(number / 4) },
            2 if what < 128 => CmRequest::Unbind { handle },
            2 => {
                let space = PortSpace::Tcp;
                let first = [0, 6976, 7000, 32_768][usize::from(number / 4 % 4)];
                match number % 4 {
                    0 => CmRequest::PortBlockReturn { space, first },
                    _ => CmRequest::PortBlock { space, first },
                }
            }
            3 => {
                let route = self.route();
                let service_id = PortSpace::Tcp.service_id(7000);
                CmRequest::Connect(Box::new(ConnectParams {
                    peer_to_peer: what >= 128,
                    starting_psn: Some(Psn::new(3)),
                    private: self.private(),
                    ..ConnectParams::new(route, service_id, 1, Qpn::new(number.into()))
                }))
            }
            4 => {
                let params = Box::new(AcceptParams::new(1, Qpn::new(u32::from(number))));
                CmRequest::Accept { id, params }
            }
            5 => CmRequest::Reject {
                id,
                reason: RejReason::CONSUMER,
                info: Info::NONE,
                private: Box::new(PrivateData::EMPTY),
            },
            6 => CmRequest::Establish(id),
            7 => CmRequest::Disconnect(id),
            8 => CmRequest::Close(id),
            9 => CmRequest::Mra { id, service_timeout: CmTime::saturating(number), at_once: what >= 128 },
            10 => CmRequest::Resolve(Box::new(SidrParams {
                route: self.route(),
                service_id: PortSpace::Udp.service_id(7000),
                response_timeout: CmTime::saturating(20),
                max_cm_retries: number,
                traffic_class: 0,
                private: self.private(),
            })),
            11 => CmRequest::Answer {
                id,
                answer: Box::new(SidrAnswer {
                    status: SidrStatus::VALID,
                    qpn: Qpn::new(1),
                    qkey: Qkey::new(1),
                    ece: Ece::default(),
                    private: PrivateData::EMPTY,
                }),
            },
            _ => match self.clients[client].records.get(usize::from(number % 8)) {
                Some((id, record)) => CmRequest::Restore { id: *id, record: record.clone() },
                None => CmRequest::Restore { id, record: self.bytes().to_vec() },
            },
        };
        self.say(client, 1, Message::Cm(request), Vec::new());
    }

    fn route(&mut self) -> Route {
        let ip = ["127.0.0.1", "::1", "127.0.0.1", "192.0.2.1"][usize::from(self.number() % 4)];
        let ip = ip.parse().expect("an address");
        Route { local: ip, remote: ip, interface: 0 }
    }

    fn private<const N: usize>(&mut self) -> PrivateData<N> {
        let ip = [127, 0, 0, 1].into();
        PrivateData::new(&IpCmHeader { source_port: 1, source: ip, destination: ip }.emit()).expect("it fits")
    }

    /// Delivers the MADs that were sent to this same broker.
    fn deliver(&mut self) {
        for Transmit { route, mad, .. } in std::mem::take(&mut self.wire) {
            let from = Route { local: route.remote, remote: route.local, interface: route.interface };
            self.broker.mad(self.now, from, &mad[..]);
        }
    }

    /// Says something that went over the wire.
    fn say(&mut self, client: usize, id: u32, message: Message, descriptors: Vec<OwnedFd>) {
        self.clients[client].released = match &message {
            Message::Release(slots) => Some(slots.clone()),
            _ => None,
        };
        let Ok(bytes) = message.encode(id) else { return };
        let (id, message) = Message::decode(&bytes, descriptors.len()).expect("what is sent is valid");
        self.broker.message(
            self.now,
            self.clients[client].id,
            id,
            message,
            descriptors.into_iter().map(Into::into).collect(),
        );
        self.check_output();
    }

    /// kill -9 of the broker: programs keep what they hold, and their descriptors keep the port.
    fn broker_dies(&mut self) {
        self.broker = Broker::new(self.system.clone(), UID, [2; 8], interfaces(0));
        if self.all_users {
            self.broker.serve_all_users();
        }
        // Programs without sockets have so long to come back, connected or not when the broker died.
        let now = self.now;
        for holder in self.holders.values_mut().filter(|holder| holder.by_rings) {
            holder.until = Some(now + Duration::from_secs(5));
        }
        let nobody = self.clients.iter().all(|client| client.parked.is_none());
        if nobody {
            self.system.port.borrow_mut().members.clear();
            self.holders.clear();
        }
        // Unreported slots stay their programs' own, who have the sockets open.
        self.system.port.borrow_mut().open_elsewhere = true;
        self.holders.values_mut().for_each(|holder| holder.unknown = true);
        for client in &mut self.clients {
            client.id = ClientId(self.next_client);
            self.next_client += 1;
            let peer = Peer { pid: client.process.0 as u32, uid: client.uid };
            self.broker.connected(client.id, peer, client.process, true);
            self.broker.message(self.now, client.id, 0, Message::Hello(Hello::ours("")), Vec::new());
        }
    }

    /// Takes the output of the broker, and compares it with what the clients hold.
    fn check_output(&mut self) {
        while let Some(output) = self.broker.poll_output() {
            let (to, message, descriptors) = match output {
                Output::Mad(transmit) => {
                    self.wire.push_back(transmit);
                    self.wire.truncate(MADS);
                    continue;
                }
                Output::Send { client, message, descriptors, .. } => (client, message, descriptors),
                Output::OpenRings { .. } | Output::SettleRings { .. } | Output::OpenPipe { .. } => continue,
                Output::Close(client) => {
                    self.clients.retain(|known| known.id != client);
                    continue;
                }
            };
            assert_eq!(message.descriptors(), descriptors.len(), "{message:?}");
            message.encode(0).expect("what the broker says fits a message");
            let Some(client) = self.clients.iter_mut().find(|known| known.id == to) else { continue };
            if client.uid != UID {
                assert!(descriptors.is_empty(), "a descriptor of the broker's for another user: {message:?}");
            }
            match message {
                Message::Leased(leased) => {
                    client.parked = descriptors.into_iter().next();
                    for slot in leased.slots {
                        let (process, client) = (client.process, client.id);
                        let by_rings = leased.by_rings;
                        let new = Holder { process, client, until: None, unknown: false, by_rings };
                        let before = self.holders.insert(slot, new);
                        assert!(
                            before.is_none_or(|before| before.process == process),
                            "slot {slot} is given twice"
                        );
                    }
                }
                Message::Parked => client.parked = descriptors.into_iter().next(),
                Message::Devices(devices) => client.devices = devices,
                Message::Done => {
                    let id = client.id;
                    if let Some(slots) = client.released.take() {
                        // A slot of a member that is leased whole stands for the member.
                        let whole = client.uid == UID;
                        let same =
                            |slot: u16, other: u16| slot == other || (whole && slot / 16 == other / 16);
                        let given =
                            |slot: &u16| slots.is_empty() || slots.iter().any(|other| same(*slot, *other));
                        self.holders.retain(|slot, holder| holder.client != id || !given(slot));
                    }
                }
                Message::Address(address) => {
                    let process = client.process;
                    let own = |member: &u8| {
                        self.holders.get(&first_of(*member)).is_some_and(|holder| holder.process == process)
                    };
                    assert!(address.members.iter().all(own), "sockets of another program's member");
                }
                Message::CmEvent(CmNotice { event, record, .. }) => {
                    let process = client.process;
                    let own = self.holders.get(&event.owner).is_some_and(|holder| holder.process == process);
                    assert!(own, "an event of another program's connection");
                    self.established += usize::from(event.kind == CmEventKind::Established);
                    self.known.push_back(event.id);
                    self.known.truncate(16);
                    client.records.retain(|(id, _)| *id != event.id);
                    client.records.push((event.id, record));
                }
                Message::CmDone(done) => {
                    self.known.push_front(done.id);
                    self.known.truncate(16);
                }
                _ => {}
            }
        }
    }
}

/// Rules for management datagrams.
const MAD_RULES: [&str; 4] = [
    "",
    "drop 30% if op=mad; dup 50% if op=req|rep|dreq",
    "delay=2s~2s if op=mad,nth=every/3; dup if op=rtu",
    "corrupt icrc=ok if op=mad,dir=rx",
];

fn null() -> OwnedFd {
    let file = File::open("/dev/null").expect("/dev/null");
    file.as_fd().try_clone_to_owned().expect("a descriptor")
}

/// `lo`, and more or less of two other interfaces.
fn interfaces(which: u8) -> Vec<Netdev> {
    let mut all = vec![netdev(1, &["127.0.0.1", "::1"])];
    if which & 1 != 0 {
        let addresses: &[&str] = if which & 2 != 0 { &["192.0.2.1", "fe80::1"] } else { &["192.0.2.2"] };
        all.push(netdev(2, addresses));
    }
    if which & 4 != 0 {
        all.push(Netdev { running: which & 8 != 0, ..netdev(3, &["198.51.100.1"]) });
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Steps as they happen, so that long stories come about by chance.
    fn steps() -> impl Strategy<Value = Vec<u8>> {
        let step = prop_oneof![
            6 => (0..8_u8, 0..3_u8).prop_map(|(pid, uid)| vec![0, pid, uid, 1]),
            8 => (0..16_u8, 1..4_u8).prop_map(|(client, count)| vec![2, client, count, 0]),
            2 => (0..16_u8, 0..6_u8).prop_map(|(client, slot)| vec![2, client, slot, 1]),
            6 => (0..16_u8, prop_oneof![4 => Just(0), 1 => any::<u8>()]).prop_map(|(client, lie)| vec![3, client, lie]),
            4 => (4..7_u8, 0..16_u8).prop_map(|(end, client)| vec![end, client]),
            4 => any::<u8>().prop_map(|time| vec![7, time]),
            2 => any::<u8>().prop_map(|which| vec![8, which]),
            1 => (9..11_u8, 0..2_u8).prop_map(|(step, open)| vec![step, open]),
            2 => Just(vec![11]),
            8 => (0..16_u8, any::<u8>(), prop_oneof![3 => 0..16_u8, 1 => any::<u8>()], 0..4_u8)
                .prop_map(|(client, what, number, route)| vec![12, client, what, number, route]),
            4 => Just(vec![13]),
            1 => (proptest::collection::vec(any::<u8>(), 0..60), 0..4_u8).prop_map(|(bytes, route)| {
                [vec![14, bytes.len() as u8], bytes, vec![route]].concat()
            }),
            1 => proptest::collection::vec(any::<u8>(), 1..8),
        ];
        proptest::collection::vec(step, 0..80).prop_map(|steps| steps.concat())
    }

    fn config() -> ProptestConfig {
        let cases = if std::env::var_os("FERROCE_SOAK").is_some() { 100_000 } else { 300 };
        ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]
        #[test]
        fn any_steps(input in steps()) {
            super::run(&input);
        }

        #[test]
        fn any_bytes(input in proptest::collection::vec(any::<u8>(), 0..600)) {
            super::run(&input);
        }
    }

    /// Two programs connect, the broker dies, both come back with their records.
    #[test]
    fn the_seed_of_connections_connects() {
        let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/broker_message/seed-connection");
        assert_eq!(super::told(&std::fs::read(seed).unwrap(), false), 1);
    }

    #[test]
    fn the_corpus() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/broker_message");
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            super::run(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 5, "{corpus} has {count} inputs");
    }
}
