//! Cost of a call on lo, which includes delivery when sending: `cargo bench -p ferroce-datapath --bench udp`.

use std::net::IpAddr;
use std::time::Instant;

use ferroce_datapath::udp::{Class, Group, MAX_BATCH, RECEIVE_BUFFER, RxBuffer, RxSocket, TxPorts};
use ferroce_wire::{
    BatchLimits, Bth, Flow, IcrcStatus, Operation, Packet, Pkey, Psn, Qpn, RcPacket, Request, Sink, TxBatch,
};

const ROUNDS: usize = 3_000;

fn main() {
    println!("median ns a call on lo");
    println!(
        "{:>5} {:>8} {:>6} {:>4} {:>8} {:>8} {:>8} {:>10}",
        "", "packets", "bytes", "gso", "send", "recv", "calls", "GB/s both"
    );
    for ip in [IpAddr::from([127, 98, 7, 6]), "::1".parse().unwrap()] {
        let mut group = match Group::open(ip, 0) {
            Ok(group) => group,
            Err(e) => {
                println!("{ip}: {e}");
                continue;
            }
        };
        let rx = RxSocket::from_fd(group.add_member().unwrap()).unwrap();
        group.lease(1, RECEIVE_BUFFER).unwrap();
        let tx = TxPorts::new(ip, 0, 1).get(ip, 1, 2, 3, Class::default()).unwrap();
        let flow = Flow {
            source: ip,
            destination: ip,
            source_port: tx.port(),
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        };
        tx.prefer_hop_limit(flow.hop_limit).unwrap();
        for (count, len, gso) in [
            (1, 8, true),
            (1, 1024, true),
            (1, 4096, true),
            (15, 4096, true),
            (15, 4096, false),
            (62, 1024, true),
            (62, 1024, false),
            (64, 8, true),
            (64, 8, false),
        ] {
            let mut memory = vec![0; MAX_BATCH];
            let mut batch = TxBatch::new(&mut memory, BatchLimits { gso, ..tx.limits() });
            for psn in 0..count {
                batch.push(&flow, &head(psn), len, |_| Ok::<_, ()>(())).unwrap();
            }
            let mut buffer = RxBuffer::new();
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            let mut calls = 0;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                assert_eq!(tx.send(&mut batch).unwrap().lost, 0);
                let sent = Instant::now();
                let mut got = 0;
                while got < count as usize {
                    got += rx.recv(&mut buffer).unwrap();
                    calls += 1;
                }
                receives.push(sent.elapsed().as_nanos() as u64);
                sends.push((sent - start).as_nanos() as u64);
            }
            let (send, recv) = (median(sends), median(receives));
            let rate = (count as usize * len) as f64 / (send + recv) as f64;
            println!(
                "{:>5} {count:>8} {len:>6} {:>4} {send:>8} {recv:>8} {:>8.1} {rate:>10.2}",
                if ip.is_ipv4() { "IPv4" } else { "IPv6" },
                if gso { "on" } else { "off" },
                f64::from(calls) / ROUNDS as f64,
            );
        }
        let start = Instant::now();
        let mut buffer = RxBuffer::new();
        for _ in 0..ROUNDS {
            assert_eq!(rx.recv(&mut buffer).unwrap(), 0);
        }
        println!("empty socket: {} ns", start.elapsed().as_nanos() / ROUNDS as u128);
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

fn head(psn: u32) -> Packet<'static> {
    Packet {
        bth: Bth {
            solicited: false,
            mig_req: true,
            pkey: Pkey::new(0xffff),
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(1 << 16 | 7),
            ack_req: false,
            extended: false,
            psn: Psn::new(psn),
        },
        op: Operation::Rc(RcPacket::Request(Request::SendMiddle { payload: &[] })),
        icrc: IcrcStatus::Pending,
    }
}
