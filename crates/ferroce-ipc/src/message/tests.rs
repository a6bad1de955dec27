mod cm;

use std::collections::BTreeMap;

use ferroce_wire::{Gid, PathMtu};
use proptest::prelude::*;

use super::*;
use crate::codec::MessageError;
use crate::datapath::{Datapath, DatapathState, XdpPorts};
use crate::device::{Origin, PhysState};
use crate::gid::{GidEntry, GidType};
use crate::settings::{LinkSettings, Prefix, RoceMode, TcRule};

fn device() -> DeviceInfo {
    DeviceInfo {
        id: 7,
        name: "fr0".to_owned(),
        dev_name: "uverbs0".to_owned(),
        node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
        netdev: "lo".to_owned(),
        ifindex: 1,
        mtu: 65_536,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Default,
        kind: LinkKind::Rxe,
        datapath: Default::default(),
        gids: vec![gid(0, "127.0.0.1"), gid(1, "::1")],
        settings: LinkSettings::default(),
        macs: BTreeMap::new(),
    }
}

fn gid(index: u16, ip: &str) -> GidEntry {
    GidEntry { index, gid: Gid::from_ip(ip.parse().unwrap()), gid_type: GidType::RoceV2, ifindex: 1 }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn rule(tclass: u8, source: &str, destination: &str) -> TcRule {
    TcRule { tclass, source: prefix(source), destination: prefix(destination) }
}

fn settings() -> LinkSettings {
    LinkSettings {
        roce_mode: RoceMode::Both,
        cm_mode: Some(GidType::RoceV2),
        cm_tos: 106,
        tclass: Some(0),
        ttl: Some(1),
        rules: vec![rule(16, "1.1.1.2", "1.1.1.0/24"), rule(255, "any", "2001:db8::/32")],
        crc: false,
        congestion: false,
        roce: false,
        mtu: Some(PathMtu::B2048),
        datapath: Datapath::Xdp,
        xdp_ports: XdpPorts::Direct,
    }
}

/// A message of each kind, in the order of their numbers.
fn all() -> Vec<Message> {
    let counts = ResourceCounts { pds: 1, cqs: 2, qps: 3, mrs: 4 };
    let program = LeaseEntry {
        pid: 17,
        uid: 1000,
        command: "ib_write_bw".to_owned(),
        slots: [17].into_iter().chain(32..48).chain([254 * 16 + 3]).collect(),
        resources: counts,
    };
    // Sixteen slots with all low bits, of as many members.
    let spread = LeaseEntry { slots: (0..16).map(|n| (1 + n) * 16 + n).collect(), ..program.clone() };
    vec![
        Message::Hello(Hello {
            major: 1,
            minor: 2,
            features: 3,
            build: "ferroce 0.1.0".to_owned(),
            netdev: "eth0".to_owned(),
        }),
        Message::Refused(Refusal { code: RefusalCode::PortTaken, sentence: "in use".to_owned() }),
        Message::Done,
        Message::ListDevices,
        Message::Devices(vec![
            device(),
            DeviceInfo {
                name: "fr1".to_owned(),
                gids: vec![],
                settings: settings(),
                datapath: DatapathState::XdpNative,
                macs: [(2, [2, 0, 0, 0, 0, 1]), (9, [2, 0, 0, 0, 0, 9])].into(),
                ..device()
            },
            DeviceInfo { name: "siw0".to_owned(), kind: LinkKind::Siw, gids: vec![], ..device() },
        ]),
        Message::Lease(254),
        Message::Leased(Leased {
            slots: vec![16, 17],
            by_rings: false,
            addresses: 3,
            notice: "naïve".to_owned(),
            order: Some(QpnOrder { key: 7, start: 65_535 }),
        }),
        Message::Address(AddressSockets { ip: "fe80::1".parse().unwrap(), scope_id: 9, members: vec![3] }),
        Message::Release(vec![0x10, 0xfef]),
        Message::Resume(vec![0x50]),
        Message::Parked,
        Message::LinkAdd {
            name: "rxe_0".to_owned(),
            kind: LinkKind::Rxe,
            netdev: "eth0.5".to_owned(),
            transient: true,
        },
        Message::LinkDel { name: "fr1".to_owned(), transient: false },
        Message::GetStatus,
        Message::Status(Status {
            broker_pid: 1,
            broker_uid: 2,
            group_size: 3,
            groups: 4,
            adopted: true,
            build: "ferroce".to_owned(),
            programs: vec![program.clone(), spread],
            cm: Box::new(CmStatus {
                connections: 5,
                sidr_requests: 6,
                listeners: 7,
                ports: 8,
                counters: CmCounters {
                    rx_msgs: PerMessage(std::array::from_fn(|place| place as u64)),
                    rx_duplicates: PerMessage([9; 11]),
                    tx_msgs: PerMessage([u64::MAX; 11]),
                    tx_retries: PerMessage([10; 11]),
                    drops: [11; 8],
                },
                no_mad: 12,
            }),
        }),
        Message::Report(counts),
        Message::Cm(cm::requests().remove(0)),
        Message::CmDone(cm::done()),
        Message::CmEvent(cm::notices().remove(0)),
        Message::LinkSet {
            name: "fr1".to_owned(),
            settings: vec![
                Setting::RoceMode(RoceMode::Both),
                Setting::CmMode(GidType::RoceV1),
                Setting::CmTos(96),
                Setting::Tclass(None),
                Setting::Tclass(Some(0)),
                Setting::Ttl(Some(255)),
                Setting::Rule(rule(16, "1.1.1.0/24", "any")),
                Setting::NoRule { source: prefix("any"), destination: prefix("2001:db8::/33") },
                Setting::Crc(false),
                Setting::Roce(true),
                Setting::Mtu(Some(PathMtu::B256)),
                Setting::Mtu(None),
                Setting::Datapath(Datapath::Xdp),
                Setting::Datapath(Datapath::Udp),
                Setting::XdpPorts(XdpPorts::Auto),
                Setting::XdpPorts(XdpPorts::Pairs),
                Setting::Congestion(false),
                Setting::Unknown(99),
            ],
            transient: true,
            force: false,
        },
        Message::OpenRings { v2: true },
        Message::Rings,
        Message::Stop { force: true },
        Message::OfferPipes { direct: true },
        Message::OpenPipe(0x30),
        Message::Pipe { first: true, direct: false, slots: vec![0x30, 0x71] },
        Message::ResumeByRings(vec![0x30]),
        Message::OpenXdp(0x0102_0304),
        Message::Xdp { ifindex: u32::MAX, direct: true },
        Message::LinkRename { name: "fr1".to_owned(), to: "rxe0".to_owned(), transient: false },
        Message::Ledger,
        Message::GetStatistics("fr0".to_owned()),
        Message::Statistics(vec![("rcvd_pkts".to_owned(), u64::MAX), ("link_downed".to_owned(), 0)]),
        Message::GetLedgers,
        Message::Ledgers(254),
        Message::LedgerOf(program),
        Message::GetCmIds(1200),
        Message::CmIds {
            ids: vec![CmIdEntry {
                number: 7,
                slot: 0xfe3,
                state: CmIdState::Disconnect,
                qp_type: 2,
                space: 0x0106,
                qpn: 0x00fe_0011,
                local: "10.77.0.2:7174".parse().unwrap(),
                remote: "[fe80::1]:1".parse().unwrap(),
            }],
            more: true,
        },
        Message::FaultRequest {
            slot: 17,
            pid: 4711,
            order: FaultOrder::Apply { rules: "drop 1% # often\nseed=3".to_owned(), seed: Some(u64::MAX) },
        },
        Message::FaultOrder { number: 7, order: FaultOrder::Clear },
        Message::FaultReport {
            number: 7,
            result: Ok(FaultReport {
                seed: 7,
                unlogged: 1,
                rules: vec![
                    FaultCounts {
                        name: "tail".to_owned(),
                        text: "drop if pos=last".to_owned(),
                        seen: 9,
                        hits: 3,
                        known: Known::NotInForce,
                    },
                    FaultCounts { text: "dup 1%".to_owned(), ..FaultCounts::default() },
                ],
            }),
        },
        Message::MadFaults { generation: 3, rules: "seed=7\na: drop if op=rep\n".to_owned() },
        Message::GetMadFaults,
        Message::MadFaultReport(MadFaultReport {
            generation: 3,
            unlogged: 1,
            counts: vec![(9, 3), (u64::MAX, 0)],
            hits: vec![(0, "drop if dir=tx,conn=0,op=rep,iter=1".to_owned()), (1, String::new())],
            more: true,
        }),
        Message::MadFaultHits,
        Message::SettleRings,
        Message::GetEndedLedgers,
    ]
}

#[test]
fn every_message_comes_out_as_it_went_in() {
    let kinds: Vec<u8> = all().iter().map(|message| message.encode(0).unwrap()[10]).collect();
    assert!(kinds.is_sorted_by(|a, b| a < b), "{kinds:?}");
    for message in all() {
        let bytes = message.encode(99).unwrap();
        assert_eq!(Message::decode(&bytes, message.descriptors()), Ok((99, message)));
    }
}

#[test]
fn the_header_is_as_documented() {
    let bytes = all()[7].encode(0x0102_0304).unwrap();
    assert_eq!(bytes[..11], [1, 0, 4, 3, 2, 1, 34, 0, 0, 0, 8]);
}

#[test]
fn every_truncation_and_every_excess_is_refused() {
    for message in all() {
        let bytes = message.encode(1).unwrap();
        let count = message.descriptors();
        for end in 0..bytes.len() {
            assert!(Message::decode(&bytes[..end], count).is_err(), "{message:?} cut at {end}");
            // A cut message is refused also with a length field that fits.
            let mut cut = bytes[..end].to_vec();
            if end >= 10 {
                cut[6..10].copy_from_slice(&(end as u32).to_le_bytes());
                let decoded = Message::decode(&cut, count);
                assert!(decoded.is_err(), "{message:?} cut at {end} is {decoded:?}");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(
            Message::decode(&longer, count),
            Err(MessageError::Length { said: bytes.len(), got: bytes.len() + 1 })
        );
        for wrong in [count + 1, count.wrapping_sub(1)] {
            assert!(
                matches!(Message::decode(&bytes, wrong), Err(MessageError::Descriptors { .. })),
                "{message:?}"
            );
            // A wrong number of descriptors is refused also with a header that fits.
            let mut lying = bytes.clone();
            lying[..2].copy_from_slice(&(wrong as u16).to_le_bytes());
            assert!(
                matches!(Message::decode(&lying, wrong), Err(MessageError::Descriptors { .. })),
                "{message:?}"
            );
        }
    }
}

/// A message of a kind with this content.
fn raw(kind: u8, descriptors: u16, content: &[u8]) -> Vec<u8> {
    let length = (11 + content.len()) as u32;
    [&descriptors.to_le_bytes()[..], &[1, 0, 0, 0], &length.to_le_bytes(), &[kind], content].concat()
}

#[test]
fn a_newer_minor_may_say_more() {
    // More after the last field.
    assert_eq!(Message::decode(&raw(6, 0, &[3, 9, 9, 9]), 0), Ok((1, Message::Lease(3))));
    let longer = raw(9, 0, &[1, 0, 0x50, 0, 9, 9]);
    assert_eq!(Message::decode(&longer, 0), Ok((1, Message::Release(vec![0x50]))));
    // Longer rows.
    let row = |setting: &[u8]| [&(setting.len() as u16).to_le_bytes()[..], setting].concat();
    let set = |rows: &[Vec<u8>]| {
        raw(20, 0, &[&[1, 0, b'a', rows.len() as u8, 0][..], &rows.concat(), &[1, 0]].concat())
    };
    let wider = set(&[row(&[3, 96, 9, 9]), row(&[8, 1, 9])]);
    let settings = vec![Setting::CmTos(96), Setting::Crc(true)];
    let want = Message::LinkSet { name: "a".to_owned(), settings, transient: true, force: false };
    assert_eq!(Message::decode(&wider, 0), Ok((1, want)));
    // The kind and the code are unknown.
    assert_eq!(Message::decode(&raw(255, 0, b"?"), 0), Err(MessageError::UnknownKind(255)));
    let refused = Message::decode(&raw(2, 0, &[0xff, 2, 0, b'n', b'o']), 0);
    let want = Refusal { code: RefusalCode::Failed, sentence: "no".to_owned() };
    assert_eq!(refused, Ok((1, Message::Refused(want))));
    // A setting, or the value of one, is unknown.
    for (kind, row) in [(99, row(&[99, 1, 2, 3])), (11, row(&[11, 200])), (1, row(&[1, 9])), (3, row(&[3]))] {
        let settings = vec![Setting::Unknown(kind)];
        let want = Message::LinkSet { name: "a".to_owned(), settings, transient: true, force: false };
        assert_eq!(Message::decode(&set(&[row]), 0), Ok((1, want)));
    }
}

/// The octet in which the encodings of two messages differ.
fn place_of_difference(one: &Message, other: &Message) -> usize {
    let (one, other) = (one.encode(1).unwrap(), other.encode(1).unwrap());
    let differ: Vec<usize> = (0..one.len()).filter(|place| one[*place] != other[*place]).collect();
    assert_eq!((one.len(), differ.len()), (other.len(), 1), "{differ:?}");
    differ[0]
}

#[test]
fn datapath_states_of_a_newer_minor_are_reasons_not_to_use_xdp() {
    let devices = |state| Message::Devices(vec![DeviceInfo { datapath: state, ..device() }]);
    let plain = devices(DatapathState::Udp);
    let state = place_of_difference(&plain, &devices(DatapathState::Busy));
    for (value, want) in [(19, DatapathState::Busy), (4, DatapathState::Failed), (255, DatapathState::Failed)]
    {
        let mut bytes = plain.encode(1).unwrap();
        bytes[state] = value;
        assert_eq!(Message::decode(&bytes, 0), Ok((1, devices(want))), "{value}");
    }
}

#[test]
fn every_choice_of_ports_is_read_as_it_was_written() {
    for xdp_ports in [XdpPorts::Auto, XdpPorts::Direct, XdpPorts::Pairs] {
        let settings = LinkSettings { xdp_ports, ..LinkSettings::default() };
        let devices = Message::Devices(vec![DeviceInfo { settings, ..device() }]);
        assert_eq!(Message::decode(&devices.encode(1).unwrap(), 0), Ok((1, devices)));
    }
    for direct in [false, true] {
        let message = Message::Xdp { ifindex: 5, direct };
        assert_eq!(Message::decode(&message.encode(1).unwrap(), 2), Ok((1, message)));
    }
}

#[test]
fn bad_fields_are_named() {
    use MessageError::{Text, Truncated, Value};
    let text = |text: &[u8]| [&(text.len() as u16).to_le_bytes()[..], text].concat();
    let link =
        |device: &[u8], netdev: &[u8], kind: u8| [text(device), vec![kind], text(netdev), vec![0]].concat();
    let hello = |magic: &[u8], build: &[u8]| [magic, &[1, 0, 0, 0], &[0; 8], &text(build), &[0; 2]].concat();
    let long = [b'x'; 300];
    let cases: Vec<(&str, Vec<u8>, MessageError)> = vec![
        ("magic", raw(1, 0, &hello(b"fRoc", b"x")), Value { field: "magic", value: 0x636f_5266 }),
        ("build not UTF-8", raw(1, 0, &hello(b"fRoC", &[0xff])), Text { field: "build" }),
        ("a long build", raw(1, 0, &hello(b"fRoC", &long[..33])), Text { field: "build" }),
        ("build with a zero", raw(1, 0, &hello(b"fRoC", b"a\0b")), Text { field: "build" }),
        ("build with a control", raw(1, 0, &hello(b"fRoC", b"a\x1b[2J")), Text { field: "build" }),
        ("sentence too short", raw(2, 0, b"\0\x09\0short"), Truncated { have: 19, need: 23 }),
        ("sentence with a newline", raw(2, 0, &[0, 2, 0, b'a', b'\n']), Text { field: "sentence" }),
        ("a long sentence", raw(2, 0, &[vec![0], text(&[b'a'; 1025])].concat()), Text { field: "sentence" }),
        ("lease of nothing", raw(6, 0, &[0]), Value { field: "count", value: 0 }),
        ("lease of 255", raw(6, 0, &[255]), Value { field: "count", value: 255 }),
        ("the broker's slot", raw(9, 0, &[1, 0, 15, 0]), Value { field: "slot", value: 15 }),
        ("a slot of member 255", raw(9, 0, &[1, 0, 0xf0, 0x0f]), Value { field: "slot", value: 0xff0 }),
        ("a slot of 13 bits", raw(9, 0, &[1, 0, 0x20, 0x10]), Value { field: "slot", value: 0x1020 }),
        (
            "member 0",
            raw(8, 0, &[[0; 20].as_slice(), &[1, 0, 0]].concat()),
            Value { field: "member", value: 0 },
        ),
        (
            "member twice",
            raw(8, 0, &[[0; 20].as_slice(), &[2, 0, 3, 3]].concat()),
            Value { field: "member", value: 3 },
        ),
        ("slot twice", raw(9, 0, &[2, 0, 16, 0, 16, 0]), Value { field: "slot", value: 16 }),
        ("more slots than bytes", raw(9, 0, &[255, 255, 16, 0, 17]), Truncated { have: 16, need: 17 }),
        (
            "a row beyond the end",
            raw(20, 0, &[1, 0, b'a', 1, 0, 9, 0, 3, 96, 1, 0]),
            Truncated { have: 22, need: 27 },
        ),
        (
            "address without slots",
            raw(8, 0, &[[0; 20].as_slice(), &[0, 0]].concat()),
            Value { field: "members", value: 0 },
        ),
        ("no name", raw(12, 0, &link(b"", b"eth0", 0)), Text { field: "name" }),
        ("a path", raw(12, 0, &link(b"../x", b"eth0", 0)), Text { field: "name" }),
        ("a flag", raw(12, 0, &link(b"-x", b"eth0", 0)), Text { field: "name" }),
        ("64 characters", raw(12, 0, &link(&long[..64], b"eth0", 0)), Text { field: "name" }),
        ("no netdev", raw(12, 0, &link(b"fr1", b"", 0)), Text { field: "netdev" }),
        ("netdev with a slash", raw(12, 0, &link(b"fr1", b"a/b", 0)), Text { field: "netdev" }),
        ("netdev with a control", raw(12, 0, &link(b"fr1", b"a\x1bb", 0)), Text { field: "netdev" }),
        ("16 characters", raw(12, 0, &link(b"fr1", &long[..16], 0)), Text { field: "netdev" }),
        ("kind", raw(12, 0, &link(b"fr1", b"eth0", 3)), Value { field: "link kind", value: 3 }),
        (
            "an order without a key",
            raw(7, 1, &[[0; 7].as_slice(), &[1], &[0; 10]].concat()),
            Value { field: "key", value: 0 },
        ),
    ];
    for (what, bytes, error) in cases {
        assert_eq!(Message::decode(&bytes, bytes[0].into()), Err(error), "{what}");
    }
}

#[test]
fn a_link_names_a_device_of_dpdk_by_a_text_of_any_length() {
    let add = |devargs: &str| Message::LinkAdd {
        name: "a".to_owned(),
        kind: LinkKind::Rxe,
        netdev: format!("{DPDK_PREFIX}{devargs}"),
        transient: true,
    };
    for devargs in ["0000:03:00.0", "net_af_packet0,iface=veth1,qpairs=1", &"x".repeat(256)] {
        let bytes = add(devargs).encode(7).unwrap();
        assert_eq!(Message::decode(&bytes, 0), Ok((7, add(devargs))));
        let mut cut = bytes[..bytes.len() - 1].to_vec();
        let length = cut.len() as u32;
        cut[6..10].copy_from_slice(&length.to_le_bytes());
        assert!(matches!(Message::decode(&cut, 0), Err(MessageError::Truncated { .. })), "{devargs}");
    }
    assert_eq!(add(&"x".repeat(257)).encode(7), Err(MessageError::TooLong { field: "netdev" }));
    for bad in ["", "net_null0 --vdev=x", "a\nb"] {
        let bytes = add(bad).encode(7).unwrap();
        assert_eq!(Message::decode(&bytes, 0), Err(MessageError::Text { field: "netdev" }), "{bad:?}");
    }
}

#[test]
fn bad_device_fields_are_named() {
    let macs: BTreeMap<u32, [u8; 6]> = [(2, [2, 0, 0, 0, 0, 1])].into();
    let plain = DeviceInfo { settings: settings(), macs, ..device() };
    type Change = fn(&mut DeviceInfo);
    let cases: &[(&str, Change, u8)] = &[
        ("flag", |device| device.port_active = false, 2),
        ("phys_state", |device| device.phys_state = PhysState::Polling, 4),
        ("origin", |device| device.origin = Origin::View, 3),
        ("link kind", |device| device.kind = LinkKind::Siw, 2),
        ("roce_mode", |device| device.settings.roce_mode = RoceMode::V1, 4),
        ("gid_type", |device| device.settings.cm_mode = Some(GidType::RoceV1), 3),
        ("path mtu", |device| device.settings.mtu = Some(PathMtu::B256), 6),
        ("datapath", |device| device.settings.datapath = Datapath::Udp, 2),
        ("xdp_ports", |device| device.settings.xdp_ports = XdpPorts::Pairs, 3),
        (
            "prefix",
            |device| {
                device.settings.rules[0].source = Prefix::of_gid(prefix("1.1.1.2").gid().0, 127).unwrap()
            },
            129,
        ),
        ("gid_type", |device| device.gids[0].gid_type = GidType::RoceV1, 0),
        ("gid index", |device| device.gids[1].index = 2, 0),
        ("gid index", |device| device.gids[1].index = 0x0101, 4),
    ];
    for (field, change, value) in cases {
        let mut changed = plain.clone();
        change(&mut changed);
        let (good, changed) = (Message::Devices(vec![plain.clone()]), Message::Devices(vec![changed]));
        let (mut bad, changed) = (good.encode(1).unwrap(), changed.encode(1).unwrap());
        let at = (0..bad.len()).rev().find(|place| bad[*place] != changed[*place]).unwrap();
        bad[at] = *value;
        match Message::decode(&bad, 0) {
            Err(MessageError::Value { field: named, .. }) => assert_eq!(named, *field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn a_broker_knows_how_long_a_list_of_devices_is() {
    let long = |count| "n".repeat(count);
    let mut device = DeviceInfo {
        name: long(63),
        dev_name: long(15),
        netdev: long(15),
        gids: vec![],
        settings: LinkSettings { rules: vec![], ..settings() },
        ..device()
    };
    let length = |device: &DeviceInfo| Message::Devices(vec![device.clone()]).encode(1).unwrap().len();
    let mut before = length(&device);
    assert_eq!(before - 13, DEVICE_BYTES);
    let mut grows_by = |device: &DeviceInfo| {
        let now = length(device);
        now - std::mem::replace(&mut before, now)
    };
    device.gids.push(gid(0, "::1"));
    assert_eq!(grows_by(&device), GID_BYTES);
    device.macs.insert(1, [2; 6]);
    assert_eq!(grows_by(&device), MAC_BYTES);
    device.settings.rules.push(rule(1, "any", "any"));
    assert_eq!(grows_by(&device), RULE_BYTES);
}

#[test]
fn as_many_programs_as_there_are_slots_fit_a_status() {
    let program = |slots: Vec<u16>| LeaseEntry {
        pid: u32::MAX,
        uid: u32::MAX,
        command: "n".repeat(16),
        slots,
        resources: ResourceCounts::default(),
    };
    let mut programs: Vec<LeaseEntry> =
        (16..).map(|slot| program(vec![slot])).take(STATUS_PROGRAMS).collect();
    programs[0].slots.extend(16 + STATUS_PROGRAMS as u16..254 * 16 + 16);
    assert!(Message::Status(Status { programs, ..Status::default() }).encode(1).is_ok());
}

#[test]
fn orders_and_refusals_of_faults_come_out_as_they_went_in() {
    for order in [FaultOrder::Show, FaultOrder::Apply { rules: String::new(), seed: None }] {
        let message = Message::FaultOrder { number: 1, order };
        assert_eq!(Message::decode(&message.encode(0).unwrap(), 0), Ok((0, message)));
    }
    let refused = Message::FaultReport { number: 1, result: Err("no".to_owned()) };
    assert_eq!(Message::decode(&refused.encode(0).unwrap(), 0), Ok((0, refused)));
    let rules = |rules: &str| Message::FaultOrder {
        number: 1,
        order: FaultOrder::Apply { rules: rules.to_owned(), seed: None },
    };
    let escape = rules("drop\u{1b}[2J").encode(0).unwrap();
    assert_eq!(Message::decode(&escape, 0), Err(MessageError::Text { field: "rules" }));
    let unknown = raw(49, 0, &[1, 0, 0, 0, 9]);
    assert_eq!(Message::decode(&unknown, 0), Err(MessageError::Value { field: "order", value: 9 }));
    let escape = Message::MadFaults { generation: 1, rules: "drop\u{1b}[2J".to_owned() }.encode(0).unwrap();
    assert_eq!(Message::decode(&escape, 0), Err(MessageError::Text { field: "rules" }));
    assert!(rules(&"#".repeat(MAX_MESSAGE - 100)).encode(0).is_ok());
    assert!(matches!(rules(&"#".repeat(MAX_MESSAGE)).encode(0), Err(MessageError::TooLong { .. })));
}

#[test]
fn what_does_not_fit_is_not_sent() {
    let long = "x".repeat(65);
    assert_eq!(
        Message::LinkDel { name: long, transient: false }.encode(1),
        Err(MessageError::TooLong { field: "name" })
    );
    let many = vec![device(); 600];
    assert_eq!(Message::Devices(many).encode(1), Err(MessageError::TooLong { field: "message" }));
    let members: Vec<u8> = (1..=254).collect();
    let address = AddressSockets { ip: "::1".parse().unwrap(), scope_id: 0, members };
    assert_eq!(Message::Address(address).encode(1), Err(MessageError::TooLong { field: "message" }));
    // Sentences are cut, at a character.
    let sentence = "é".repeat(600);
    let bytes = Message::Refused(Refusal { code: RefusalCode::Failed, sentence }).encode(1).unwrap();
    match Message::decode(&bytes, 0) {
        Ok((_, Message::Refused(refusal))) => assert_eq!(refusal.sentence, "é".repeat(512)),
        other => panic!("{other:?}"),
    }
}

prop_compose! {
    fn entries()(indices in proptest::collection::btree_set(0..GID_TABLE, 0..5), octets: [u8; 16], ifindex: u32)
        -> Vec<GidEntry> {
        let entry = |index| GidEntry { index, gid: Gid(octets), gid_type: GidType::RoceV2, ifindex };
        indices.into_iter().map(entry).collect()
    }
}

prop_compose! {
    fn a_device()(id: u32, name in "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,62}", netdev in "[a-z]{1,15}", guid: [u8; 8],
            mtu: u32, up: bool, gids in entries(), roce: bool, siw: bool,
            macs in proptest::collection::btree_map(any::<u32>(), any::<[u8; 6]>(), 0..3)) -> DeviceInfo {
        let settings = LinkSettings { roce, ..settings() };
        let kind = if siw { LinkKind::Siw } else { LinkKind::Rxe };
        DeviceInfo {
            kind, settings, id, name, netdev, node_guid: guid, mtu, port_active: up, gids, macs, ..device()
        }
    }
}

fn a_setting() -> impl Strategy<Value = Setting> {
    prop_oneof![
        any::<Option<u8>>().prop_map(Setting::Tclass),
        any::<u8>().prop_map(Setting::CmTos),
        (any::<u8>(), any::<[u8; 16]>(), 0..=128_u8).prop_map(|(tclass, octets, length)| {
            let source = Prefix::of_gid(Gid(octets), length).unwrap();
            Setting::Rule(TcRule { tclass, source, destination: Prefix::ANY })
        }),
        // Kinds 1 to 13 have names.
        (14..=255_u8).prop_map(Setting::Unknown),
    ]
}

fn slots() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::btree_set(16..=254 * 16 + 15_u16, 0..20).prop_map(|set| set.into_iter().collect())
}

fn a_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<(u16, u16, u64)>(), "[ -~]{0,32}", "[ -~]{0,16}").prop_map(|(n, build, netdev)| {
            Message::Hello(Hello { major: n.0, minor: n.1, features: n.2, build, netdev })
        }),
        proptest::collection::vec(a_device(), 0..4).prop_map(Message::Devices),
        (
            slots(),
            any::<bool>(),
            any::<u16>(),
            "[ -~]{0,100}",
            proptest::option::of((1..u64::MAX, any::<u16>()))
        )
            .prop_map(|(slots, by_rings, addresses, notice, order)| {
                let order = order.map(|(key, start)| QpnOrder { key, start });
                Message::Leased(Leased { slots, by_rings, addresses, notice, order })
            }),
        (any::<[u8; 16]>(), any::<u32>(), proptest::collection::btree_set(1..=254_u8, 1..20)).prop_map(
            |(gid, scope_id, members)| {
                let members = members.into_iter().collect();
                Message::Address(AddressSockets { ip: Gid(gid).to_ip(), scope_id, members })
            }
        ),
        ("[a-z]{1,20}", proptest::collection::vec(a_setting(), 0..4), any::<[bool; 2]>()).prop_map(
            |(name, settings, [transient, force])| Message::LinkSet { name, settings, transient, force }
        ),
        slots().prop_map(Message::Release),
        slots().prop_map(Message::Resume),
        slots().prop_map(Message::ResumeByRings),
        any::<[u32; 4]>()
            .prop_map(|[pds, cqs, qps, mrs]| { Message::Report(ResourceCounts { pds, cqs, qps, mrs }) }),
        cm::a_message(),
    ]
}

proptest! {
    #[test]
    fn any_message_comes_out_as_it_went_in(message in a_message(), id: u32) {
        let bytes = message.encode(id).unwrap();
        prop_assert_eq!(Message::decode(&bytes, message.descriptors()), Ok((id, message)));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0..3_usize) {
        let _ = Message::decode(&bytes, count);
    }

    #[test]
    fn a_changed_byte_is_a_message_or_an_error(message in a_message(), at: prop::sample::Index, value: u8) {
        let mut bytes = message.encode(1).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = value;
        // A decoded message is valid: it can be encoded again.
        if let Ok((id, changed)) = Message::decode(&bytes, message.descriptors()) {
            prop_assert!(changed.encode(id).is_ok());
        }
    }
}
