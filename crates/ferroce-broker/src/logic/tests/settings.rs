//! Settings of devices.

use ferroce_ipc::{GidType, LinkSettings, RoceMode, Setting, TcRule};

use super::*;

fn set(name: &str, settings: &[Setting]) -> Message {
    Message::LinkSet { name: name.to_owned(), settings: settings.to_vec(), transient: false, force: false }
}

/// The answer to a request: done, or the sentence why not.
fn answer(bench: &mut Bench, client: u64, message: Message) -> Result<(), String> {
    let sent = bench.say(client, message, vec![]);
    match &sent.iter().find(|(id, ..)| *id == 5).unwrap().1 {
        Message::Refused(refusal) => Err(refusal.sentence.clone()),
        Message::Done => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn bench() -> Bench {
    let veth = Netdev { virtual_wire: true, ..netdev(3, &["192.0.2.2"]) };
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["fe80::1", "192.0.2.1"]), veth]);
    bench.connect(1, 101);
    for (name, netdev, transient) in [("fr1", "eth0", false), ("fr2", "eth1", true)] {
        let (name, netdev) = (name.to_owned(), netdev.to_owned());
        let add = Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient };
        assert_eq!(answer(&mut bench, 1, add), Ok(()));
    }
    bench
}

fn types(device: &DeviceInfo) -> Vec<String> {
    device.gids.iter().map(|e| format!("{} {} {}", e.index, e.gid.to_ip(), e.gid_type.name())).collect()
}

#[test]
fn the_mode_makes_the_table() {
    let mut bench = bench();
    bench.connect(2, 102);
    bench.devices(2);
    assert_eq!(answer(&mut bench, 1, set("fr1", &[Setting::RoceMode(RoceMode::Both)])), Ok(()));
    let both = ["0 fe80::1 v2", "1 fe80::1 v1", "2 192.0.2.1 v2", "3 192.0.2.1 v1"];
    assert_eq!(types(&bench.devices(2)[0]), both, "others are told");
    for (mode, want) in [
        (RoceMode::V1, ["0 fe80::1 v1", "1 192.0.2.1 v1"]),
        (RoceMode::V2, ["0 fe80::1 v2", "1 192.0.2.1 v2"]),
    ] {
        assert_eq!(answer(&mut bench, 1, set("fr1", &[Setting::RoceMode(mode)])), Ok(()));
        assert_eq!(types(&bench.devices(2)[0]), want);
    }
    assert_eq!(answer(&mut bench, 1, set("fr1", &[Setting::Roce(false)])), Ok(()));
    assert_eq!(types(&bench.devices(2)[0]), [""; 0]);
    assert_eq!(answer(&mut bench, 1, set("fr1", &[Setting::Roce(true)])), Ok(()));
    assert_eq!(types(&bench.devices(2)[0]), ["0 fe80::1 v2", "1 192.0.2.1 v2"]);
}

#[test]
fn settings_outlive_the_broker_as_links_do() {
    let mut bench = bench();
    let rule =
        TcRule { tclass: 16, source: "any".parse().unwrap(), destination: "1.1.1.0/24".parse().unwrap() };
    for (name, setting) in
        [("fr0", Setting::Crc(false)), ("fr1", Setting::Rule(rule)), ("fr2", Setting::CmTos(96))]
    {
        assert_eq!(answer(&mut bench, 1, set(name, &[setting])), Ok(()), "{name}");
    }
    let now = Message::LinkSet {
        name: "fr1".to_owned(),
        settings: vec![Setting::Ttl(Some(9))],
        transient: true,
        force: false,
    };
    assert_eq!(answer(&mut bench, 1, now), Ok(()));
    let settings = |bench: &mut Bench, client| -> Vec<LinkSettings> {
        bench.devices(client).into_iter().map(|device| device.settings).collect()
    };
    let default = LinkSettings::default();
    let unchecked = LinkSettings { crc: false, ..default.clone() };
    let ruled = LinkSettings { rules: vec![rule], ..default.clone() };
    let want = [
        LinkSettings { ttl: Some(9), ..ruled.clone() },
        LinkSettings { cm_tos: 96, ..default.clone() },
        unchecked.clone(),
    ];
    assert_eq!(settings(&mut bench, 1), want);

    bench.dies();
    bench.connect(2, 102);
    assert_eq!(settings(&mut bench, 2), [ruled.clone(), unchecked]);
    assert_eq!(answer(&mut bench, 2, set("fr0", &[Setting::Crc(true)])), Ok(()));
    bench.dies();
    bench.connect(3, 103);
    assert_eq!(settings(&mut bench, 3), [ruled, default]);
    assert_eq!(bench.system.port.borrow().configured.len(), 1, "nothing is kept of fr0 that is as it was");
}

#[test]
fn settings_that_cannot_be_are_not_half_made() {
    let mut bench = bench();
    let mode = Setting::RoceMode(RoceMode::Both);
    let none = "there is no device named fr9".to_owned();
    assert_eq!(answer(&mut bench, 1, set("fr9", &[mode])), Err(none));
    let wrong = answer(&mut bench, 1, set("fr1", &[mode, Setting::Ttl(Some(0))]));
    assert_eq!(wrong, Err("fr1: a hop limit is 1 to 255".to_owned()));
    let wrong = answer(&mut bench, 1, set("fr1", &[Setting::CmMode(GidType::RoceV1), mode]));
    assert_eq!(wrong, Err("fr1: it has no RoCE v1 GIDs; roce-mode both makes them".to_owned()));
    let wrong = answer(&mut bench, 1, set("fr1", &[mode, Setting::Unknown(77)]));
    assert_eq!(wrong, Err("fr1: this ferroced does not know setting 77".to_owned()));
    assert_eq!(answer(&mut bench, 1, set("fr2", &[Setting::Crc(false)])), Ok(()), "a veth");
    let wrong = answer(&mut bench, 1, set("fr1", &[mode, Setting::Crc(false)])).unwrap_err();
    assert!(wrong.starts_with("eth0 may be a real wire") && wrong.contains("--force"), "{wrong}");
    bench.system.port.borrow_mut().disk_full = true;
    let wrong = answer(&mut bench, 1, set("fr1", &[mode])).unwrap_err();
    assert!(wrong.contains("--no-persist"), "{wrong}");
    bench.system.port.borrow_mut().disk_full = false;
    assert_eq!(bench.devices(1)[0].settings, LinkSettings::default());
    assert!(
        bench.system.port.borrow().configured.iter().all(|link| link.settings == LinkSettings::default())
    );

    let force = Message::LinkSet {
        name: "fr1".to_owned(),
        settings: vec![Setting::Crc(false)],
        transient: false,
        force: true,
    };
    assert_eq!(answer(&mut bench, 1, force), Ok(()));
    assert_eq!(
        answer(&mut bench, 1, set("fr1", &[mode])),
        Ok(()),
        "what is set already is not asked for again"
    );
}

#[test]
fn without_frames_there_is_no_roce_v1() {
    let mut bench = bench();
    assert_eq!(answer(&mut bench, 1, set("fr1", &[Setting::RoceMode(RoceMode::Both)])), Ok(()));
    bench.system.port.borrow_mut().no_frames = true;
    bench.dies();
    bench.connect(2, 102);
    assert_eq!(types(&bench.devices(2)[0]), ["0 fe80::1 v2", "2 192.0.2.1 v2"], "what works of it");
    let add = Message::LinkAdd {
        name: "fr2".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth1".to_owned(),
        transient: true,
    };
    assert_eq!(answer(&mut bench, 2, add), Ok(()));
    let refused = answer(&mut bench, 2, set("fr2", &[Setting::RoceMode(RoceMode::V1)])).unwrap_err();
    assert!(refused.contains("CAP_NET_RAW"), "{refused}");
    assert_eq!(answer(&mut bench, 2, set("fr1", &[Setting::CmTos(8)])), Ok(()), "what it has is no obstacle");
    assert_eq!(answer(&mut bench, 2, set("fr1", &[Setting::RoceMode(RoceMode::V2)])), Ok(()));
}

fn rename(name: &str, to: &str, transient: bool) -> Message {
    Message::LinkRename { name: name.to_owned(), to: to.to_owned(), transient }
}

#[test]
fn devices_get_other_names() {
    let mut bench = bench();
    for (name, to, want) in [
        ("fr9", "rxe0", "there is no device named fr9"),
        ("fr0", "rxe0", "fr0 is the device that is always there, under this name"),
        ("fr1", "fr2", "a device named fr2 exists already"),
    ] {
        assert_eq!(answer(&mut bench, 1, rename(name, to, false)), Err(want.to_owned()));
    }
    let id = bench.devices(1)[0].id;
    assert_eq!(answer(&mut bench, 1, rename("fr1", "rxe0", false)), Ok(()));
    assert_eq!(answer(&mut bench, 1, rename("rxe0", "rxe1", true)), Ok(()));
    let devices = bench.devices(1);
    assert_eq!((names(&devices), devices[0].id), (vec!["rxe1", "fr2", "fr0"], id), "it is the same device");
    bench.dies();
    bench.connect(2, 102);
    assert_eq!(names(&bench.devices(2)), ["rxe0", "fr0"]);
}

#[test]
fn vlans_above_a_link_are_given_priorities() {
    let vlan = |ifindex, egress| Netdev {
        name: format!("v{ifindex}"),
        kind: "vlan".to_owned(),
        vlan: Some(ferroce_ipc::Vlan { id: 5, egress }),
        lower: Some(2),
        ..netdev(ifindex, &[])
    };
    let host = vec![
        netdev(1, &["127.0.0.1"]),
        netdev(2, &["fe80::1", "192.0.2.1"]),
        vlan(3, [0; 8]),
        vlan(4, [1; 8]),
        Netdev { lower: Some(9), ..vlan(5, [0; 8]) },
    ];
    let mut bench = Bench::new(host);
    bench.connect(1, 101);
    let (name, netdev) = ("fr1".to_owned(), "eth0".to_owned());
    let add = Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient: false };
    assert_eq!(answer(&mut bench, 1, add), Ok(()));
    assert_eq!(
        bench.system.port.borrow().mapped,
        ["v3"],
        "those above it of which nobody chose the priorities"
    );
}
