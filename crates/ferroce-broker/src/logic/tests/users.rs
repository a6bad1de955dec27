//! Programs of other users than the broker's.

use ferroce_cm::{ConnectParams, Route};
use ferroce_ipc::ledger::{Ledger, Table};
use ferroce_ipc::{CmBind, CmRequest, Origin};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{CommId, IpCmHeader, Mad, PortSpace, PrivateData, Req};

use super::*;

const ANN: u32 = 2001;
const BOB: u32 = 2002;

/// The broker of all users; client 1 is its own user's, 2 and 3 are Ann's, 4 is Bob's.
fn bench() -> Bench {
    let mut bench = Bench::loopback();
    bench.broker.serve_all_users();
    for (client, uid) in [(1, UID), (2, ANN), (3, ANN), (4, BOB)] {
        bench.join(client, uid);
    }
    bench
}

impl Bench {
    fn join(&mut self, client: u64, uid: u32) {
        self.join_as(client, uid, Hello::ours(""));
    }

    fn join_as(&mut self, client: u64, uid: u32, hello: Hello) {
        let pid = client as u32 + 100;
        self.broker.connected(ClientId(client), Peer { pid, uid }, ProcessId(pid.into()), true);
        let sent = self.say(client, Message::Hello(hello), vec![]);
        assert!(matches!(&sent[0].1, Message::Hello(hello) if hello.features & ALL_USERS != 0));
    }

    /// The slots of a lease that brings no descriptor.
    pub(super) fn lease_slots(&mut self, client: u64, count: u8) -> Result<Vec<u16>, Refusal> {
        slots_of(self.say(client, Message::Lease(count), vec![]))
    }

    fn come_back(&mut self, client: u64, slots: &[u16]) -> Result<Vec<u16>, Refusal> {
        slots_of(self.say(client, Message::ResumeByRings(slots.to_vec()), vec![]))
    }

    fn refused(&mut self, client: u64, message: Message) -> Option<RefusalCode> {
        match self.say(client, message, vec![]).pop() {
            Some((_, Message::Refused(refusal), _)) => Some(refusal.code),
            _ => None,
        }
    }
}

fn bind(handle: u64, port: u16) -> CmBind {
    CmBind {
        handle,
        space: PortSpace::Tcp,
        port,
        address: "127.0.0.1".parse().unwrap(),
        interface: 0,
        reuse: false,
        v6_only: false,
    }
}

fn slots_of(sent: Sent) -> Result<Vec<u16>, Refusal> {
    for (_, message, descriptors) in sent {
        match message {
            Message::Leased(Leased { slots, by_rings: true, addresses: 0, .. }) => {
                assert!(descriptors.is_empty());
                return Ok(slots);
            }
            Message::Refused(refusal) => return Err(refusal),
            Message::Devices(_) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no answer");
}

#[test]
fn another_user_gets_slots_of_a_divided_member_and_no_socket() {
    let mut bench = bench();
    assert_eq!(bench.lease(1, 1).unwrap().0, [1]);
    assert_eq!(bench.lease_slots(2, 1).unwrap(), [0x20]);
    assert_eq!(bench.lease_slots(4, 1).unwrap(), [0x21]);
    assert_eq!(bench.lease_slots(2, 1).unwrap(), [0x22], "a program's slots differ in their low bits");
    assert_eq!(bench.status().group_size, 3, "one member for all of them");
    // An address that appears brings no socket either.
    bench.broker.netdevs_changed(vec![netdev(1, &["127.0.0.1", "::1", "127.0.0.9"])]);
    for (client, sent) in bench.output() {
        for (_, message, descriptors) in sent {
            assert_eq!(descriptors.is_empty(), client != 1 || !matches!(message, Message::Address(_)));
        }
    }
    let view = bench.broker.switch_view();
    let relayed = |client: u64| -> Option<bool> {
        view.programs.iter().find(|p| p.client == ClientId(client)).map(|p| p.relayed)
    };
    assert_eq!((relayed(1), relayed(2), relayed(3), relayed(4)), (Some(false), Some(true), None, Some(true)));
    assert_eq!(
        view.relays.iter().map(|relay| relay.member).collect::<Vec<_>>(),
        [2, 2, 2],
        "on each address"
    );
}

#[test]
fn nobody_touches_the_slots_ports_and_pipes_of_another_user() {
    let mut bench = bench();
    bench.lease(1, 1).unwrap();
    let (ann, bob) = (bench.lease_slots(2, 1).unwrap(), bench.lease_slots(4, 1).unwrap());
    assert_eq!(bench.refused(4, Message::Release(ann.clone())), Some(RefusalCode::BadRequest));
    assert_eq!(bench.come_back(4, &ann).unwrap_err().code, RefusalCode::Failed);
    assert_eq!(bench.come_back(4, &slots(&[1])).unwrap_err().code, RefusalCode::Failed);
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let sent = bench.say(4, Message::Resume(slots(&[1])), vec![null()]);
    assert!(matches!(&sent[0].1, Message::Refused(refusal) if refusal.code == RefusalCode::BadRequest));
    let bind = bind(7, 7471);
    let listen = CmRequest::Listen { handle: 7, backlog: 0 };
    for request in [CmRequest::Bind(bind), listen.clone()] {
        assert_eq!(bench.refused(2, Message::Cm(request)), None);
    }
    assert_eq!(bench.refused(4, Message::Cm(CmRequest::Bind(bind))), Some(RefusalCode::AddressInUse));
    assert_eq!(bench.refused(4, Message::Cm(listen)), Some(RefusalCode::UnknownId), "Ann's handle is hers");
    bench.refused(4, Message::Cm(CmRequest::Unbind { handle: 7 }));
    assert_eq!(bench.status().cm.listeners, 1);
    // Both take pipes, and get none to each other.
    for client in [1, 2, 3, 4] {
        assert_eq!(bench.say(client, Message::OfferPipes { direct: false }, vec![null()]).len(), 1);
    }
    for (client, slot) in [(4, ann[0]), (4, 0x10), (1, bob[0])] {
        assert_eq!(bench.refused(client, Message::OpenPipe(slot)), Some(RefusalCode::WrongState));
    }
    bench.lease_slots(3, 1).unwrap();
    bench.say(3, Message::OpenPipe(ann[0]), vec![]);
    // `say` leaves out what is no message, so the refusal's absence is the proof.
    assert_eq!(bench.refused(3, Message::OpenPipe(ann[0])), None, "one user's programs get pipes");
}

#[test]
fn other_users_administrate_nothing_and_see_their_own() {
    let mut bench = bench();
    bench.lease(1, 1).unwrap();
    let (ann, bob) = (bench.lease_slots(2, 1).unwrap(), bench.lease_slots(4, 1).unwrap());
    let add = || Message::LinkAdd {
        name: "fr1".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "lo".to_owned(),
        transient: true,
    };
    let others = [
        add(),
        Message::LinkDel { name: "fr0".to_owned(), transient: true },
        Message::LinkRename { name: "fr0".to_owned(), to: "x".to_owned(), transient: true },
        Message::LinkSet { name: "fr0".to_owned(), settings: Vec::new(), transient: true, force: true },
        Message::Stop { force: true },
    ];
    for message in others {
        assert_eq!(bench.refused(4, message.clone()), Some(RefusalCode::Permission), "{message:?}");
    }
    assert!(!bench.broker.is_stopped());
    let seen = |bench: &mut Bench, client| -> Vec<u32> {
        bench.broker.status(ClientId(client)).programs.iter().map(|program| program.uid).collect()
    };
    assert_eq!(
        (seen(&mut bench, 1), seen(&mut bench, 2), seen(&mut bench, 4)),
        (vec![UID, ANN, BOB], vec![ANN], vec![BOB])
    );
    for (client, slot) in [(2, ann[0]), (4, bob[0])] {
        let (ledger, file) = Ledger::create(slot).unwrap();
        std::sync::Arc::new(ledger).record(Table::Qp);
        bench.say(client, Message::Ledger, vec![file.unwrap()]);
    }
    let ledgers = |bench: &mut Bench, client| bench.say(client, Message::GetLedgers, vec![]).len() - 1;
    assert_eq!((ledgers(&mut bench, 1), ledgers(&mut bench, 2), ledgers(&mut bench, 4)), (2, 1, 1));
    let bind = |handle, port| CmBind {
        handle,
        space: PortSpace::Tcp,
        port,
        address: "0.0.0.0".parse().unwrap(),
        interface: 0,
        reuse: false,
        v6_only: false,
    };
    for (client, port) in [(1, 7001), (2, 7002), (4, 7003)] {
        bench.say(client, Message::Cm(CmRequest::Bind(bind(1, port))), vec![]);
    }
    let ports = |bench: &mut Bench, client| -> Vec<u16> {
        match bench.say(client, Message::GetCmIds(0), vec![]).pop() {
            Some((_, Message::CmIds { ids, .. }, _)) => ids.iter().map(|id| id.local.port()).collect(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((ports(&mut bench, 1), ports(&mut bench, 4)), (vec![7001, 7002, 7003], vec![7003]));
    let process = bench.broker.clients.get(ClientId(4)).unwrap().process;
    bench.broker.disconnected(bench.now, ClientId(4));
    bench.broker.died(bench.now, process);
    let ended = |bench: &mut Bench, client| bench.say(client, Message::GetEndedLedgers, vec![]).len() - 1;
    assert_eq!((ended(&mut bench, 1), ended(&mut bench, 2)), (1, 0));
}

#[test]
fn a_user_leaves_as_many_slots_as_it_has() {
    let mut bench = bench();
    let mut client = 10;
    let mut fill = |bench: &mut Bench, uid| -> (usize, Refusal) {
        let mut count = 0;
        loop {
            client += 1;
            bench.join(client, uid);
            match bench.lease_slots(client, 1) {
                Ok(slots) => count += slots.len(),
                Err(refusal) => return (count, refusal),
            }
        }
    };
    let (ann, refusal) = fill(&mut bench, ANN);
    let (bob, _) = fill(&mut bench, BOB);
    assert_eq!((ann, bob), (1008, 504));
    assert_eq!(refusal.code, RefusalCode::NoSlots);
    assert!(refusal.sentence.contains("uid 2001 hold 1008 slots"), "{refusal}");
    bench.join(9000, 2003);
    assert_eq!(bench.lease_slots(9000, 1).unwrap().len(), 1, "there is something for everybody");
    assert_eq!(bench.lease(1, 1).unwrap().0.len(), 1, "and a member for the broker's user");
}

#[test]
fn ports_and_blocks_are_limited_for_each_user() {
    let mut bench = bench();
    bench.lease_slots(2, 1).unwrap();
    bench.lease_slots(3, 1).unwrap();
    bench.lease_slots(4, 1).unwrap();
    let bind = |handle: u64| bind(handle, 2000 + (handle % 40_000) as u16);
    let refused = (0..20_000_u64).find_map(|handle| {
        let client = 2 + handle % 2;
        let code = bench.refused(client, Message::Cm(CmRequest::Bind(bind(handle))));
        code.map(|code| (handle, code))
    });
    assert_eq!(refused, Some((16_384, RefusalCode::Full)));
    assert_eq!(bench.refused(4, Message::Cm(CmRequest::Bind(bind(30_000)))), None);
}

#[test]
fn the_name_of_a_process_is_read_once_a_second() {
    let mut bench = bench();
    bench.lease_slots(2, 1).unwrap();
    bench.lease_slots(3, 1).unwrap();
    let read = |bench: &Bench| bench.system.port.borrow().commands.get();
    let before = read(&bench);
    for _ in 0..100 {
        let Some((_, Message::Status(status), _)) = bench.say(2, Message::GetStatus, vec![]).pop() else {
            panic!("no status")
        };
        let names: Vec<&str> = status.programs.iter().map(|program| program.command.as_str()).collect();
        assert_eq!(names, ["program102", "program103"]);
        bench.say(3, Message::GetLedgers, vec![]);
    }
    assert_eq!(read(&bench) - before, 2);
    bench.after(Duration::from_secs(1));
    bench.say(2, Message::GetStatus, vec![]);
    assert_eq!(read(&bench) - before, 4);
}

/// A slot that a program leases later can be lower than its first one.
#[test]
fn ports_stay_their_programs_when_it_gets_another_slot() {
    let mut bench = bench();
    let first = bench.lease_slots(2, 1).unwrap();
    let second = bench.lease_slots(4, 1).unwrap();
    let bind = bind(1, 7471);
    assert_eq!(bench.refused(4, Message::Cm(CmRequest::Bind(bind))), None);
    bench.broker.died(bench.now, ProcessId(102));
    assert!(first < second);
    assert_eq!(bench.lease_slots(4, 1).unwrap(), first, "the lowest one that is free");
    assert_eq!(bench.refused(4, Message::Cm(CmRequest::Listen { handle: 1, backlog: 0 })), None);
    assert_eq!(bench.refused(4, Message::Cm(CmRequest::Unbind { handle: 1 })), None);
    let status = bench.status().cm;
    assert_eq!((status.ports, status.listeners), (0, 0));
}

#[test]
fn slots_without_sockets_survive_the_broker_with_their_users() {
    let mut bench = bench();
    let (ann, bob) = (bench.lease_slots(2, 1).unwrap(), bench.lease_slots(4, 1).unwrap());
    bench.dies();
    bench.system.port.borrow_mut().members.clear(); // nobody but the broker had the sockets
    bench.broker.serve_all_users();
    for (client, uid) in [(1, UID), (12, ANN), (14, BOB), (15, BOB)] {
        bench.join(client, uid);
    }
    assert_eq!(bench.lease_slots(15, 1).unwrap(), [0x12], "the others may come back");
    assert_eq!(bench.come_back(15, &ann).unwrap_err().code, RefusalCode::Failed, "Bob wants what is Ann's");
    assert_eq!(bench.come_back(12, &ann).unwrap(), ann);
    assert_eq!(bench.come_back(14, &bob).unwrap(), bob);
    bench.dies();
    bench.system.port.borrow_mut().members.clear();
    bench.broker.serve_all_users();
    bench.join(21, ANN);
    bench.join(22, BOB);
    assert_eq!(bench.come_back(21, &ann).unwrap(), ann);
    bench.after(UNCLAIMED_CHECK_INTERVAL * 2);
    assert_eq!(bench.lease_slots(22, 1).unwrap(), bob, "Bob's program did not come back");
}

/// Without other users as well: when no member is left, programs get slots.
#[test]
fn one_users_programs_get_slots_when_members_are_out() {
    let mut bench = Bench::loopback();
    for client in 1..=8 {
        bench.connect(client, client as u32);
        bench.lease(client, 16).unwrap();
    }
    bench.connect(9, 9);
    assert_eq!(bench.lease_slots(9, 1).unwrap(), [129 * 16]);
    assert_eq!(bench.lease(1, 1).unwrap_err().sentence, "a program may have 16 slots at most");
    bench.connect(10, 10);
    assert_eq!(bench.lease_slots(10, 16).unwrap().len(), 16);
    let sixteen = bench.broker.leases.slots.of(ClientId(10));
    let low: BTreeSet<u16> = sixteen.iter().map(|slot| slot % 16).collect();
    assert_eq!(low.len(), 16, "{sixteen:?}");
}

/// The devices that a program says it knew would bring back links and tables of GIDs.
#[test]
fn another_users_program_brings_back_no_links() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    bench.broker.serve_all_users();
    bench.join(4, BOB);
    bench.join(5, 0);
    let slots = bench.lease_slots(4, 1).unwrap();
    let fr0 = bench.devices(4).pop().unwrap();
    let forged = DeviceInfo {
        name: "bobs".to_owned(),
        netdev: "eth0".to_owned(),
        ifindex: 2,
        origin: Origin::Link,
        gids: Vec::new(),
        ..fr0.clone()
    };
    let emptied = DeviceInfo { gids: Vec::new(), ..fr0.clone() };
    for claimed in [slots, Vec::new()] {
        bench.say(4, Message::Devices(vec![forged.clone(), emptied.clone()]), vec![]);
        bench.come_back(4, &claimed).ok();
        assert_eq!((names(&bench.devices(5)), gids(&bench.devices(5)[0])), (vec!["fr0"], gids(&fr0)));
    }
}

/// Bob's program has a connection to a queue pair of a peer, or says so. Ann's program listens.
#[test]
fn a_peers_queue_pair_is_another_one_for_another_user() {
    let mut bench = bench();
    let (ann, bob) = (bench.lease_slots(2, 1).unwrap(), bench.lease_slots(4, 1).unwrap());
    for (client, port) in [(4, 7001), (2, 7002), (2, 7003)] {
        for request in
            [CmRequest::Bind(bind(port.into(), port)), CmRequest::Listen { handle: port.into(), backlog: 0 }]
        {
            bench.ask(client, request).unwrap();
        }
    }
    let (local, remote) = ([127, 0, 0, 1].into(), [192, 0, 2, 9].into());
    let header = IpCmHeader { source_port: 1, source: remote, destination: local }.emit();
    let heard: Vec<Option<u16>> = [7001, 7002, 7003]
        .map(|port| {
            let message = ferroce_wire::cm::Message::Req(Req {
                local_id: CommId(port.into()),
                service_id: PortSpace::Tcp.service_id(port),
                private: PrivateData::new(&header).unwrap(),
                ..connections::req()
            });
            let mad = Mad { transaction_id: 1, message }.emit();
            bench.broker.mad(bench.now, Route { local, remote, interface: 0 }, &mad);
            bench.run().first().map(|(_, event, _)| event.owner)
        })
        .into();
    assert_eq!(heard, [Some(bob[0]), Some(ann[0]), None], "the last one is stale for Ann");
}

/// A program of another user gets back the connections that a broker gave it, and no others.
#[test]
fn programs_of_other_users_restore_what_a_broker_gave_them() {
    let mut bench = bench();
    bench.lease(1, 1).unwrap();
    let ann = bench.lease_slots(2, 1).unwrap();
    let [_, (id, record)] = bench.connected();
    let restore = |id, record: &[u8]| CmRequest::Restore { id, record: record.to_vec() };
    let unknown = Err(RefusalCode::UnknownId);
    assert!(bench.ask(2, restore(id, &record)).is_ok(), "this broker knows it");
    let other = CommId(id.0 ^ 1);
    assert_eq!(bench.ask(2, restore(other, &record)), unknown, "the slot is of no earlier broker");
    // The next broker: whether the key is an earlier one's.
    let next = |bench: &mut Bench, has_key: bool| {
        bench.dies();
        bench.system.port.borrow_mut().members.clear();
        bench.system.port.borrow().has_record_key.set(has_key);
        bench.broker.serve_all_users();
        bench.join(12, ANN);
        assert_eq!(bench.ask(12, restore(id, &record)), unknown, "it has no slot");
        assert_eq!(bench.come_back(12, &ann).unwrap(), ann);
    };
    let forged = |at: usize| {
        let mut forged = record.clone();
        forged[at] ^= 1;
        forged
    };
    next(&mut bench, true);
    for at in [1, 20, 71, 72, 87, 88, record.len() - 1] {
        assert_eq!(bench.ask(12, restore(id, &forged(at))), unknown, "octet {at}");
    }
    let back = bench.ask(12, restore(id, &record)).unwrap();
    assert_eq!(bench.broker.connections.cm.status().connections, 1);
    // The record is another one by its age, and good for the next broker as well.
    next(&mut bench, true);
    assert!(bench.ask(12, restore(id, &back.record)).is_ok());
    // An earlier broker without a key wrote no codes.
    next(&mut bench, false);
    assert!(bench.ask(12, restore(id, &forged(72))).is_ok());
    next(&mut bench, true);
    assert!(bench.ask(12, CmRequest::Restored).is_ok());
    assert_eq!(bench.ask(12, restore(id, &record)), unknown, "it said that this was all");
}

/// A program that asks for MADs as packets changes nothing for other users, and its wish ends with it.
/// Each end sends a datagram. The slot is nobody else's until all connections have ended.
#[test]
fn the_end_of_many_connections_leaves_the_others_their_turns() {
    let mut bench = bench();
    let slots = bench.lease_slots(2, 1).unwrap();
    let ip = [127, 0, 0, 1].into();
    let route = Route { local: ip, remote: ip, interface: 0 };
    for n in 0..2 * MOST_ENDED {
        let params = ConnectParams::new(route, PortSpace::Tcp.service_id(7471), 1, Qpn::new(n as u32));
        assert!(bench.ask(2, CmRequest::Connect(Box::new(params))).is_ok());
    }
    let mads = |bench: &mut Bench| {
        let all = std::iter::from_fn(|| bench.broker.poll_output());
        all.filter(|output| matches!(output, Output::Mad(_))).count()
    };
    mads(&mut bench);
    bench.broker.message(bench.now, ClientId(2), 5, Message::Release(vec![]), vec![]);
    assert_eq!(mads(&mut bench), MOST_ENDED);
    assert_ne!(bench.lease_slots(4, 1).unwrap(), slots);
    for ended in [MOST_ENDED, 0] {
        assert_eq!(bench.broker.deadline(), Some(bench.now), "the next turn goes on");
        bench.after(Duration::ZERO);
        assert_eq!(mads(&mut bench), ended);
    }
    assert_eq!(bench.lease_slots(3, 1).unwrap(), slots);
}

#[test]
fn mads_within_the_host_are_packets_for_the_users_that_ask() {
    let mut bench = bench();
    for client in [2, 4] {
        bench.lease_slots(client, 1).unwrap();
    }
    let ip = [127, 0, 0, 1].into();
    let route = Route { local: ip, remote: ip, interface: 0 };
    let header = IpCmHeader { source_port: 1, source: ip, destination: ip }.emit();
    let params = ConnectParams {
        private: PrivateData::new(&header).unwrap(),
        ..ConnectParams::new(route, PortSpace::Tcp.service_id(7471), 1, Qpn::new(8))
    };
    let connect = Message::Cm(CmRequest::Connect(Box::new(params)));
    bench.broker.message(bench.now, ClientId(2), 5, connect, vec![]);
    let request = loop {
        match bench.broker.poll_output() {
            Some(Output::Mad(transmit)) => break transmit,
            Some(_) => {}
            None => panic!("no MAD"),
        }
    };
    let showing = Hello { features: SHOW_MADS, ..Hello::ours("") };
    for (uid, want) in [(BOB, false), (ANN, true), (UID, true), (0, true)] {
        assert!(!bench.broker.shows(&request));
        bench.join_as(9, uid, showing.clone());
        assert_eq!(bench.broker.shows(&request), want, "uid {uid}");
        bench.broker.disconnected(bench.now, ClientId(9));
    }
    assert!(!bench.broker.shows(&request), "all that asked are gone");
}
