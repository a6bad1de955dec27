mod connections;
mod devices;
mod dpdk;
mod faults;
mod iwarp;
mod ledgers;
mod settings;
mod users;
mod xdp;
mod xdp_direct;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use ferroce_ipc::{ALL_USERS, DeviceInfo, GidEntry, Leased, LinkKind};

use super::*;
use crate::fake::{Fake, netdev};
use crate::slots::{first_of, member_of};

const UID: u32 = 1000;

/// A broker, and clients that are numbers.
struct Bench {
    broker: Broker<Fake>,
    system: Fake,
    now: Instant,
}

/// The messages to one client, with their descriptors.
type Sent = Vec<(u32, Message, Vec<OwnedFd>)>;

impl Bench {
    fn new(netdevs: Vec<Netdev>) -> Self {
        let system = Fake::default();
        Self { broker: Broker::new(system.clone(), UID, [2; 8], netdevs), system, now: Instant::now() }
    }

    fn loopback() -> Self {
        Self::new(vec![netdev(1, &["127.0.0.1", "::1"])])
    }

    /// kill -9, and the next one.
    fn dies(&mut self) {
        let host = self.broker.links.host.clone();
        // Its descriptors are closed before the next one begins.
        self.broker = Broker::new(Fake::default(), UID, [2; 8], Vec::new());
        self.broker = Broker::new(self.system.clone(), UID, [2; 8], host);
        self.system.port.borrow_mut().emptied.clear();
    }

    /// Everything that was sent meanwhile; closing is a message as well.
    fn output(&mut self) -> Vec<(u64, Sent)> {
        let mut all: Vec<(u64, Sent)> = Vec::new();
        while let Some(output) = self.broker.poll_output() {
            if let Output::Send { client, id, message, descriptors } = output {
                assert_eq!(message.descriptors(), descriptors.len());
                match all.iter_mut().find(|(to, _)| *to == client.0) {
                    Some((_, sent)) => sent.push((id, message, descriptors)),
                    None => all.push((client.0, vec![(id, message, descriptors)])),
                }
            }
        }
        all
    }

    fn connect(&mut self, client: u64, pid: u32) {
        self.connect_for(client, pid, "");
    }

    fn connect_for(&mut self, client: u64, pid: u32, netdev: &str) -> Sent {
        self.greet(client, pid, Hello::ours(netdev))
    }

    fn greet(&mut self, client: u64, pid: u32, hello: Hello) -> Sent {
        self.broker.connected(ClientId(client), Peer { pid, uid: UID }, ProcessId(pid.into()), true);
        let sent = self.say(client, Message::Hello(hello), vec![]);
        assert!(matches!(sent[0].1, Message::Hello(_)));
        sent
    }

    /// Sends a message as the client, and returns the broker's messages to it.
    fn say(&mut self, client: u64, message: Message, descriptors: Vec<OwnedFd>) -> Sent {
        let descriptors = descriptors.into_iter().map(Strange::from).collect();
        self.broker.message(self.now, ClientId(client), 5, message, descriptors);
        self.heard(client)
    }

    fn heard(&mut self, client: u64) -> Sent {
        self.output().into_iter().filter(|(to, _)| *to == client).flat_map(|(_, sent)| sent).collect()
    }

    /// The members, the addresses with sockets and the parked descriptors of a lease.
    fn lease(&mut self, client: u64, count: u8) -> Result<(Vec<u8>, Vec<String>, OwnedFd), Refusal> {
        let sent = self.say(client, Message::Lease(count), vec![]);
        granted(sent)
    }

    fn resume(&mut self, client: u64, members: &[u8], parked: &OwnedFd) -> Result<Vec<u8>, Refusal> {
        let parked = parked.try_clone().unwrap();
        granted(self.say(client, Message::Resume(slots(members)), vec![parked])).map(|(members, ..)| members)
    }

    fn devices(&mut self, client: u64) -> Vec<DeviceInfo> {
        match self.say(client, Message::ListDevices, vec![]).pop() {
            Some((5, Message::Devices(devices), _)) => devices,
            other => panic!("{other:?}"),
        }
    }

    fn status(&mut self) -> Status {
        self.broker.status(ClientId(0))
    }

    fn after(&mut self, time: Duration) {
        self.now += time;
        self.broker.tick(self.now);
    }
}

fn granted(sent: Sent) -> Result<(Vec<u8>, Vec<String>, OwnedFd), Refusal> {
    let mut sent = sent.into_iter().skip_while(|(id, ..)| *id != 5);
    match sent.next() {
        Some((5, Message::Leased(Leased { slots: leased, addresses, by_rings: false, .. }), mut parked)) => {
            let members: Vec<u8> = leased.iter().step_by(16).map(|slot| member_of(*slot)).collect();
            assert_eq!(leased, slots(&members));
            let mut found = Vec::new();
            for _ in 0..addresses {
                match sent.next() {
                    Some((5, Message::Address(address), sockets)) => {
                        assert_eq!((&address.members, sockets.len()), (&members, members.len()));
                        found.push(address.ip.to_string());
                    }
                    other => panic!("{other:?}"),
                }
            }
            Ok((members, found, parked.pop().unwrap()))
        }
        Some((_, Message::Refused(refusal), _)) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// All slots of these members.
fn slots(members: &[u8]) -> Vec<u16> {
    members.iter().flat_map(|member| (first_of(*member)..).take(16)).collect()
}

fn names(devices: &[DeviceInfo]) -> Vec<&str> {
    devices.iter().map(|d| d.name.as_str()).collect()
}

fn gids(device: &DeviceInfo) -> Vec<String> {
    device.gids.iter().map(|e: &GidEntry| format!("{} {}", e.index, e.gid.to_ip())).collect()
}

#[test]
fn slots_are_opened_on_demand_lowest_free_first() {
    let mut bench = Bench::loopback();
    for client in 1..=3 {
        bench.connect(client, client as u32 + 100);
        let (slots, addresses, _) = bench.lease(client, 1).unwrap();
        assert_eq!(slots, [client as u8]);
        assert_eq!(addresses, ["127.0.0.1", "::1"]);
    }
    assert_eq!(bench.status().group_size, 4, "none more than needed, and the broker's own");
    bench.broker.died(bench.now, ProcessId(102));
    bench.broker.died(bench.now, ProcessId(101));
    bench.connect(4, 104);
    assert_eq!(bench.lease(4, 3).unwrap().0, [1, 2, 4]);
    assert_eq!(bench.status().group_size, 5);
    let programs = bench.status().programs;
    assert_eq!(
        programs.iter().map(|p| (p.pid, p.slots.clone())).collect::<Vec<_>>(),
        [(103, slots(&[3])), (104, slots(&[1, 2, 4]))]
    );
}

#[test]
fn a_slot_is_emptied_for_its_next_holder_and_for_nobody_else() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.connect(2, 102);
    bench.lease(1, 1).unwrap();
    bench.system.port.borrow_mut().emptied.clear();
    bench.lease(2, 1).unwrap();
    let emptied: Vec<u8> = bench.system.port.borrow().emptied.iter().map(|(_, slot)| *slot).collect();
    assert_eq!(emptied, [2, 2], "on both addresses, not the first program's");
}

#[test]
fn slots_run_out_with_a_sentence() {
    let mut bench = Bench::loopback();
    for client in 1..=8 {
        bench.connect(client, client as u32);
        bench.lease(client, 16).unwrap();
    }
    for client in 9..135 {
        bench.connect(client, client as u32);
        bench.lease_slots(client, 16).unwrap();
    }
    bench.connect(135, 135);
    let refusal = bench.lease_slots(135, 1).unwrap_err();
    assert_eq!(
        (refusal.code, refusal.sentence.as_str()),
        (RefusalCode::NoSlots, "all slots of this network namespace are leased")
    );
    let refusal = bench.lease(1, 1).unwrap_err();
    assert_eq!(refusal.sentence, "a program may have 16 slots at most");
    assert_eq!(bench.status().group_size, 255);
}

#[test]
fn death_is_the_processes_not_the_connections() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.connect(2, 102);
    bench.lease(1, 1).unwrap();
    // A forked child holds the connection: the process's death frees the slot all the same.
    bench.broker.died(bench.now, ProcessId(101));
    assert_eq!(bench.lease(2, 1).unwrap().0, [1]);
    assert!(!bench.broker.processes().contains(&ProcessId(101)));

    // exec: the connection ends, the process does not.
    bench.broker.disconnected(bench.now, ClientId(2));
    assert!(bench.broker.processes().contains(&ProcessId(102)));
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [2], "not yet free");
    assert_eq!(bench.broker.deadline(), Some(bench.now + EXEC_GRACE));
    bench.after(EXEC_GRACE);
    bench.connect(4, 104);
    assert_eq!(bench.lease(4, 1).unwrap().0, [1]);

    // A client that we gave up, perhaps because it is stopped: its slot stays while the process lives.
    bench.broker.lost(ClientId(4));
    bench.after(Duration::from_secs(3600));
    assert_eq!(bench.lease(3, 1).unwrap().0, [3]);
    bench.broker.died(bench.now, ProcessId(104));
    assert_eq!(bench.lease(3, 1).unwrap().0, [1]);
}

#[test]
fn a_program_whose_connection_broke_resumes() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    let (slots, _, parked) = bench.lease(1, 2).unwrap();
    bench.broker.disconnected(bench.now, ClientId(1));
    bench.connect(2, 101);
    bench.system.port.borrow_mut().emptied.clear();
    assert_eq!(bench.resume(2, &slots, &parked).unwrap(), slots);
    bench.after(Duration::from_secs(10));
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [3]);
    // Another program's slots are not resumed.
    assert_eq!(bench.resume(3, &[1, 3], &parked).unwrap(), [3]);
}

#[test]
fn released_slots_are_free_at_once_and_only_by_their_holder() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.connect(2, 102);
    bench.lease(1, 3).unwrap();
    let refused = bench.say(2, Message::Release(slots(&[1])), vec![]);
    assert!(matches!(&refused[0].1, Message::Refused(r) if r.code == RefusalCode::BadRequest));
    assert_eq!(bench.say(1, Message::Release(slots(&[2])), vec![])[0].1, Message::Done);
    assert_eq!(bench.lease(2, 1).unwrap().0, [2]);
    assert_eq!(bench.say(1, Message::Release(vec![]), vec![])[0].1, Message::Done);
    assert_eq!(bench.lease(2, 2).unwrap().0, [1, 3]);
    assert!(!bench.broker.is_idle());
}

#[test]
fn a_new_broker_takes_back_what_is_parked() {
    let mut bench = Bench::loopback();
    let mut parked = Vec::new();
    for client in 1..=3 {
        bench.connect(client, client as u32 + 100);
        parked.push(bench.lease(client, 1).unwrap().2);
    }
    bench.dies();
    // A newcomer is first, and waits.
    bench.connect(9, 109);
    assert!(bench.say(9, Message::Lease(1), vec![]).is_empty());
    // The first survivor brings the sockets; the newcomer gets a new slot, since the others may be anybody's.
    bench.connect(1, 101);
    bench.broker.message(
        bench.now,
        ClientId(1),
        5,
        Message::Resume(slots(&[1])),
        vec![parked.remove(0).into()],
    );
    let output = bench.output();
    let of = |client: u64| output.iter().filter(move |(to, _)| *to == client).flat_map(|(_, sent)| sent);
    assert!(of(1).any(|(id, m, _)| *id == 5 && matches!(m, Message::Leased(l) if l.slots == slots(&[1]))));
    assert!(of(9).any(|(id, m, _)| *id == 5 && matches!(m, Message::Leased(l) if l.slots == slots(&[4]))));
    assert!(bench.status().adopted);
    let emptied = bench.system.port.borrow().emptied.clone();
    assert!(emptied.iter().all(|(_, slot)| *slot == 4), "survivors' traffic goes on: {emptied:?}");
    // The others come, one is dead.
    bench.connect(3, 103);
    assert_eq!(bench.resume(3, &[3], &parked[1]).unwrap(), [3]);
    bench.after(UNCLAIMED_CHECK_INTERVAL);
    bench.connect(10, 110);
    assert_eq!(bench.lease(10, 2).unwrap().0, [2, 5]);
}

#[test]
fn an_unclaimed_slot_waits_while_somebody_has_its_socket() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.connect(2, 102);
    let parked = bench.lease(1, 1).unwrap().2;
    let stopped = bench.lease(2, 1).unwrap().2;
    bench.dies();
    bench.system.port.borrow_mut().open_elsewhere = true;
    bench.connect(1, 101);
    bench.resume(1, &[1], &parked).unwrap();
    bench.after(UNCLAIMED_CHECK_INTERVAL * 3);
    assert_eq!(bench.lease(1, 1).unwrap().0, [3]);
    bench.connect(2, 102);
    assert_eq!(bench.resume(2, &[2], &stopped).unwrap(), [2]);
}

#[test]
fn numbers_of_survivors_that_do_not_answer_are_nobody_elses() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    bench.connect(1, 101);
    let (slots, _, parked) = bench.lease(1, 2).unwrap();
    bench.dies();
    bench.connect(2, 102);
    let add = Message::LinkAdd {
        name: "fr1".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth0".to_owned(),
        transient: false,
    };
    bench.say(2, add, vec![]);
    assert!(bench.say(2, Message::Lease(1), vec![]).is_empty());
    bench.after(leases::RETURN_GRACE);
    let (lent, addresses, _) = granted(bench.heard(2)).unwrap();
    assert_eq!((lent, addresses), (vec![3], vec!["192.0.2.1".to_owned()]), "eth0 works, lo is in use");
    assert_eq!(gids(&bench.devices(2)[1]), [""; 0]);
    bench.after(UNCLAIMED_CHECK_INTERVAL * 4);
    assert_eq!(bench.lease(2, 1).unwrap().0, [4], "nor later");
    bench.connect(1, 101);
    assert_eq!(bench.resume(1, &slots, &parked).unwrap(), slots);
    assert_eq!(gids(&bench.devices(2)[1]), ["0 127.0.0.1"]);
    assert_eq!(bench.lease(2, 1).unwrap().1, ["192.0.2.1", "127.0.0.1"]);
}

/// As above, but the host has lost the address of their sockets, so that no other program asks for it. Found
/// by the fuzzer.
#[test]
fn numbers_of_survivors_on_an_address_that_is_gone_are_nobody_elses() {
    let (lo, eth0) = (netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"]));
    let mut bench = Bench::new(vec![lo.clone(), eth0.clone()]);
    bench.connect(1, 101);
    let (slots, _, parked) = bench.lease(1, 1).unwrap();
    assert_eq!(slots, [1]);
    bench.dies();
    bench.connect(2, 102);
    let add = |name: &str| Message::LinkAdd {
        name: name.to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth0".to_owned(),
        transient: false,
    };
    bench.say(2, add("fr1"), vec![]);
    assert!(bench.say(2, Message::Lease(1), vec![]).is_empty());
    bench.after(leases::RETURN_GRACE);
    let (stopped, addresses, stopped_parked) = granted(bench.heard(2)).unwrap();
    assert_eq!((&stopped[..], addresses), (&[2][..], vec!["192.0.2.1".to_owned()]));
    bench.dies();
    bench.broker.netdevs_changed(vec![lo.clone()]);
    bench.connect(1, 101);
    assert_eq!(bench.resume(1, &slots, &parked).unwrap(), slots);
    assert_eq!(bench.lease(1, 1).unwrap().0, [3], "2 is a stopped program's, on 192.0.2.1");
    bench.after(UNCLAIMED_CHECK_INTERVAL * 4);
    assert_eq!(bench.lease(1, 1).unwrap().0, [4], "nor later");
    // The address comes back, and so does the program.
    bench.broker.netdevs_changed(vec![lo, eth0]);
    bench.connect(2, 102);
    assert_eq!(bench.resume(2, &stopped, &stopped_parked).unwrap(), stopped);
    // Its end closes its sockets; those of its address are the broker's now.
    bench.broker.died(bench.now, ProcessId(102));
    assert_eq!(bench.lease(1, 1).unwrap().0, stopped);
}

#[test]
fn an_older_set_of_parked_descriptors_is_not_the_whole() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    let old = bench.lease(1, 1).unwrap().2;
    // The broker parks anew, and program 1, which is stopped, does not hear of it.
    bench.broker.addresses.groups.park_all().unwrap();
    bench.connect(2, 102);
    let new = bench.lease(2, 1).unwrap().2;
    bench.dies();
    bench.connect(1, 101);
    assert_eq!(bench.resume(1, &[1], &old).unwrap(), [1]);
    // Slot 2 exists in the kernel: a new member would not get number 2.
    bench.connect(3, 103);
    assert!(bench.say(3, Message::Lease(1), vec![]).is_empty(), "waits for who knows slot 2");
    bench.connect(2, 102);
    bench.broker.message(bench.now, ClientId(2), 5, Message::Resume(slots(&[2])), vec![new.into()]);
    let output = bench.output();
    let leased = |client: u64, member: u8| {
        let mut sent = output.iter().filter(|(to, _)| *to == client).flat_map(|(_, sent)| sent);
        sent.any(|(_, m, _)| matches!(m, Message::Leased(l) if l.slots == slots(&[member])))
    };
    assert!(leased(2, 2) && leased(3, 3), "{output:?}");
}

#[test]
fn a_taken_udp_port_is_named_after_the_wait() {
    let mut bench = Bench::loopback();
    let addresses: Vec<Address> = bench.broker.links.devices.all().flat_map(gids_of).collect();
    bench.system.port.borrow_mut().taken.extend(addresses.iter().copied());
    bench.connect(1, 101);
    assert!(bench.say(1, Message::Lease(1), vec![]).is_empty(), "perhaps programs of an earlier broker");
    assert_eq!(bench.broker.deadline(), Some(bench.now + leases::RETURN_GRACE));
    bench.after(leases::RETURN_GRACE);
    let refusal = granted(bench.heard(1)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PortTaken);
    assert_eq!(
        refusal.sentence,
        "UDP port 4791 of 127.0.0.1 is held by process 99 (nc, uid 0): stop it, or run in a network namespace of your \
         own: ferroce run --private-net -- CMD"
    );
    // One address is free again: that will do, without the other's GID.
    bench.system.port.borrow_mut().taken.remove(&addresses[1]);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["::1"]);
    assert_eq!(gids(&bench.devices(1)[0]), ["1 ::1"]);
    // And the other.
    bench.system.port.borrow_mut().taken.clear();
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1", "::1"]);
    assert_eq!(gids(&bench.devices(1)[0]).len(), 2);
}

#[test]
fn one_taken_udp_port_of_two_is_a_notice() {
    let mut bench = Bench::loopback();
    let v4 = Address::of("127.0.0.1".parse().unwrap(), 1);
    bench.system.port.borrow_mut().taken.insert(v4);
    bench.connect(1, 101);
    assert!(bench.say(1, Message::Lease(1), vec![]).is_empty());
    bench.after(leases::RETURN_GRACE);
    let sent = bench.heard(1);
    let notice = sent.iter().find_map(|(_, message, _)| match message {
        Message::Leased(leased) => Some(leased.notice.as_str()),
        _ => None,
    });
    assert_eq!(notice, Some("UDP port 4791 of 127.0.0.1 is held by process 99 (nc, uid 0)"));
    assert_eq!(granted(sent).unwrap().1, ["::1"]);
}

#[test]
fn an_address_that_does_not_work_is_not_listed() {
    let mut bench = Bench::loopback();
    let v6 = Address::of("::1".parse().unwrap(), 1);
    bench.system.port.borrow_mut().absent.insert(v6);
    bench.connect(1, 101);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1"], "at once");
    assert_eq!(gids(&bench.devices(1)[0]), ["0 127.0.0.1"]);
    bench.system.port.borrow_mut().absent.clear();
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1", "::1"]);
    assert_eq!(gids(&bench.devices(1)[0]), ["0 127.0.0.1", "1 ::1"]);
}

/// It was listed when a program came, and gone when it was opened; later it is there again.
#[test]
fn an_address_that_comes_back_is_listed_again() {
    let mut bench = Bench::loopback();
    let v6 = Address::of("::1".parse().unwrap(), 1);
    bench.system.port.borrow_mut().absent.insert(v6);
    bench.connect(1, 101);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1"]);
    bench.system.port.borrow_mut().absent.clear();
    let with = Netdev::assumed_loopback();
    let mut without = with.clone();
    without.addresses.retain(|ip| ip.is_ipv4());
    bench.broker.netdevs_changed(vec![without.clone()]);
    bench.broker.netdevs_changed(vec![with.clone()]);
    assert_eq!(gids(&bench.devices(1)[0]), ["0 127.0.0.1", "1 ::1"]);
    // As often as it likes, although its sockets stay.
    bench.broker.netdevs_changed(vec![without]);
    bench.broker.netdevs_changed(vec![with]);
    assert_eq!(gids(&bench.devices(1)[0]), ["0 127.0.0.1", "1 ::1"]);
}

#[test]
fn parked_sockets_of_an_address_that_is_gone_are_closed_with_the_last_program() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1", "::1"]);
    let mut without = Netdev::assumed_loopback();
    without.addresses.retain(|ip| ip.is_ipv4());
    bench.broker.netdevs_changed(vec![without]);
    let parked = |bench: &Bench| {
        let mut addresses = std::collections::BTreeSet::new();
        let reader = bench.broker.addresses.groups.parked().unwrap();
        crate::parking::peek(reader.as_fd(), |parked| _ = addresses.insert(parked.address.to_string()))
            .unwrap();
        addresses.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(parked(&bench), ["127.0.0.1", "::1"], "the program's own");
    bench.broker.died(bench.now, ProcessId(101));
    assert_eq!(parked(&bench), ["127.0.0.1"]);
}

#[test]
fn programs_of_other_users_get_a_sentence() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.broker.connected(ClientId(2), Peer { pid: 7, uid: 1001 }, ProcessId(7), true);
    let sent = bench.heard(2);
    assert!(
        matches!(&sent[0].1, Message::Refused(r) if r.code == RefusalCode::ForeignUser && r.sentence.contains("uid 1001")
            && r.sentence.contains("--private-net")),
        "{sent:?}"
    );
    assert!(!bench.broker.is_leaving());
    // Root is served.
    bench.broker.connected(ClientId(3), Peer { pid: 8, uid: 0 }, ProcessId(8), true);
    assert!(matches!(bench.heard(3)[0].1, Message::Hello(_)));
    // A broker that serves nobody makes way, also for root, who would not be served by it.
    for uid in [1001, 0] {
        let mut idle = Bench::loopback();
        idle.broker.connected(ClientId(1), Peer { pid: 7, uid }, ProcessId(7), true);
        assert!(matches!(&idle.heard(1)[0].1, Message::Refused(r) if r.code == RefusalCode::Leaving));
        assert!(idle.broker.is_leaving());
        // Somebody of our own needs it meanwhile, and then nobody does again.
        idle.connect(2, 102);
        assert!(!idle.broker.is_leaving());
        idle.broker.disconnected(idle.now, ClientId(2));
        assert!(idle.broker.is_idle() && !idle.broker.is_leaving(), "the stranger may ask again");
    }
}

#[test]
fn it_ends_when_told_to_unless_others_use_it() {
    let answer = |bench: &mut Bench, client, force| {
        bench.say(client, Message::Stop { force }, vec![]).pop().unwrap().1
    };
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.lease(1, 1).unwrap();
    bench.connect(2, 102);
    let Message::Refused(busy) = answer(&mut bench, 2, false) else { panic!("a program has a slot") };
    assert_eq!(busy.code, RefusalCode::Busy);
    assert!(busy.sentence.contains("process 101 (program101)"), "{}", busy.sentence);
    bench.say(1, Message::Release(vec![]), vec![]);
    assert!(matches!(answer(&mut bench, 2, false), Message::Refused(_)), "it is connected still");
    // Its connection is gone and its slot is not, because it may come back.
    bench.lease(1, 1).unwrap();
    bench.broker.disconnected(bench.now, ClientId(1));
    assert!(matches!(answer(&mut bench, 2, false), Message::Refused(_)));
    assert!(!bench.broker.is_stopped());
    assert_eq!(answer(&mut bench, 2, true), Message::Done);
    assert!(bench.broker.is_stopped());

    let mut idle = Bench::loopback();
    idle.connect(1, 101);
    assert_eq!(answer(&mut idle, 1, false), Message::Done);
    assert!(idle.broker.is_stopped());
}

#[test]
fn a_broker_without_descriptors_ends_unless_it_serves_somebody() {
    let mut bench = Bench::loopback();
    bench.connect(1, 101);
    bench.lease(1, 1).unwrap();
    bench.connect(2, 102);
    bench.system.port.borrow_mut().out_of_files = true;
    let refused = bench.lease(2, 1).unwrap_err();
    assert!(refused.sentence.contains("Too many open files"), "{}", refused.sentence);
    assert!(!bench.broker.is_exhausted(), "another program has a slot");
    bench.say(1, Message::Release(vec![]), vec![]);
    assert!(bench.broker.is_exhausted());
}

#[test]
fn who_breaks_the_protocol_loses_the_connection_alone() {
    let hello = || Message::Hello(Hello::ours(""));
    let old = Message::Hello(Hello { major: 9, ..Hello::ours("") });
    let cases: Vec<(Vec<Message>, RefusalCode)> = vec![
        (vec![Message::Lease(1)], RefusalCode::BadRequest),
        (vec![old], RefusalCode::Version),
        (vec![hello(), hello()], RefusalCode::BadRequest),
        (vec![hello(), Message::Done], RefusalCode::BadRequest),
        (vec![hello(), Message::Parked], RefusalCode::BadRequest),
        (vec![hello(), Message::Leased(Leased::default())], RefusalCode::BadRequest),
        (vec![Message::Hello(Hello::ours("nonesuch0"))], RefusalCode::UnknownNetdev),
    ];
    let mut bench = Bench::loopback();
    bench.greet(1, 101, Hello { minor: ferroce_ipc::MINOR + 1, ..Hello::ours("") });
    bench.lease(1, 1).unwrap();
    for (number, (messages, code)) in cases.into_iter().enumerate() {
        let client = ClientId(100 + number as u64);
        bench.broker.connected(client, Peer { pid: 7, uid: UID }, ProcessId(7), true);
        for message in messages {
            bench.broker.message(bench.now, client, 5, message, vec![]);
        }
        let mut closed = false;
        let mut last = None;
        while let Some(output) = bench.broker.poll_output() {
            match output {
                Output::Send { client: to, message, .. } if to == client => last = Some(message),
                Output::Close(to) if to == client => closed = true,
                other => panic!("{other:?}"),
            }
        }
        assert!(closed && matches!(&last, Some(Message::Refused(r)) if r.code == code), "{number}: {last:?}");
    }
    assert_eq!(bench.status().programs.len(), 1);
}

#[test]
fn no_descriptors_no_lease_but_a_sentence() {
    let mut bench = Bench::loopback();
    bench.system.port.borrow_mut().out_of_files = true;
    bench.connect(1, 101);
    let refusal = bench.lease(1, 1).unwrap_err();
    assert!(
        refusal.sentence.starts_with("cannot open another slot on 127.0.0.1: UDP 127.0.0.1:4791"),
        "{refusal}"
    );
    bench.system.port.borrow_mut().out_of_files = false;
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1", "::1"]);
}

#[test]
fn a_system_without_pidfds_takes_the_connections_end_for_death() {
    let mut bench = Bench::loopback();
    bench.broker.connected(ClientId(1), Peer { pid: 0, uid: UID }, ProcessId(1 << 32), false);
    bench.say(1, Message::Hello(Hello::ours("")), vec![]);
    bench.lease(1, 1).unwrap();
    bench.broker.disconnected(bench.now, ClientId(1));
    bench.connect(2, 102);
    assert_eq!(bench.lease(2, 1).unwrap().0, [1]);
}
