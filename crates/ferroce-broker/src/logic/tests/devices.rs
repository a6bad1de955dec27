//! Links, views and addresses as they come and go.

use ferroce_ipc::LinkSettings;

use super::*;
use crate::link_file::ConfiguredLink;

#[test]
fn links_come_and_go() {
    let mut bench =
        Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["fe80::1", "192.0.2.1"]), netdev(3, &[])]);
    let add = |name: &str, netdev: &str| Message::LinkAdd {
        name: name.to_owned(),
        kind: LinkKind::Rxe,
        netdev: netdev.to_owned(),
        transient: false,
    };
    let code = |sent: &Sent| match &sent.iter().find(|(id, ..)| *id == 5).unwrap().1 {
        Message::Refused(refusal) => Err(refusal.code),
        Message::Done => Ok(()),
        other => panic!("{other:?}"),
    };
    bench.connect(1, 101);
    bench.connect(2, 102);
    assert!(bench.broker.is_idle() || !bench.broker.clients.is_empty());
    let cases = [
        (add("fr1", "eth9"), Err(RefusalCode::UnknownNetdev)),
        (add("fr1", "lo"), Err(RefusalCode::Exists)),
        (add("fr0", "eth0"), Err(RefusalCode::Exists)),
        (add("rxe0", "eth0"), Ok(())),
        (add("rxe1", "eth0"), Err(RefusalCode::Exists)),
        (add("rxe0", "eth1"), Err(RefusalCode::Exists)),
        (Message::LinkDel { name: "nix".to_owned(), transient: false }, Err(RefusalCode::UnknownLink)),
        (Message::LinkDel { name: "fr0".to_owned(), transient: false }, Err(RefusalCode::BadRequest)),
    ];
    for (message, want) in cases {
        let what = format!("{message:?}");
        assert_eq!(code(&bench.say(1, message, vec![])), want, "{what}");
    }
    let devices = bench.devices(2);
    assert_eq!(names(&devices), ["rxe0", "fr0"], "the default one is last");
    assert_eq!(devices[0].dev_name, "uverbs1");
    assert_eq!(devices[0].node_guid, [0, 0, 0, 0xff, 0xfe, 0, 0, 2]);
    assert_eq!(gids(&devices[0]), ["0 fe80::1", "1 192.0.2.1"]);
    bench.broker.disconnected(bench.now, ClientId(1));
    bench.broker.disconnected(bench.now, ClientId(2));
    assert!(!bench.broker.is_idle(), "a configured link must not vanish");
    bench.connect(3, 103);
    assert_eq!(
        code(&bench.say(3, Message::LinkDel { name: "rxe0".to_owned(), transient: false }, vec![])),
        Ok(())
    );
    assert_eq!(names(&bench.devices(3)), ["fr0"]);
}

#[test]
fn a_view_is_one_clients() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    bench.connect_for(1, 101, "eth0");
    bench.connect(2, 102);
    assert_eq!(names(&bench.devices(1)), ["fr1", "fr0"]);
    assert_eq!(names(&bench.devices(2)), ["fr0"]);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["192.0.2.1", "127.0.0.1"]);
    assert_eq!(bench.lease(2, 1).unwrap().1, ["127.0.0.1"]);
    bench.broker.disconnected(bench.now, ClientId(1));
    bench.connect_for(3, 103, "eth0");
    assert_eq!(names(&bench.devices(3)), ["fr1", "fr0"], "the number is free again");
    // lo has its device.
    bench.connect_for(4, 104, "lo");
    assert_eq!(names(&bench.devices(4)), ["fr0"]);
}

/// The longest name that Linux allows, kept whole; and what happens when the interface goes while it is in
/// use.
#[test]
fn long_interface_names_and_removed_interfaces() {
    let long = || Netdev { name: "abcdefghijklmno".to_owned(), ..netdev(2, &["192.0.2.1"]) };
    let lo = || netdev(1, &["127.0.0.1"]);
    let mut bench = Bench::new(vec![lo(), long()]);
    bench.connect_for(1, 101, "abcdefghijklmno");
    assert_eq!(bench.devices(1)[0].netdev, "abcdefghijklmno");
    bench.lease(1, 1).unwrap();
    // Renamed under its device: the same interface by its index.
    bench.broker.netdevs_changed(vec![lo(), Netdev { name: "other".to_owned(), ..long() }]);
    assert_eq!(bench.devices(1)[0].netdev, "other");
    bench.output();
    bench.broker.netdevs_changed(vec![lo()]);
    let heard = bench.heard(1);
    let told = heard.iter().any(|(_, message, _)| matches!(message, Message::Devices(_)));
    assert!(told, "its program learns it: {heard:?}");
}

/// rxe refuses to make a link while it cannot bind the port (`rdma link add` fails with EADDRINUSE), so no
/// state of its port stands for this. Here a link may be there before the port is free, or get an address
/// whose port is taken; a program that opens it is told PORT_DOWN, and PORT_ACTIVE once packets can arrive.
#[test]
fn a_port_whose_addresses_others_hold_is_down() {
    let hosts = |second: &[&str]| vec![netdev(1, &["127.0.0.1"]), netdev(2, second)];
    let mut bench = Bench::new(hosts(&["192.0.2.1"]));
    let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|ip| Address::of(ip.parse().unwrap(), 2));
    bench.system.port.borrow_mut().taken.extend([first, second]);
    bench.connect(1, 101);
    for (name, kind) in [("fr1", LinkKind::Rxe), ("iw1", LinkKind::Siw)] {
        let netdev = "eth0".to_owned();
        bench.say(1, Message::LinkAdd { name: name.to_owned(), kind, netdev, transient: false }, vec![]);
    }
    let active = |bench: &mut Bench| {
        let devices = bench.devices(1);
        devices.into_iter().map(|device| (device.name, device.port_active)).collect::<Vec<_>>()
    };
    let want = |fr1| [("fr1", fr1), ("iw1", true), ("fr0", true)].map(|(name, up)| (name.to_owned(), up));
    assert!(bench.say(1, Message::Lease(1), vec![]).is_empty());
    bench.after(leases::RETURN_GRACE);
    assert_eq!(active(&mut bench), want(false));
    // The holder ends, and no program asks for anything.
    bench.system.port.borrow_mut().taken.remove(&first);
    while let Some(next) = bench.broker.deadline() {
        bench.after(next - bench.now);
    }
    assert_eq!(active(&mut bench), want(true));
    // The interface gets another address, whose port is taken.
    bench.broker.netdevs_changed(hosts(&["192.0.2.2"]));
    assert_eq!(active(&mut bench), want(false));
    assert_eq!(gids(&bench.devices(1)[0]), [""; 0]);
    bench.broker.netdevs_changed(hosts(&["192.0.2.2", "192.0.2.1"]));
    assert_eq!(active(&mut bench), want(true));
    assert_eq!(gids(&bench.devices(1)[0]).len(), 1);
}

#[test]
fn addresses_are_followed() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"])]);
    bench.connect(1, 101);
    bench.connect(2, 102);
    bench.lease(1, 2).unwrap();
    bench.broker.netdevs_changed(vec![netdev(1, &["127.0.0.1", "10.0.0.1"])]);
    let output = bench.output();
    let first: Vec<&Message> = output[0].1.iter().map(|(_, message, _)| message).collect();
    assert!(
        matches!(&first[..], [Message::Address(a), Message::Devices(d)]
            if a.ip.to_string() == "10.0.0.1" && a.members == [1, 2] && d[0].gids.len() == 2),
        "the sockets come before the GID: {first:?}"
    );
    assert!(matches!(&output[1].1[..], [(0, Message::Devices(_), _)]), "who has no slot has no sockets");
    let parked = bench.lease(1, 1).unwrap();
    assert_eq!((parked.0, parked.1.len()), (vec![3], 2));
    bench.broker.netdevs_changed(vec![netdev(1, &["10.0.0.1"])]);
    assert_eq!(gids(&bench.devices(2)[0]), ["1 10.0.0.1"]);
    // Nothing new, nothing said.
    bench.output();
    bench.broker.netdevs_changed(vec![netdev(1, &["10.0.0.1"])]);
    assert!(bench.output().is_empty());
    // The port goes down.
    bench.broker.netdevs_changed(vec![Netdev { running: false, ..netdev(1, &["10.0.0.1"]) }]);
    let devices = bench.devices(2);
    assert!(!devices[0].port_active);
    assert_eq!(devices[0].phys_state, ferroce_ipc::PhysState::Polling);
}

/// Links on the members of a bond: its GIDs are those of the member that sends, and move with it. Sockets
/// stay.
#[test]
fn gids_of_a_bond_follow_the_active_member() {
    let host = |active_member| {
        let member = |ifindex| Netdev { bond: Some(4), ..netdev(ifindex, &[]) };
        let bond =
            Netdev { active_member, kind: "bond".to_owned(), ..netdev(4, &["192.0.2.1", "192.0.2.2"]) };
        vec![netdev(1, &["127.0.0.1"]), member(2), member(3), bond]
    };
    let mut bench = Bench::new(host(Some(2)));
    bench.connect(1, 101);
    bench.say(1, add("fr1", "eth0", true), vec![]);
    bench.say(1, add("fr2", "eth1", true), vec![]);
    bench.lease(1, 1).unwrap();
    bench.output();
    let both = ["1 192.0.2.1", "2 192.0.2.2"];
    let shown = |bench: &mut Bench| -> [Vec<String>; 2] {
        let devices = bench.devices(1);
        ["fr1", "fr2"].map(|name| gids(devices.iter().find(|device| device.name == name).unwrap()))
    };
    assert_eq!(shown(&mut bench), [both.map(String::from).to_vec(), vec![]]);
    for (active, want) in [(3, [0, 2]), (2, [2, 0]), (3, [0, 2])] {
        bench.broker.netdevs_changed(host(Some(active)));
        let heard = bench.heard(1);
        let told: Vec<&Message> = heard.iter().map(|(_, message, _)| message).collect();
        assert!(matches!(told[..], [Message::Devices(_)]), "no socket is opened anew: {told:?}");
        assert_eq!(shown(&mut bench).each_ref().map(Vec::len), want, "member {active}");
        let of = &shown(&mut bench)[active as usize - 2];
        assert_eq!(*of, both, "they have the indices they had");
    }
    // Neither link is left: nobody can say whose they are.
    bench.broker.netdevs_changed(host(None));
    assert_eq!(shown(&mut bench).each_ref().map(Vec::len), [2, 2]);
}

/// A program learns which hardware addresses its GIDs have, and when another one comes; its GIDs are what
/// they were.
#[test]
fn hardware_addresses_are_followed() {
    let mac = |last| [2, 0, 0, 0, 0, last];
    let host = |last| {
        let eth1 = Netdev { bond: Some(5), ..netdev(3, &[]) };
        let vlan = Netdev { lower: Some(2), mac: Some(mac(last)), ..netdev(4, &["192.0.2.4"]) };
        let bond = Netdev { active_member: Some(9), mac: Some(mac(50 + last)), ..netdev(5, &["192.0.2.5"]) };
        let lo = Netdev { mac: None, ..netdev(1, &["127.0.0.1"]) };
        vec![lo, netdev(2, &["192.0.2.2"]), eth1, vlan, bond]
    };
    let mut bench = Bench::new(host(7));
    bench.connect(1, 101);
    bench.say(1, add("fr1", "eth0", true), vec![]);
    bench.say(1, add("fr2", "eth1", true), vec![]);
    bench.output();
    let before = bench.devices(1);
    for (name, want) in [
        ("fr0", [].into()),
        ("fr1", [(2, mac(2)), (4, mac(7))].into()),
        // It may have to change with the next fail-over, wherever its GIDs are now.
        ("fr2", [(5, mac(57))].into()),
    ] {
        let device = before.iter().find(|device| device.name == name).unwrap();
        assert_eq!(device.macs, want, "{name}");
    }
    bench.broker.netdevs_changed(host(8));
    let heard = bench.heard(1);
    let [(0, Message::Devices(after), _)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(after[0].macs, [(2, mac(2)), (4, mac(8))].into());
    assert!(before.iter().map(|device| &device.gids).eq(after.iter().map(|device| &device.gids)));
}

#[test]
fn an_address_that_is_gone_is_in_nobodys_way_and_catches_up() {
    let lo = || netdev(1, &["127.0.0.1"]);
    let eth0 = || netdev(2, &["192.0.2.1"]);
    let mut bench = Bench::new(vec![lo(), eth0()]);
    bench.connect(1, 101);
    let add = Message::LinkAdd {
        name: "rxe0".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth0".to_owned(),
        transient: false,
    };
    bench.say(1, add, vec![]);
    bench.output();
    assert_eq!(bench.lease(1, 1).unwrap().1.len(), 2);
    // The kernel has dropped it already, the news of it are still on their way.
    let eth0s = Address::of("192.0.2.1".parse().unwrap(), 2);
    bench.system.port.borrow_mut().gone.insert(eth0s);
    bench.connect(2, 102);
    bench.output();
    let (slots, addresses, parked) = bench.lease(2, 1).unwrap();
    assert_eq!((slots, addresses), (vec![2], vec!["127.0.0.1".to_owned()]));
    // A new broker finds groups of two sizes, and serves as well.
    let known = bench.devices(2);
    bench.dies();
    bench.connect(2, 102);
    bench.say(2, Message::Devices(known), vec![]);
    assert_eq!(bench.resume(2, &[2], &parked).unwrap(), [2]);
    bench.connect(3, 103);
    bench.output();
    assert_eq!(bench.lease(3, 1).unwrap().1, ["127.0.0.1"]);
    // It comes back: whoever has a slot gets the sockets of it.
    bench.broker.netdevs_changed(vec![lo(), netdev(2, &[])]);
    bench.system.port.borrow_mut().gone.clear();
    bench.output();
    bench.broker.netdevs_changed(vec![lo(), eth0()]);
    let output = bench.output();
    let sockets =
        |message: &Message| matches!(message, Message::Address(a) if a.ip.to_string() == "192.0.2.1");
    assert!(
        output.iter().flat_map(|(_, messages)| messages).any(|(_, message, _)| sockets(message)),
        "{output:?}"
    );
}

#[test]
fn devices_survive_the_broker() {
    let host = || vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1", "192.0.2.2"])];
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    let add = Message::LinkAdd {
        name: "rxe0".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth0".to_owned(),
        transient: false,
    };
    bench.say(1, add, vec![]);
    bench.broker.netdevs_changed(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.2"])]);
    bench.output();
    let parked = bench.lease(1, 1).unwrap().2;
    let known = bench.devices(1);
    assert_eq!(gids(&known[0]), ["2 192.0.2.2"]);
    bench.dies();
    bench.connect(1, 101);
    bench.say(1, Message::Devices(known.clone()), vec![]);
    assert_eq!(bench.resume(1, &[1], &parked).unwrap(), [1]);
    let devices = bench.devices(1);
    assert_eq!(names(&devices), ["rxe0", "fr0"]);
    assert_eq!(gids(&devices[0]), ["2 192.0.2.2"], "an index means what it meant");
}

fn link(name: &str, netdev: &str, mac: u8) -> ConfiguredLink {
    let mac = Some([2, 0, 0, 0, 0, mac]);
    ConfiguredLink {
        name: name.to_owned(),
        kind: LinkKind::Rxe,
        netdev: netdev.to_owned(),
        dpdk: None,
        mac,
        settings: LinkSettings::default(),
    }
}

fn add(name: &str, netdev: &str, transient: bool) -> Message {
    let (name, netdev) = (name.to_owned(), netdev.to_owned());
    Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient }
}

fn delete(name: &str, transient: bool) -> Message {
    Message::LinkDel { name: name.to_owned(), transient }
}

#[test]
fn links_outlive_the_broker_unless_they_are_transient() {
    let host = vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"]), netdev(3, &["192.0.2.2"])];
    let mut bench = Bench::new(host.clone());
    bench.connect(1, 101);
    bench.say(1, add("fr1", "eth0", false), vec![]);
    bench.say(1, add("fr2", "eth1", true), vec![]);
    assert_eq!(bench.system.port.borrow().configured, [link("fr1", "eth0", 2)]);

    bench.dies();
    bench.connect(2, 102);
    assert_eq!(names(&bench.devices(2)), ["fr1", "fr0"]);
    bench.say(2, delete("fr1", true), vec![]);
    bench.broker.netdevs_changed(host);
    assert_eq!(names(&bench.devices(2)), ["fr0"], "not again with this broker");

    bench.dies();
    bench.connect(3, 103);
    assert_eq!(names(&bench.devices(3)), ["fr1", "fr0"]);
    bench.say(3, delete("fr1", false), vec![]);
    assert_eq!(bench.system.port.borrow().configured, []);
    bench.dies();
    bench.connect(4, 104);
    assert_eq!(names(&bench.devices(4)), ["fr0"]);
}

#[test]
fn a_configured_link_waits_for_its_interface() {
    let lo = netdev(1, &["127.0.0.1"]);
    let eth0 = netdev(2, &["192.0.2.1"]);
    let mut bench = Bench::new(vec![lo.clone()]);
    bench.system.port.borrow_mut().configured = vec![link("fr1", "eth0", 2)];
    bench.dies();
    bench.connect(1, 101);
    assert_eq!(names(&bench.devices(1)), ["fr0"]);
    bench.broker.netdevs_changed(vec![lo.clone(), Netdev { mac: Some([2, 9, 9, 9, 9, 9]), ..eth0.clone() }]);
    assert_eq!(names(&bench.devices(1)), ["fr0"], "another interface of that name");
    bench.broker.netdevs_changed(vec![lo.clone(), eth0.clone()]);
    assert_eq!(names(&bench.devices(1)), ["fr1", "fr0"]);
    bench.broker.netdevs_changed(vec![lo.clone()]);
    bench.broker.netdevs_changed(vec![lo.clone(), Netdev { ifindex: 9, ..eth0.clone() }]);
    assert_eq!(names(&bench.devices(1)), ["fr1", "fr0"], "it came back with another index");

    // A link that waits for its interface can be deleted, and its name and interface can be used again.
    bench.broker.netdevs_changed(vec![lo.clone()]);
    bench.say(1, delete("fr1", false), vec![]);
    assert_eq!(bench.system.port.borrow().configured, []);
}

#[test]
fn a_link_that_cannot_be_kept_is_not_made() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    bench.connect(1, 101);
    bench.system.port.borrow_mut().disk_full = true;
    let sent = bench.say(1, add("fr1", "eth0", false), vec![]);
    let Some((_, Message::Refused(refusal), _)) = sent.iter().find(|(id, ..)| *id == 5) else {
        panic!("{sent:?}");
    };
    assert!(refusal.sentence.contains("--no-persist"), "{refusal}");
    assert_eq!(names(&bench.devices(1)), ["fr0"], "nothing half applied");
    bench.say(1, add("fr1", "eth0", true), vec![]);
    assert_eq!(names(&bench.devices(1)), ["fr1", "fr0"]);
    bench.say(1, delete("fr1", true), vec![]);
    assert_eq!(names(&bench.devices(1)), ["fr0"]);
}

/// A link has its default GID before it has the address, without sockets, and the address takes its place.
#[test]
fn the_default_gid_is_there_from_the_start() {
    let default = || "fe80::ff:fe00:2".parse().ok();
    let host = |addresses: &[&str]| {
        let own = addresses.iter().any(|address| address.starts_with("fe80"));
        let default_gid = if own { None } else { default() };
        vec![netdev(1, &["127.0.0.1"]), Netdev { default_gid, ..netdev(2, addresses) }]
    };
    let mut bench = Bench::new(host(&[]));
    bench.connect(1, 101);
    bench.say(1, add("fr1", "eth0", true), vec![]);
    assert_eq!(gids(&bench.devices(1)[0]), ["0 fe80::ff:fe00:2"]);
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1"], "no socket for it");
    bench.broker.netdevs_changed(host(&["192.0.2.1"]));
    assert_eq!(gids(&bench.devices(1)[0]), ["0 fe80::ff:fe00:2", "1 192.0.2.1"]);
    bench.output();
    // The same address: no other GID, but sockets.
    bench.broker.netdevs_changed(host(&["192.0.2.1", "fe80::ff:fe00:2"]));
    let heard = bench.heard(1);
    let told: Vec<&Message> = heard.iter().map(|(_, message, _)| message).collect();
    assert!(matches!(told[..], [Message::Address(a)] if a.ip.to_string() == "fe80::ff:fe00:2"), "{told:?}");
    assert_eq!(gids(&bench.devices(1)[0]), ["0 fe80::ff:fe00:2", "1 192.0.2.1"]);
    // This one is not made of the hardware address.
    bench.broker.netdevs_changed(host(&["192.0.2.1", "fe80::7"]));
    assert_eq!(gids(&bench.devices(1)[0]), ["0 fe80::7", "1 192.0.2.1"]);
    bench.broker.netdevs_changed(host(&["192.0.2.1"]));
    assert_eq!(gids(&bench.devices(1)[0]), ["0 fe80::ff:fe00:2", "1 192.0.2.1"]);
    // IPv6 was never there, and both types are asked for.
    let both = ferroce_ipc::Setting::RoceMode(ferroce_ipc::RoceMode::Both);
    let set = Message::LinkSet { name: "fr1".to_owned(), settings: vec![both], transient: true, force: true };
    bench.say(1, set, vec![]);
    let want = ["0 fe80::ff:fe00:2", "1 fe80::ff:fe00:2", "2 192.0.2.1", "3 192.0.2.1"];
    assert_eq!(gids(&bench.devices(1)[0]), want, "of v2 and v1");
}
