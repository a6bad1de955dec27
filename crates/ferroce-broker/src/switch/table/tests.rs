//! Frames that arrive at a port of DPDK.

use ferroce_ipc::ring::Rings;

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const TAP: u32 = 7;
/// The slot of the program.
const SLOT: u16 = 0x30;

fn way(address: &str, version: RoceVersion) -> Way {
    Way { version, gid: Gid::from_ip(address.parse().unwrap()), ifindex: TAP }
}

/// A program with rings, as the broker and as the program have them.
fn table(relayed: bool) -> (Table, Rings) {
    let ways: BTreeSet<Way> =
        [way("10.0.0.1", RoceVersion::V1), way("10.0.0.1", RoceVersion::V2), way("fd00::1", RoceVersion::V2)]
            .into();
    let program =
        ProgramView { client: ClientId(1), slots: vec![SLOT], ways: ways.clone(), v2: false, relayed };
    let port = PortView { ifindex: TAP, mac: None, mtu: 1500, vlan: None, loopback: false };
    let mut table = Table::new(Arc::new(Ports::new(true)));
    let view = View { ports: vec![port], ways, programs: vec![program], relays: Vec::new(), epoch: 0 };
    table.follow(view, |_, _| Err(io::ErrorKind::Unsupported.into()));
    let (rings, memory) = Rings::create().unwrap();
    table.programs.get_mut(&ClientId(1)).unwrap().open = Some(open(rings));
    (table, Rings::join(&memory).unwrap())
}

fn open(rings: Rings) -> Open {
    let (bell, heard) = ferroce_ipc::packet::pair().unwrap();
    Open { rings, bell: Guarded::new(bell.into()), heard: Arc::new(Guarded::new(heard.into())) }
}

fn frame(to_mac: [u8; 6], to: &str, version: RoceVersion, dest_qp: u32) -> Vec<u8> {
    let source: IpAddr =
        if to.contains(':') { "fd00::2".parse().unwrap() } else { "10.0.0.2".parse().unwrap() };
    let flow = Flow {
        source,
        destination: to.parse().unwrap(),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer { version, sl: 0, ifindex: 0 },
    };
    let mut transport = [0; 24];
    transport[4..8].copy_from_slice(&dest_qp.to_be_bytes());
    let mut packet = vec![0; 128];
    let len = ferroce_wire::Frame::new(None, &flow, 0, &transport).emit(&mut packet).unwrap();
    let ethertype = match (version, source) {
        (RoceVersion::V1, _) => ETHERTYPE_ROCE,
        (_, IpAddr::V4(_)) => ETHERTYPE_IPV4,
        (_, IpAddr::V6(_)) => ETHERTYPE_IPV6,
    };
    [&to_mac[..], &[2; 6], &ethertype.to_be_bytes(), &packet[..len]].concat()
}

/// The packets that the program finds in its ring.
fn received(table: &mut Table, program: &mut Rings) -> usize {
    let open = table.programs.get_mut(&ClientId(1)).unwrap().open.as_mut().unwrap();
    open.rings.tx.publish().unwrap();
    let mut buffer = [0; MAX_PACKET];
    std::iter::from_fn(|| program.rx.pop(&mut buffer).unwrap())
        .filter(|popped| popped.link.ifindex == TAP)
        .count()
}

#[test]
fn packets_of_programs_go_into_rings_and_the_rest_to_the_kernel() {
    use RoceVersion::{V1, V2};
    let (mut table, mut program) = table(false);
    let mine = u32::from(SLOT) << 12 | 5;
    for (what, frame, taken, rings) in [
        ("v2 over IPv4", frame(MAC, "10.0.0.1", V2, mine), true, 1),
        ("v2 over IPv6", frame(MAC, "fd00::1", V2, mine), true, 1),
        ("v1", frame(MAC, "10.0.0.1", V1, mine), true, 1),
        ("queue pair 1 of v2, which has a socket", frame(MAC, "10.0.0.1", V2, 1), false, 0),
        ("queue pair 1 of v1", frame(MAC, "10.0.0.1", V1, 1), true, 0),
        ("a slot that nobody has", frame(MAC, "10.0.0.1", V2, 0x40_0005), false, 0),
        ("an address of another host", frame(MAC, "10.0.0.9", V2, mine), false, 0),
        ("the same in v1", frame(MAC, "10.0.0.9", V1, mine), true, 0),
        ("another hardware address", frame([4; 6], "10.0.0.1", V2, mine), false, 0),
        ("the same in v1", frame([4; 6], "10.0.0.1", V1, mine), true, 0),
        ("ARP", [&[0xff; 6][..], &[2; 6], &[8, 6], &[0; 28]].concat(), false, 0),
        ("a short one", vec![0xff; 13], false, 0),
        ("an empty one", Vec::new(), false, 0),
    ] {
        assert_eq!(table.take_from_dpdk(TAP, MAC, &frame), taken, "{what}");
        assert_eq!(received(&mut table, &mut program), rings, "{what}");
    }
    assert_eq!(table.gsi.len(), 1);
}

#[test]
fn programs_without_rings_have_sockets() {
    let frame = frame(MAC, "10.0.0.1", RoceVersion::V2, u32::from(SLOT) << 12 | 5);
    for relayed in [false, true] {
        let (mut table, _program) = table(relayed);
        assert!(table.take_from_dpdk(TAP, MAC, &frame), "{relayed}");
        table.programs.get_mut(&ClientId(1)).unwrap().open = None;
        assert!(!table.take_from_dpdk(TAP, MAC, &frame), "without rings");
    }
}

#[test]
fn the_last_packets_of_a_program_reach_their_receiver_though_its_interface_is_served_no_more() {
    let (mut table, mut receiver) = table(false);
    let both: BTreeSet<Way> = ["10.0.0.1", "10.0.0.2"].map(|address| way(address, RoceVersion::V1)).into();
    let stays = table.programs[&ClientId(1)].view.clone();
    let ends = ProgramView { client: ClientId(2), slots: vec![0x40], ways: both.clone(), ..stays.clone() };
    let port = table.ports[&TAP].view.clone();
    let programs = vec![stays.clone(), ends];
    let socket = |_, _| Err(io::ErrorKind::Unsupported.into());
    table.follow(View { ports: vec![port], ways: both, programs, ..View::default() }, socket);
    let (rings, memory) = Rings::create().unwrap();
    table.programs.get_mut(&ClientId(2)).unwrap().open = Some(open(rings));
    let mut sender = Rings::join(&memory).unwrap();
    let frame = frame(MAC, "10.0.0.1", RoceVersion::V1, u32::from(SLOT) << 12 | 5);
    let (header, transport) = frame[14..].split_at(40);
    sender.tx.push(LinkLayer { version: RoceVersion::V1, sl: 0, ifindex: TAP }, header, transport).unwrap();
    sender.tx.publish().unwrap();

    table.follow(View { programs: vec![stays], ..View::default() }, socket);
    assert_eq!(received(&mut table, &mut receiver), 1, "{:?}", table.drops.take());
}
