//! AF_XDP: programs on interfaces, and the ports of programs.

use std::io;
use std::net::IpAddr;

use ferroce_ipc::{Datapath, DatapathState, RoceMode, Setting};

use super::*;
use crate::xdp::AttachError;

const ROOT: u32 = 0;
const ANN: u32 = 2001;

fn set(name: &str, setting: Setting) -> Message {
    Message::LinkSet { name: name.to_owned(), settings: vec![setting], transient: false, force: false }
}

fn xdp(name: &str) -> Message {
    set(name, Setting::Datapath(Datapath::Xdp))
}

fn udp(name: &str) -> Message {
    set(name, Setting::Datapath(Datapath::Udp))
}

fn hosts() -> Vec<Netdev> {
    let mut first = netdev(2, &["192.0.2.1", "2001:db8::1"]);
    first.default_gid = first.own_default_gid();
    vec![netdev(1, &["127.0.0.1", "::1"]), first, netdev(3, &["198.51.100.1"])]
}

/// `fr1` on interface 2 and `fr2` on interface 3. Client 1 holds no slots.
fn bench() -> Bench {
    let mut bench = Bench::new(hosts());
    bench.connect(1, 101);
    for (name, netdev) in [("fr1", "eth0"), ("fr2", "eth1")] {
        let (name, netdev) = (name.to_owned(), netdev.to_owned());
        bench.order(Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient: false }).unwrap();
    }
    bench
}

fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl Bench {
    /// The answer to client 1: done, or the refusal's sentence.
    fn order(&mut self, message: Message) -> Result<(), String> {
        let sent = self.say(1, message, vec![]);
        match sent.into_iter().find(|(id, ..)| *id == 5).unwrap().1 {
            Message::Done => Ok(()),
            Message::Refused(refusal) => Err(refusal.sentence),
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self, name: &str) -> DatapathState {
        self.devices(1).into_iter().find(|device| device.name == name).unwrap().datapath
    }

    fn attached(&self) -> BTreeMap<u32, BTreeSet<IpAddr>> {
        self.system.port.borrow().xdp.attached.clone()
    }

    fn attempts(&self, ifindex: u32) -> u32 {
        self.system.port.borrow().xdp.attempts.get(&ifindex).copied().unwrap_or(0)
    }

    /// The slots that are redirected at an interface, and how many pairs receive them.
    fn redirected(&self, ifindex: u32) -> (Vec<u16>, usize) {
        let xdp = &self.system.port.borrow().xdp;
        let here = xdp.slots.iter().filter(|((index, _), _)| *index == ifindex);
        let ends: BTreeSet<u32> = here.clone().map(|(_, near)| *near).collect();
        (here.map(|((_, slot), _)| *slot).collect(), ends.len())
    }

    fn pairs(&self) -> usize {
        self.system.port.borrow().xdp.pairs.len()
    }

    /// The answer to a request for a port; `None` before the answer.
    fn open(&mut self, client: u64, ifindex: u32) -> Option<Result<(), Refusal>> {
        let sent = self.say(client, Message::OpenXdp(ifindex), vec![]);
        opened(sent, ifindex)
    }

    /// A program of the broker's user with a port on interface 2.
    fn with_port() -> Self {
        let mut bench = bench();
        bench.order(xdp("fr1")).unwrap();
        bench.connect(2, 102);
        bench.lease(2, 1).unwrap();
        bench.open(2, 2).unwrap().unwrap();
        bench
    }
}

fn opened(sent: Sent, interface: u32) -> Option<Result<(), Refusal>> {
    sent.into_iter().filter(|(id, ..)| *id == 5).find_map(|(_, message, descriptors)| match message {
        Message::Xdp { ifindex, .. } => {
            assert_eq!((ifindex, descriptors.len()), (interface, 2));
            Some(Ok(()))
        }
        Message::Refused(refusal) => Some(Err(refusal)),
        _ => None,
    })
}

#[test]
fn the_setting_attaches_a_program_with_the_addresses_of_the_device() {
    let mut bench = bench();
    assert_eq!(bench.attached(), BTreeMap::new());
    bench.connect(2, 102);
    bench.devices(2);
    bench.order(set("fr1", Setting::RoceMode(RoceMode::Both))).unwrap();
    bench.output();
    bench.broker.message(bench.now, ClientId(1), 5, xdp("fr1"), vec![]);
    let told = bench.output();
    let news = told.iter().find(|(to, _)| *to == 2).map(|(_, sent)| &sent[0].1);
    assert!(
        matches!(news, Some(Message::Devices(devices)) if devices[0].datapath == DatapathState::XdpNative),
        "other programs are told: {news:?}"
    );
    let want = ips(&["192.0.2.1", "2001:db8::1"]);
    assert_eq!(bench.attached(), [(2, want)].into(), "each once, and none that is link-local");
    assert_eq!((bench.state("fr1"), bench.state("fr2")), (DatapathState::XdpNative, DatapathState::Udp));
    assert_eq!(bench.state("fr0"), DatapathState::Udp);

    bench.order(xdp("fr2")).unwrap();
    assert_eq!(bench.state("fr2"), DatapathState::XdpGeneric);
    assert_eq!(bench.attached().len(), 2);
    bench.order(udp("fr1")).unwrap();
    assert_eq!(bench.state("fr1"), DatapathState::Udp);
    assert_eq!(bench.attached().keys().copied().collect::<Vec<_>>(), [3]);
    bench.order(Message::LinkDel { name: "fr2".to_owned(), transient: false }).unwrap();
    assert_eq!(bench.attached(), BTreeMap::new());
}

#[test]
fn addresses_and_interfaces_are_followed() {
    let mut bench = bench();
    bench.order(xdp("fr2")).unwrap();
    let with = |addresses: &[&str]| vec![netdev(1, &["127.0.0.1"]), netdev(2, &[]), netdev(3, addresses)];
    for addresses in [&["198.51.100.9", "2001:db8::9"][..], &[], &["198.51.100.1"]] {
        bench.broker.netdevs_changed(with(addresses));
        assert_eq!(bench.attached(), [(3, ips(addresses))].into());
    }
    assert_eq!(bench.attempts(3), 1, "the program stays");
    // An address of a VLAN above the interface needs a tag, which only the kernel writes.
    let vlan = Netdev {
        lower: Some(3),
        vlan: Some(ferroce_ipc::Vlan { id: 5, egress: [0; 8] }),
        ..netdev(9, &["203.0.113.9"])
    };
    let mut stacked = with(&["198.51.100.1"]);
    stacked.push(vlan);
    bench.broker.netdevs_changed(stacked);
    let device = bench.devices(1).into_iter().find(|device| device.name == "fr2").unwrap();
    assert!(gids(&device).iter().any(|gid| gid.contains("203.0.113.9")), "{:?}", gids(&device));
    assert!(!bench.attached()[&3].contains(&"203.0.113.9".parse().unwrap()));

    bench.broker.netdevs_changed(with(&[])[..2].to_vec());
    assert_eq!(bench.attached(), BTreeMap::new(), "the interface is gone");
    bench.broker.netdevs_changed(with(&["198.51.100.1"]));
    assert_eq!((bench.state("fr2"), bench.attempts(3)), (DatapathState::XdpGeneric, 2), "and here again");
}

#[test]
fn interfaces_without_ethernet_and_vlans_keep_udp() {
    let mut hosts = hosts();
    hosts[1].mac = None;
    hosts[2].vlan = Some(ferroce_ipc::Vlan { id: 7, egress: [0; 8] });
    let mut bench = Bench::new(hosts);
    bench.connect(1, 101);
    for (name, netdev) in [("fr1", "eth0"), ("fr2", "eth1")] {
        let (name, netdev) = (name.to_owned(), netdev.to_owned());
        bench.order(Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient: false }).unwrap();
    }
    for name in ["fr0", "fr1", "fr2"] {
        bench.order(xdp(name)).unwrap();
        assert_eq!(bench.state(name), DatapathState::WrongInterface, "{name}");
    }
    assert!(bench.system.port.borrow().xdp.attempts.is_empty(), "nothing was tried");
}

#[test]
fn an_iwarp_link_has_no_datapath() {
    let mut bench = bench();
    let (name, netdev) = ("iw0".to_owned(), "eth0".to_owned());
    bench.order(Message::LinkAdd { name, kind: LinkKind::Siw, netdev, transient: false }).unwrap();
    let refused = bench.order(xdp("iw0")).unwrap_err();
    assert_eq!(refused, "iw0: datapath means nothing on an iWARP link; only crc can be set there");
    bench.order(xdp("fr1")).unwrap();
    assert_eq!((bench.state("iw0"), bench.state("fr1")), (DatapathState::Udp, DatapathState::XdpNative));
}

#[test]
fn each_reason_is_told_and_only_some_are_tried_again() {
    type Refusal = fn() -> AttachError;
    let cases: [(Refusal, DatapathState, bool); 4] = [
        (
            || AttachError::Permission(io::Error::from_raw_os_error(libc::EPERM)),
            DatapathState::NoPermission,
            false,
        ),
        (
            || AttachError::Unsupported(io::Error::from_raw_os_error(libc::ENOSYS)),
            DatapathState::NoSupport,
            false,
        ),
        (|| AttachError::Busy, DatapathState::Busy, true),
        (|| AttachError::Io(io::Error::from_raw_os_error(libc::ENOMEM)), DatapathState::Failed, true),
    ];
    for (refusal, state, passes) in cases {
        let mut bench = bench();
        bench.system.port.borrow_mut().xdp.refusal = Some(refusal);
        bench.order(xdp("fr1")).unwrap();
        assert_eq!((bench.state("fr1"), bench.attempts(2)), (state, 1));
        // Other events cause no attempt.
        bench.order(set("fr1", Setting::CmTos(8))).unwrap();
        bench.broker.netdevs_changed(hosts());
        assert_eq!(bench.attempts(2), 1, "{state:?}");
        assert_eq!(bench.broker.deadline().is_some(), passes, "{state:?}");
        if passes {
            let times: Vec<u128> = (0..12)
                .map(|_| {
                    let before = bench.now;
                    let due = bench.broker.deadline().unwrap();
                    bench.after(due.saturating_duration_since(before));
                    (due - before).as_millis()
                })
                .collect();
            assert_eq!(bench.attempts(2), 13);
            assert!(times.is_sorted() && times[0] <= 100 && times[11] == 60_000, "{times:?}");
        } else {
            bench.after(Duration::from_secs(3600));
            assert_eq!(bench.attempts(2), 1, "{state:?}");
        }
        // A change of the interface, or of the setting, is a reason to try.
        let tried = bench.attempts(2);
        let mut changed = hosts();
        changed[1].mtu = 9000;
        bench.broker.netdevs_changed(changed);
        assert_eq!(bench.attempts(2), tried + 1);
        bench.order(udp("fr1")).unwrap();
        assert_eq!((bench.state("fr1"), bench.broker.deadline()), (DatapathState::Udp, None));
        bench.system.port.borrow_mut().xdp.refusal = None;
        bench.order(xdp("fr1")).unwrap();
        assert_eq!((bench.state("fr1"), bench.broker.deadline()), (DatapathState::XdpNative, None));
    }
}

#[test]
fn a_program_that_leaves_the_interface_makes_room() {
    let mut bench = bench();
    bench.system.port.borrow_mut().xdp.refusal = Some(|| AttachError::Busy);
    bench.order(xdp("fr1")).unwrap();
    bench.system.port.borrow_mut().xdp.refusal = None;
    bench.after(Duration::from_millis(100));
    assert_eq!((bench.state("fr1"), bench.broker.deadline()), (DatapathState::XdpNative, None));
}

#[test]
fn too_many_addresses_end_the_program() {
    let mut bench = bench();
    bench.system.port.borrow_mut().xdp.most_addresses = Some(3);
    bench.order(xdp("fr1")).unwrap();
    assert_eq!(bench.state("fr1"), DatapathState::XdpNative);
    let mut more = hosts();
    more[1].addresses.extend(ips(&["192.0.2.2", "192.0.2.3"]));
    bench.broker.netdevs_changed(more);
    assert_eq!((bench.state("fr1"), bench.attached()), (DatapathState::Failed, BTreeMap::new()));
    bench.broker.netdevs_changed(hosts());
    assert_eq!(bench.state("fr1"), DatapathState::XdpNative, "they are few again");
}

#[test]
fn the_setting_outlives_the_broker() {
    let mut bench = bench();
    bench.order(xdp("fr1")).unwrap();
    bench.dies();
    assert_eq!(bench.attached().keys().copied().collect::<Vec<_>>(), [2], "attached before anybody asks");
    bench.connect(1, 101);
    assert_eq!(bench.state("fr1"), DatapathState::XdpNative);
    bench.order(udp("fr1")).unwrap();
    bench.dies();
    assert_eq!(bench.attached(), BTreeMap::new());
}

#[test]
fn a_program_with_slots_gets_one_port_on_an_interface() {
    let mut bench = bench();
    bench.connect(2, 102);
    let code = |answer: Option<Result<(), Refusal>>| answer.unwrap().unwrap_err().code;
    assert_eq!(code(bench.open(2, 2)), RefusalCode::BadRequest, "no slots");
    bench.lease(2, 1).unwrap();
    let refused = bench.open(2, 2).unwrap().unwrap_err();
    assert_eq!(refused.code, RefusalCode::WrongState);
    assert!(refused.sentence.contains("ferroce link set fr1 datapath xdp"), "{refused}");
    assert_eq!(code(bench.open(2, 7)), RefusalCode::UnknownNetdev);
    assert_eq!(bench.pairs(), 0);

    bench.order(xdp("fr1")).unwrap();
    bench.open(2, 2).unwrap().unwrap();
    assert_eq!((bench.redirected(2), bench.pairs()), ((slots(&[1]), 1), 1));
    assert_eq!(bench.system.port.borrow().xdp.pairs.values().copied().collect::<Vec<_>>(), [1500]);
    bench.open(2, 2).unwrap().unwrap();
    assert_eq!((bench.redirected(2), bench.pairs()), ((slots(&[1]), 1), 1), "in place of the first one");

    bench.order(xdp("fr2")).unwrap();
    bench.open(2, 3).unwrap().unwrap();
    assert_eq!((bench.redirected(3), bench.pairs()), ((slots(&[1]), 1), 2));
    bench.connect(3, 103);
    bench.lease(3, 1).unwrap();
    bench.open(3, 2).unwrap().unwrap();
    assert_eq!((bench.redirected(2), bench.pairs()), ((slots(&[1, 2]), 2), 3));
}

#[test]
fn a_pair_carries_what_the_interface_and_a_port_carry() {
    for (mtu, want) in [(1500, 1500), (9000, 3826), (600, 1280), (3826, 3826)] {
        let mut hosts = hosts();
        hosts[1].mtu = mtu;
        let mut bench = bench();
        bench.broker.netdevs_changed(hosts);
        bench.order(xdp("fr1")).unwrap();
        bench.connect(2, 102);
        bench.lease(2, 1).unwrap();
        bench.open(2, 2).unwrap().unwrap();
        assert_eq!(bench.system.port.borrow().xdp.pairs.values().copied().collect::<Vec<_>>(), [want]);
    }
}

#[test]
fn a_port_follows_its_programs_slots() {
    let mut bench = Bench::with_port();
    bench.lease(2, 1).unwrap();
    assert_eq!(bench.redirected(2).0, slots(&[1, 2]));
    bench.say(2, Message::Release(slots(&[1])), vec![]);
    assert_eq!((bench.redirected(2).0, bench.pairs()), (slots(&[2]), 1));
    bench.say(2, Message::Release(Vec::new()), vec![]);
    assert_eq!((bench.redirected(2).0, bench.pairs()), (Vec::new(), 0), "no slots, no port");
}

#[test]
fn a_port_ends_with_its_program() {
    type End = fn(&mut Bench);
    let ends: [(&str, End); 4] = [
        ("died", |bench| bench.broker.died(bench.now, ProcessId(102))),
        ("disconnected", |bench| bench.broker.disconnected(bench.now, ClientId(2))),
        ("lost", |bench| bench.broker.lost(ClientId(2))),
        ("a message that does not belong", |bench| drop(bench.say(2, Message::Done, vec![]))),
    ];
    for (what, end) in ends {
        let mut bench = Bench::with_port();
        assert_eq!(bench.pairs(), 1);
        end(&mut bench);
        assert_eq!((bench.redirected(2).0, bench.pairs()), (Vec::new(), 0), "{what}");
        assert!(bench.attached().contains_key(&2), "the interface keeps its program");
    }
}

#[test]
fn a_port_ends_with_the_interfaces_program() {
    for end in [udp("fr1"), Message::LinkDel { name: "fr1".to_owned(), transient: true }] {
        let mut bench = Bench::with_port();
        bench.order(end).unwrap();
        assert_eq!((bench.attached(), bench.pairs()), (BTreeMap::new(), 0));
    }
    let mut bench = Bench::with_port();
    bench.broker.netdevs_changed(vec![netdev(1, &["127.0.0.1"]), netdev(3, &["198.51.100.1"])]);
    assert_eq!((bench.attached(), bench.pairs()), (BTreeMap::new(), 0));
}

#[test]
fn slots_of_a_program_that_ended_reach_the_next_holder() {
    let mut bench = Bench::with_port();
    bench.broker.died(bench.now, ProcessId(102));
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [1]);
    assert_eq!(bench.redirected(2).0, Vec::<u16>::new(), "not before it asks");
    bench.open(3, 2).unwrap().unwrap();
    assert_eq!((bench.redirected(2), bench.pairs()), ((slots(&[1]), 1), 1));
}

#[test]
fn a_busy_queue_delays_the_answer_and_nothing_else() {
    let mut bench = bench();
    bench.order(xdp("fr1")).unwrap();
    bench.connect(2, 102);
    bench.lease(2, 1).unwrap();
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::EBUSY; 3];
    assert!(bench.open(2, 2).is_none(), "not yet");
    assert_eq!(bench.pairs(), 1);
    for _ in 0..2 {
        let due = bench.broker.deadline().unwrap();
        bench.after(due - bench.now);
        assert!(opened(bench.heard(2), 2).is_none());
    }
    let due = bench.broker.deadline().unwrap();
    bench.after(due - bench.now);
    opened(bench.heard(2), 2).unwrap().unwrap();
    assert_eq!((bench.redirected(2), bench.pairs(), bench.broker.deadline()), ((slots(&[1]), 1), 1, None));

    // The queue stays busy: the request is refused in the end.
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::EBUSY; 100];
    let mut answer = bench.open(2, 2);
    let begun = bench.now;
    while answer.is_none() {
        let due = bench.broker.deadline().unwrap();
        bench.after(due - bench.now);
        answer = opened(bench.heard(2), 2);
    }
    assert_eq!(answer.unwrap().unwrap_err().code, RefusalCode::Failed);
    assert!(bench.now - begun < Duration::from_secs(1));
    assert_eq!((bench.pairs(), bench.broker.deadline()), (0, None), "no pair is left");

    // A program that ends meanwhile, and an interface that loses its program, leave no pair either.
    for end in [true, false] {
        assert!(bench.open(2, 2).is_none());
        assert_eq!(bench.pairs(), 1);
        match end {
            true => bench.order(udp("fr1")).unwrap(),
            false => bench.broker.died(bench.now, ProcessId(102)),
        }
        assert_eq!((bench.pairs(), bench.broker.deadline()), (0, None));
        bench.order(xdp("fr1")).unwrap();
    }
}

#[test]
fn other_errors_are_refused_with_a_remedy() {
    let mut bench = bench();
    bench.order(xdp("fr1")).unwrap();
    bench.connect(2, 102);
    bench.lease(2, 1).unwrap();
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::ENOBUFS];
    let refused = bench.open(2, 2).unwrap().unwrap_err();
    assert!(refused.sentence.contains("LimitMEMLOCK=infinity"), "{refused}");
    assert_eq!(
        (bench.pairs(), bench.state("fr1")),
        (0, DatapathState::XdpNative),
        "the next program may be luckier"
    );

    // Without pairs, the interface has no program, and the device says why.
    for (error, word, state) in [
        (libc::EPERM, "CAP_NET_ADMIN", DatapathState::NoPermission),
        (libc::EOPNOTSUPP, "veth", DatapathState::NoSupport),
        (libc::EROFS, "/proc/sys", DatapathState::Failed),
    ] {
        bench.system.port.borrow_mut().xdp.no_pair = Some(error);
        let refused = bench.open(2, 2).unwrap().unwrap_err();
        assert!(refused.sentence.contains(word), "{refused}");
        assert_eq!((bench.attached(), bench.state("fr1")), (BTreeMap::new(), state));
        bench.system.port.borrow_mut().xdp.no_pair = None;
        bench.order(udp("fr1")).unwrap();
        bench.order(xdp("fr1")).unwrap();
        bench.open(2, 2).unwrap().unwrap();
    }
    bench.system.port.borrow_mut().xdp.no_pair = Some(libc::ENOMEM);
    assert_eq!(bench.open(2, 2).unwrap().unwrap_err().code, RefusalCode::Failed);
    assert_eq!(bench.state("fr1"), DatapathState::XdpNative);
}

#[test]
fn another_users_programs_have_a_share() {
    let mut bench = bench();
    bench.broker.serve_all_users();
    bench.order(xdp("fr1")).unwrap();
    let join = |bench: &mut Bench, client: u64, uid| {
        let pid = client as u32 + 100;
        bench.broker.connected(ClientId(client), Peer { pid, uid }, ProcessId(pid.into()), true);
        bench.say(client, Message::Hello(Hello::ours("")), vec![]);
        bench.lease_slots(client, 1).unwrap();
    };
    for client in 10..75 {
        join(&mut bench, client, ANN);
    }
    for client in 10..74 {
        bench.open(client, 2).unwrap().unwrap();
    }
    let refused = bench.open(74, 2).unwrap().unwrap_err();
    assert_eq!(refused.code, RefusalCode::Full);
    assert!(refused.sentence.contains("64 AF_XDP sockets"), "{refused}");
    assert_eq!(bench.pairs(), 64);
    bench.open(10, 2).unwrap().unwrap();
    assert_eq!(bench.pairs(), 64, "in place of its own");
    join(&mut bench, 80, ROOT);
    bench.open(80, 2).unwrap().unwrap();
    bench.connect(2, 102);
    bench.lease(2, 1).unwrap();
    bench.open(2, 2).unwrap().unwrap();
    bench.broker.died(bench.now, ProcessId(110));
    bench.open(74, 2).unwrap().unwrap();
}

#[test]
fn all_programs_together_have_a_limit() {
    let mut bench = bench();
    bench.order(xdp("fr1")).unwrap();
    let mut given = 0;
    let refused = loop {
        let client = 10 + given;
        bench.connect(client, client as u32 + 100);
        let _ = bench.say(client, Message::Lease(1), vec![]);
        match bench.open(client, 2).unwrap() {
            Ok(()) => given += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((given, refused.code), (256, RefusalCode::Full));
}

#[test]
fn drops_are_counted_for_the_device() {
    let mut bench = Bench::with_port();
    let counters = |bench: &mut Bench, device: &str| -> BTreeMap<String, u64> {
        let sent = bench.say(1, Message::GetStatistics(device.to_owned()), vec![]);
        match &sent[0].1 {
            Message::Statistics(all) => {
                all.iter().filter(|(name, _)| name.starts_with("xdp_drop_")).cloned().collect()
            }
            other => panic!("{other:?}"),
        }
    };
    bench.system.port.borrow_mut().xdp.drops = [("source", 3), ("no_route", 1)].into();
    let named = |source, route| -> BTreeMap<String, u64> {
        [("xdp_drop_source".to_owned(), source), ("xdp_drop_no_route".to_owned(), route)].into()
    };
    assert_eq!(counters(&mut bench, "fr1"), named(3, 1));
    assert_eq!(counters(&mut bench, "fr2"), BTreeMap::new());
    bench.order(udp("fr1")).unwrap();
    assert_eq!(counters(&mut bench, "fr1"), named(3, 1), "they stay");
    bench.system.port.borrow_mut().xdp.drops = [("source", 5)].into();
    bench.order(xdp("fr1")).unwrap();
    assert_eq!(counters(&mut bench, "fr1"), named(8, 1), "the next program counts from 0");
}

#[test]
fn the_end_leaves_nothing_and_the_next_broker_removes_the_rest() {
    let mut bench = Bench::with_port();
    bench.broker.end();
    assert_eq!((bench.attached(), bench.pairs()), (BTreeMap::new(), 0));
    assert!(bench.system.port.borrow().xdp.finished);

    let mut bench = Bench::with_port();
    bench.dies();
    assert_eq!(bench.pairs(), 1, "it was killed");
    bench.broker.remove_left_pairs();
    assert_eq!(bench.pairs(), 0);
    assert_eq!(bench.redirected(2).0, Vec::<u16>::new());
}
