use std::net::UdpSocket;

use ferroce_ipc::{GidType, LinkSettings, Origin, PhysState};
use ferroce_wire::{
    BatchLimits, Bth, Deth, Flow, Gid, IcrcStatus, LinkLayer, Operation, Packet, Psn, Qkey, Qpn, TxBatch,
    UdPacket,
};

use super::*;

const SLOT: u16 = 7 * 16;

/// A datagram to a queue pair that is not there.
fn datagram(from: &UdpSocket, to: IpAddr) -> Vec<u8> {
    let flow = Flow {
        source: from.local_addr().unwrap().ip(),
        destination: to,
        source_port: from.local_addr().unwrap().port(),
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::UDP,
    };
    let deth = Deth { qkey: Qkey::new(1), src_qp: Qpn::new(2) };
    let head = Packet {
        bth: Bth::new(Qpn::new(u32::from(SLOT) << 12 | 5), Psn::new(0)),
        op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
        icrc: IcrcStatus::Pending,
    };
    let mut octets = [0; 256];
    let mut batch = TxBatch::new(&mut octets, BatchLimits { max_segments: 1, gso: false });
    let fill = |to: &mut [u8]| {
        to.fill(7);
        Ok::<(), std::convert::Infallible>(())
    };
    batch.push(&flow, &head, 32, fill).unwrap();
    batch.bytes().to_vec()
}

fn device(local: IpAddr, crc: bool) -> DeviceInfo {
    DeviceInfo {
        id: 0,
        name: "fr0".to_owned(),
        dev_name: "uverbs0".to_owned(),
        node_guid: [1; 8],
        netdev: "lo".to_owned(),
        ifindex: 1,
        mtu: 65_536,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Default,
        kind: Default::default(),
        gids: vec![GidEntry { index: 0, gid: Gid::from_ip(local), gid_type: GidType::RoceV2, ifindex: 1 }],
        settings: LinkSettings { crc, ..LinkSettings::default() },
        macs: Default::default(),
    }
}

#[test]
fn an_icrc_counts_unless_somebody_said_otherwise() {
    let (hub, _) = Hub::new(&[SLOT], false, 1, Arc::default()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let lane = Lane::new(0, 0, RxSocket::from_fd(socket.into()).unwrap(), Arc::new(hub));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = datagram(&sender, to.ip());
    let mut bad = good.clone();
    bad[30] ^= 1;
    let other = "127.0.0.9".parse().unwrap();
    let (mut wrong, mut taken) = (0, 0);
    for (devices, bytes, counts) in [
        (vec![device(to.ip(), true)], &good, true),
        (vec![device(to.ip(), true)], &bad, false),
        (vec![device(to.ip(), false)], &bad, true),
        (vec![device(to.ip(), false)], &good, true),
        (vec![device(other, false)], &bad, false),
        (vec![device(other, false), device(to.ip(), true)], &bad, false),
        (vec![], &bad, false),
    ] {
        lane.follow_settings(&devices);
        sender.send_to(bytes, to).unwrap();
        assert_eq!(lane.serve_inline(), Served::Some);
        *(if counts { &mut taken } else { &mut wrong }) += 1;
        let counters = lane.counters();
        let now = (&counters.rx_icrc_errors, &counters.rx_no_qp);
        assert_eq!((now.0.load(Ordering::Relaxed), now.1.load(Ordering::Relaxed)), (wrong, taken));
    }
}
