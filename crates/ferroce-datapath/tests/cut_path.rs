//! Segments on the wire: frames on a veth whose sender must split batches itself, as for a network card. Over lo, and
//! over a veth with its offloads on, a batch is never split, so the test makes network namespaces.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ferroce_datapath::udp::{Group, MAX_BATCH, RECEIVE_BUFFER, RxBuffer, RxSocket, Sent, TxSocket};
use ferroce_wire::{
    BatchLimits, Bth, Encapsulation, Flow, Frame, IcrcStatus, IpHeader, Operation, Packet, Pkey, Psn, Qpn,
    RcPacket, Request, Sink, TxBatch,
};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, gettid};
use socket2::{Domain, Protocol, Socket, Type};

const SLOT: u8 = 3;

/// Batches to send: number of packets, payload of each, whether the kernel splits.
const BATCHES: &[(u32, usize, bool)] =
    &[(1, 4096, true), (15, 4096, true), (62, 1024, true), (64, 0, true), (10, 1024, false), (2, 256, true)];

#[test]
fn frames_leave_as_they_were_sealed_and_arrive_merged() {
    if let Some(reason) = skip() {
        eprintln!("skipped: {reason}");
        return;
    }
    let (to_sender, from_receiver) = channel();
    let (to_receiver, from_sender) = channel();
    let receiver = std::thread::spawn(move || receive(&to_sender, &from_sender));
    let sender = std::thread::spawn(move || send(&to_receiver, &from_receiver));
    receiver.join().unwrap();
    sender.join().unwrap();
}

fn skip() -> Option<&'static str> {
    let have = |name: &str| Command::new(name).arg("--version").output().is_ok();
    if !Uid::effective().is_root() {
        Some("capturing and making network namespaces needs root")
    } else if !have("ip") || !have("ethtool") {
        Some("ip or ethtool is not installed")
    } else {
        None
    }
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "{command}");
}

/// IPv4, IPv6, and link-local IPv6, which is complete only with the interface.
fn addresses(last: u8) -> [IpAddr; 3] {
    let v6 = |prefix: &str| format!("{prefix}::{last}").parse().unwrap();
    [IpAddr::from([198, 18, 0, last]), v6("fd00:18"), v6("fe80")]
}

/// The interface's index if the address needs it.
fn scope_id(ip: IpAddr, name: &str) -> u32 {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => if_nametoindex(name).unwrap(),
        _ => 0,
    }
}

/// Moves this thread into a new namespace and sets up its end of the link.
fn enter(name: &str, last: u8, make_link: impl FnOnce()) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    make_link();
    let [v4, v6, link_local] = addresses(last);
    run(&format!("ip addr add {v4}/24 dev {name}"));
    run(&format!("ip addr add {v6}/64 dev {name} nodad"));
    run(&format!("ip addr add {link_local}/64 dev {name} nodad"));
    run(&format!("ip link set {name} mtu 9000 up"));
}

/// Signals: the receiver sends its thread's id, then that it is ready, then that it has received all.
fn send(to_receiver: &Sender<()>, from_receiver: &Receiver<i32>) {
    enter("va", 1, || {
        let peer = from_receiver.recv().unwrap();
        run("ip link add va type veth peer name vb");
        run(&format!("ip link set vb netns {peer}"));
        run("ethtool -K va tso off gso off tx-udp-segmentation off");
    });
    // On the sending end, because at the other one merging precedes capturing.
    let every_protocol = Protocol::from(i32::from(3_u16.to_be()));
    let capture = Socket::new(Domain::PACKET, Type::RAW, Some(every_protocol)).unwrap();
    capture.set_recv_buffer_size(16 << 20).unwrap();
    capture.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    to_receiver.send(()).unwrap();
    from_receiver.recv().unwrap();

    for (source, destination) in addresses(1).into_iter().zip(addresses(2)) {
        let socket = TxSocket::bind(source, scope_id(source, "va"), 0xC042).unwrap();
        let flow = Flow {
            source,
            destination,
            source_port: socket.port(),
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        };
        let mut buffer = vec![0; MAX_BATCH];
        let mut next_psn = 0;
        for &(count, len, gso) in BATCHES {
            let mut batch = TxBatch::new(&mut buffer, BatchLimits { gso, ..socket.limits() });
            for psn in next_psn..next_psn + count {
                let fill = |payload: &mut [u8]| {
                    payload.fill(psn as u8);
                    Ok::<_, ()>(())
                };
                batch.push(&flow, &head(psn), len, fill).unwrap();
            }
            assert_eq!(
                socket.send(&mut batch).unwrap(),
                Sent { sent: count as usize, lost: 0, reason: None }
            );
            for (index, segment) in (0..count as u16).zip(batch.segments()) {
                let id = if gso { index } else { 0 };
                look_at_next_frame(&capture, flow, id, segment);
            }
            next_psn += count;
        }
        assert!(socket.limits().gso, "the kernel cuts where the interface does not");
    }
    // The link lives as long as this namespace, which lives as long as this thread.
    from_receiver.recv().unwrap();
}

/// The next RoCE frame must be this segment with this IPv4 identification.
fn look_at_next_frame(mut capture: &Socket, flow: Flow, id: u16, segment: &[u8]) {
    let mut bytes = vec![0; 65_536];
    let (frame, ip, udp) = loop {
        let n = capture.read(&mut bytes).expect("a frame");
        // Neighbour resolution sends frames at the same time.
        if let Ok(frame) = Frame::parse(&bytes[..n]) {
            let Encapsulation::V2 { ip, udp } = frame.encapsulation else { panic!("{frame:?}") };
            break (Frame::parse(&bytes[..n]).unwrap(), ip, udp);
        }
    };
    assert_eq!(frame.transport, segment);
    assert_eq!(udp.source_port.get(), flow.source_port);
    assert_ne!(udp.checksum.get(), 0);
    if let IpHeader::V4(ip) = ip {
        assert_eq!((ip.id.get(), ip.fragment.get()), (id, 0x4000));
    }
    assert!(frame.icrc_holds(), "segment {id} of {flow:?}");
}

fn head(psn: u32) -> Packet<'static> {
    Packet {
        bth: Bth {
            solicited: false,
            mig_req: true,
            pkey: Pkey::new(0xffff),
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(u32::from(SLOT) << 16 | 7),
            ack_req: false,
            extended: false,
            psn: Psn::new(psn),
        },
        op: Operation::Rc(RcPacket::Request(Request::SendMiddle { payload: &[] })),
        icrc: IcrcStatus::Pending,
    }
}

fn receive(to_sender: &Sender<i32>, from_sender: &Receiver<()>) {
    enter("vb", 2, || {
        to_sender.send(gettid().as_raw()).unwrap();
        from_sender.recv().unwrap();
        // A veth polls, and so merges, only with GRO on.
        run("ethtool -K vb gro on");
    });
    let groups = addresses(2).map(|ip| {
        let mut group = Group::open(ip, scope_id(ip, "vb")).unwrap();
        let slots = (1..=SLOT).map(|slot| {
            let member = group.add_member().unwrap();
            group.lease(slot, RECEIVE_BUFFER).unwrap();
            RxSocket::from_fd(member).unwrap()
        });
        let slots: Vec<_> = slots.collect();
        // Kept open, or its members would be renumbered.
        (group, slots)
    });
    to_sender.send(0).unwrap();

    let want: u32 = BATCHES.iter().map(|&(count, ..)| count).sum();
    let mut received = [const { Vec::new() }; 3];
    let mut merged = 0;
    let mut buffer = RxBuffer::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while received.iter().any(|received| received.len() < want as usize) && Instant::now() < deadline {
        for ((_, slots), received) in groups.iter().zip(&mut received) {
            for (slot, socket) in (1..).zip(slots) {
                socket.recv(&mut buffer).unwrap();
                for datagram in buffer.datagrams() {
                    assert_eq!(slot, SLOT, "a stray datagram");
                    merged += u32::from(datagram.gro);
                    received.push(Packet::parse(datagram.bytes).unwrap().bth.psn.value());
                }
            }
        }
    }
    to_sender.send(0).unwrap();
    let in_order: Vec<_> = (0..want).collect();
    assert!(received.iter().all(|received| *received == in_order), "{received:?}");
    println!("{merged} of {} datagrams arrived merged", 3 * want);
    assert!(merged > 2 * want, "the kernel here merges what was cut there");
}
