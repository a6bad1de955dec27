//! Devices of iWARP: beside those of RoCE, and without addresses.

use ferroce_ipc::{Origin, RoceMode, Setting};

use super::*;
use crate::link_file::ConfiguredLink;
use ferroce_ipc::LinkSettings;

fn host() -> Vec<Netdev> {
    vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]
}

fn add(name: &str, kind: LinkKind, netdev: &str) -> Message {
    Message::LinkAdd { name: name.to_owned(), kind, netdev: netdev.to_owned(), transient: false }
}

fn set(name: &str, setting: Setting) -> Message {
    Message::LinkSet { name: name.to_owned(), settings: vec![setting], transient: false, force: false }
}

fn refused(sent: Sent) -> String {
    match sent.into_iter().find(|(id, ..)| *id == 5) {
        Some((_, Message::Refused(refusal), _)) => refusal.sentence,
        other => panic!("{other:?}"),
    }
}

fn kinds(devices: &[DeviceInfo]) -> Vec<(&str, LinkKind)> {
    devices.iter().map(|device| (device.name.as_str(), device.kind)).collect()
}

#[test]
fn an_interface_has_one_device_of_each_kind() {
    use LinkKind::{Rxe, Siw};
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    for (name, kind, netdev) in [("iw0", Siw, "eth0"), ("fr1", Rxe, "eth0"), ("iwlo", Siw, "lo")] {
        let sent = bench.say(1, add(name, kind, netdev), vec![]);
        assert!(sent.iter().any(|(id, message, _)| (*id, message) == (5, &Message::Done)), "{sent:?}");
    }
    let again = refused(bench.say(1, add("iw1", Siw, "eth0"), vec![]));
    assert_eq!(again, "eth0 has the iWARP device iw0 already");
    let again = refused(bench.say(1, add("fr2", Rxe, "eth0"), vec![]));
    assert_eq!(again, "eth0 has the RoCE device fr1 already");
    assert_eq!(refused(bench.say(1, add("iw0", Rxe, "lo"), vec![])), "lo has the RoCE device fr0 already");
    let devices = bench.devices(1);
    assert_eq!(kinds(&devices), [("iw0", Siw), ("fr1", Rxe), ("iwlo", Siw), ("fr0", Rxe)], "in this order");
    let gid = |index: usize| devices[index].gid_table()[0].gid.0;
    assert_eq!(gid(0)[..8], [2, 0, 0, 0, 0, 2, 0, 0], "the hardware address");
    assert_eq!(gid(2)[..8], [0, 2, 2, 2, 2, 2, 0, 0], "of the random GUID, which is not zero");
    assert_eq!(devices[0].macs.get(&2), Some(&[2, 0, 0, 0, 0, 2]));
}

/// No packet of RoCE belongs to such a device, so no socket is opened for it, however many addresses its
/// interface has.
#[test]
fn an_iwarp_device_opens_no_socket() {
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    bench.say(1, add("iw0", LinkKind::Siw, "eth0"), vec![]);
    assert!(bench.devices(1)[0].gids.is_empty());
    assert!(bench.broker.addresses.groups.len() == 0, "it is not served as links of RoCE are");
    assert_eq!(bench.lease(1, 1).unwrap().1, ["127.0.0.1"]);
    assert!(!bench.broker.is_idle());
    let ways = bench.broker.switch_view().ways;
    assert!(ways.iter().all(|way| way.ifindex == 1), "{ways:?}");
    bench.say(1, add("fr1", LinkKind::Rxe, "eth0"), vec![]);
    bench.say(1, Message::LinkDel { name: "fr1".to_owned(), transient: false }, vec![]);
    assert_eq!(names(&bench.devices(1)), ["iw0", "fr0"]);
}

/// A program that asks for an interface gets a RoCE device, whatever else is there.
#[test]
fn a_view_is_of_roce() {
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    bench.say(1, add("iw0", LinkKind::Siw, "eth0"), vec![]);
    bench.connect_for(2, 102, "eth0");
    let view = bench.devices(2);
    assert_eq!(kinds(&view)[..2], [("fr1", LinkKind::Rxe), ("iw0", LinkKind::Siw)]);
    assert_eq!(view[0].origin, Origin::View);
    // A name that only a view has is taken for a link of another kind.
    bench.say(1, Message::LinkDel { name: "iw0".to_owned(), transient: false }, vec![]);
    let taken = refused(bench.say(1, add("fr1", LinkKind::Siw, "eth0"), vec![]));
    assert_eq!(taken, "a device named fr1 exists already");
}

#[test]
fn only_the_crc_is_set() {
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    bench.say(1, add("iw0", LinkKind::Siw, "eth0"), vec![]);
    let mode = refused(bench.say(1, set("iw0", Setting::RoceMode(RoceMode::V1)), vec![]));
    assert_eq!(mode, "iw0: roce-mode means nothing on an iWARP link; only crc can be set there");
    let mtu = refused(bench.say(1, set("iw0", Setting::Mtu(None)), vec![]));
    assert_eq!(mtu, "iw0: mtu means nothing on an iWARP link; only crc can be set there");
    assert!(bench.devices(1)[0].settings.crc, "as it is from the start");
    bench.say(1, set("iw0", Setting::Crc(false)), vec![]);
    assert!(!bench.devices(1)[0].settings.crc, "without force: TCP has a checksum");
}

#[test]
fn the_kind_outlives_the_broker() {
    let mut bench = Bench::new(host());
    bench.connect(1, 101);
    bench.say(1, add("fr1", LinkKind::Rxe, "eth0"), vec![]);
    bench.say(1, add("iw0", LinkKind::Siw, "eth0"), vec![]);
    bench.say(1, set("iw0", Setting::Crc(false)), vec![]);
    let to = Message::LinkRename { name: "iw0".to_owned(), to: "siw9".to_owned(), transient: false };
    bench.say(1, to, vec![]);
    let link = |name: &str, kind, crc| ConfiguredLink {
        name: name.to_owned(),
        kind,
        netdev: "eth0".to_owned(),
        dpdk: None,
        mac: Some([2, 0, 0, 0, 0, 2]),
        settings: LinkSettings { crc, ..LinkSettings::default() },
    };
    let want = [link("fr1", LinkKind::Rxe, true), link("siw9", LinkKind::Siw, false)];
    assert_eq!(bench.system.port.borrow().configured, want);
    let before = bench.devices(1);
    bench.dies();
    bench.connect(2, 102);
    assert_eq!(bench.devices(2), before);
}

/// A link that was not to outlive the broker is restored by a program that knew it.
#[test]
fn a_program_brings_back_a_device_of_its_kind() {
    let mut bench = Bench::new(host());
    bench.connect(2, 102);
    bench.output();
    let parked = bench.lease(2, 1).unwrap().2;
    let transient = Message::LinkAdd {
        name: "iwlo".to_owned(),
        kind: LinkKind::Siw,
        netdev: "lo".to_owned(),
        transient: true,
    };
    bench.say(2, transient, vec![]);
    let known = bench.devices(2);
    bench.dies();
    bench.connect(2, 102);
    bench.say(2, Message::Devices(known.clone()), vec![]);
    assert_eq!(bench.resume(2, &[1], &parked).unwrap(), [1]);
    assert_eq!(kinds(&bench.devices(2)), kinds(&known));
}
