//! A hostile program of another user at a broker of all users: it reaches nothing of the others, and its forged packets are counted.

mod common;

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::eventually;
use ferroce_datapath::udp::{RxBuffer, RxSocket};
use ferroce_ipc::ring::Rings;
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, CmBind, CmRequest, LinkKind, Message, RefusalCode, doorbell,
    packet as packets,
};
use ferroce_wire::cm::PortSpace;
use ferroce_wire::{Flow, LinkLayer, Qpn, RoceVersion};

const NAME: &str = "a_hostile_user_reaches_nothing_of_the_others";
const PATIENCE: Duration = Duration::from_secs(30);
const HOSTILE: &str = "65534";
/// The counters of packets that a program may not send, and how often the hostile program tries.
const COUNTERS: [&str; 4] =
    ["frame_forged_source", "frame_forbidden_qp", "frame_no_interface", "frame_malformed"];
const FORGED: [u64; 4] = [2, 3, 1, 1];

/// `unshare -n` runs this test again, and the hostile program is this test once more.
#[test]
fn a_hostile_user_reaches_nothing_of_the_others() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => return inside(),
        Ok(slot) => return hostile(slot.parse().unwrap()),
        Err(_) => {}
    }
    outside(NAME);
}

/// Runs a test again in a network namespace, as root.
fn outside(name: &str) {
    let maps_users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default().contains("4294967295");
    let may = Command::new("unshare").args(["-n", "true"]).stderr(Stdio::null()).status();
    if !nix::unistd::geteuid().is_root() || !maps_users || !may.is_ok_and(|status| status.success()) {
        println!("skipped {name}: it needs root, and the right to make a network namespace");
        return;
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-system-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut inside = Command::new("unshare");
    inside
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap());
    inside.args(["--exact", name, "--nocapture", "--test-threads=1"]).env("FERROCE_TEST_ROLE", "inside");
    let status = inside.env("FERROCE_RUNTIME_DIR", &runtime).status().unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

/// A broker of all users, and a client of root's.
fn broker() -> (Child, Client) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroced"));
    let broker = command.args(["--system", "--mode", "0666"]).env("FERROCE_LOG", "warn").spawn().unwrap();
    let mut own = None;
    eventually("the broker answers", || {
        own = Client::connect(BROKER_NAME, "", PATIENCE).ok();
        own.is_some()
    });
    (broker, own.unwrap())
}

fn inside() {
    let (mut broker, mut own) = broker();
    let (Message::Leased(leased), _) = own.request(&Message::Lease(1), PATIENCE).unwrap() else {
        panic!("no lease")
    };
    assert!(!leased.by_rings);
    for _ in 0..leased.addresses {
        own.more(PATIENCE).unwrap();
    }
    let before = COUNTERS.map(|name| count(&mut own, name));
    let mut hostile = Command::new("setpriv");
    hostile.args(["--reuid", HOSTILE, "--regid", HOSTILE, "--clear-groups", "--no-new-privs"]);
    hostile.arg(std::env::current_exe().unwrap()).args(["--exact", NAME, "--nocapture"]);
    hostile.env("FERROCE_TEST_ROLE", leased.slots[0].to_string());
    let said = hostile.output().unwrap();
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success(), "the hostile program: {}\n{text}", said.status);
    for ((name, want), before) in COUNTERS.iter().zip(FORGED).zip(before) {
        assert_eq!(count(&mut own, name).wrapping_sub(before), want, "{name}");
    }
    broker.kill().unwrap();
    broker.wait().unwrap();
}

fn count(client: &mut Client, name: &str) -> u64 {
    let (answer, _) = client.request(&Message::GetStatistics("fr0".to_owned()), PATIENCE).unwrap();
    let Message::Statistics(counters) = answer else { panic!("{answer:?}") };
    counters.iter().find(|(known, _)| known == name).unwrap().1
}

/// `victim` is a slot of the broker's own user.
fn hostile(victim: u16) {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    let (Message::Leased(leased), descriptors) = client.request(&Message::Lease(1), PATIENCE).unwrap() else {
        panic!("no lease")
    };
    assert!(leased.by_rings && leased.addresses == 0 && descriptors.is_empty(), "{leased:?}");
    let null = std::fs::File::open("/dev/null").unwrap();
    let add = Message::LinkAdd {
        name: "fr9".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "lo".to_owned(),
        transient: true,
    };
    for (message, code) in [
        (Message::Release(vec![victim]), RefusalCode::BadRequest),
        (Message::ResumeByRings(vec![victim]), RefusalCode::Failed),
        (Message::OpenPipe(victim), RefusalCode::WrongState),
        (Message::Stop { force: true }, RefusalCode::Permission),
        (add, RefusalCode::Permission),
    ] {
        refused(client.request(&message, PATIENCE), code, &message);
    }
    let resume = Message::Resume(vec![victim]);
    refused(client.request_with(&resume, &[null.as_fd()], PATIENCE), RefusalCode::BadRequest, &resume);
    let (Message::Status(status), _) = client.request(&Message::GetStatus, PATIENCE).unwrap() else {
        panic!("no status")
    };
    assert_eq!(status.programs.len(), 1, "its own program and no other: {:?}", status.programs);

    let (_woken, far) = ferroce_ipc::packet::pair().unwrap();
    let open = Message::OpenRings { v2: false };
    let (_, given) = client.request_with(&open, &[far.as_fd()], PATIENCE).unwrap();
    let [memory, bell] = &given[..] else { panic!("{given:?}") };
    let mut rings = Rings::join(memory).unwrap();
    let victim = Qpn::new(u32::from(victim) << 12 | 0x11);
    let (here, elsewhere) = ([127, 0, 0, 1], [192, 0, 2, 1]);
    for (ifindex, packet) in [
        (1, packet(elsewhere, 4, victim, victim)),
        // An address of the host, by an interface that does not have it.
        (1, packet([127, 0, 0, 9], 4, victim, victim)),
        (1, packet(here, 4, Qpn::new(0), victim)),
        (1, packet(here, 0x64, Qpn::GSI, victim)),
        // A datagram in the name of the other user's queue pair.
        (1, packet(here, 0x64, victim, victim)),
        (99, packet(here, 4, victim, victim)),
        (1, vec![0x45; 40]),
    ] {
        rings.tx.push(LinkLayer { version: RoceVersion::V2, sl: 0, ifindex }, &packet, &[]).unwrap();
    }
    rings.tx.publish().unwrap();
    doorbell::ring(bell);
    let sum = |client: &mut Client| -> u64 { COUNTERS.iter().map(|name| count(client, name)).sum() };
    eventually("all are counted", || sum(&mut client) >= FORGED.iter().sum());
    std::process::exit(0);
}

const ARRIVED: &str = "packets_of_another_user_have_arrived_when_the_broker_answers";
/// Packets of the other user.
const SENT: usize = 20;

/// The broker sends them to sockets of root's program. Nobody rings a doorbell: the broker looks because it
/// is asked.
#[test]
fn packets_of_another_user_have_arrived_when_the_broker_answers() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok(slot) => return send_without_a_bell(slot.parse().unwrap()),
        Err(_) => return outside(ARRIVED),
    }
    let (mut broker, mut own) = broker();
    let (Message::Leased(leased), _) = own.request(&Message::Lease(1), PATIENCE).unwrap() else {
        panic!("no lease")
    };
    let mut sockets = Vec::new();
    for _ in 0..leased.addresses {
        let (Message::Address(address), given) = own.more(PATIENCE).unwrap() else { panic!("no address") };
        if address.ip == Ipv4Addr::LOCALHOST {
            sockets.extend(given.into_iter().map(|fd| RxSocket::from_fd(fd).unwrap()));
        }
    }
    let mut sender = Command::new("setpriv");
    sender.args(["--reuid", HOSTILE, "--regid", HOSTILE, "--clear-groups", "--no-new-privs"]);
    sender.arg(std::env::current_exe().unwrap()).args(["--exact", ARRIVED, "--nocapture"]);
    sender.env("FERROCE_TEST_ROLE", leased.slots[0].to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sender = sender.spawn().unwrap();
    let mut lines = BufReader::new(sender.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "sent"), "the other program failed, see above");
    let (answer, _) = own.request(&Message::SettleRings, PATIENCE).unwrap();
    assert_eq!(answer, Message::Done);
    let (mut buffer, mut received) = (RxBuffer::new(), 0);
    eventually("all packets arrive", || {
        received += sockets.iter().map(|socket| socket.recv(&mut buffer).unwrap()).sum::<usize>();
        received == SENT
    });
    drop(sender.stdin.take());
    assert!(sender.wait().unwrap().success());
    broker.kill().unwrap();
    broker.wait().unwrap();
}

/// The sender's program, which ends with its input.
fn send_without_a_bell(to: u16) {
    let mut client = leased();
    let (_woken, far) = ferroce_ipc::packet::pair().unwrap();
    let open = Message::OpenRings { v2: false };
    let (_, given) = client.request_with(&open, &[far.as_fd()], PATIENCE).unwrap();
    let mut rings = Rings::join(&given[0]).unwrap();
    let to = Qpn::new(u32::from(to) << 12 | 0x11);
    for _ in 0..SENT {
        let link = LinkLayer { version: RoceVersion::V2, sl: 0, ifindex: 1 };
        rings.tx.push(link, &packet([127, 0, 0, 1], 4, to, to), &[]).unwrap();
    }
    rings.tx.publish().unwrap();
    println!("\nsent");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    std::process::exit(0);
}

fn refused(answer: Result<(Message, Vec<OwnedFd>), ClientError>, code: RefusalCode, message: &Message) {
    match answer {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, code, "{message:?}: {refusal}"),
        other => panic!("{message:?}: {other:?}"),
    }
}

/// A packet of RoCE v2 to 127.0.0.1, from the IP header on.
fn packet(from: [u8; 4], opcode: u8, dest_qp: Qpn, source_qp: Qpn) -> Vec<u8> {
    let mut transport = [0; 40];
    transport[0] = opcode;
    transport[5..8].copy_from_slice(&dest_qp.value().to_be_bytes()[1..]);
    transport[17..20].copy_from_slice(&source_qp.value().to_be_bytes()[1..]);
    let flow = Flow {
        source: from.into(),
        destination: [127, 0, 0, 1].into(),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::default(),
    };
    let mut headers = [0; 48];
    let len = flow.write_headers(0, transport.len(), &mut headers);
    [&headers[..len], &transport].concat()
}

const LOW: &str = "low_ports_are_for_the_process_that_has_the_right_and_asks";

/// A program without the right connects, starts a child, and executes a program that has the right: the child asks.
#[test]
#[allow(clippy::zombie_processes, reason = "the parent becomes another program")]
fn low_ports_are_for_the_process_that_has_the_right_and_asks() {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok("child") => ask_as_child(),
        Ok("plain") => return println!("\nport 111: {}", bind_low(&mut leased())),
        Ok(program) => {
            let mut client = leased();
            println!("\nport 111: {}", bind_low(&mut client));
            let connection = client.as_fd().try_clone_to_owned().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", LOW, "--nocapture"]).env("FERROCE_TEST_ROLE", "child").stdin(connection);
            child.spawn().unwrap();
            panic!("{}", Command::new(program).arg("1000").exec());
        }
        Err(_) => return outside(LOW),
    }
    let (mut broker, mut own) = broker();
    own.request(&Message::Lease(1), PATIENCE).unwrap();
    assert_eq!(bind_low(&mut own), "bound");
    own.request(&Message::Cm(CmRequest::Unbind { handle: 111 }), PATIENCE).unwrap();
    let folder =
        std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap()).with_extension("bin");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("low-setuid", 0o4755), ("low-filecaps", 0o755)] {
        let program = folder.join(name);
        std::fs::copy("/bin/sleep", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    // A `vfs_cap_data` of version 2: CAP_NET_BIND_SERVICE, permitted and in effect.
    let caps: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let flags = rustix::fs::XattrFlags::empty();
    let with_caps = rustix::fs::setxattr(folder.join("low-filecaps"), "security.capability", &caps, flags);
    if let Err(e) = &with_caps {
        println!("skipped in part: this file system keeps no capabilities: {e}");
    }
    let said = |program: &str, more: &[&str]| -> Vec<String> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", HOSTILE, "--regid", HOSTILE, "--clear-groups"]).args(more);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", LOW, "--nocapture"]);
        let mut run = command.env("FERROCE_TEST_ROLE", program).stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(run.stdout.take().unwrap()));
        let answers = lines.map_while(Result::ok).filter(|line| line.starts_with("port 111: "));
        let count = if program == "plain" { 1 } else { 2 };
        let answers: Vec<String> = answers.take(count).map(|line| line[10..].to_owned()).collect();
        let _ = run.kill();
        run.wait().unwrap();
        answers
    };
    for name in ["low-setuid", "low-filecaps"] {
        if name == "low-setuid" || with_caps.is_ok() {
            let program = folder.join(name).display().to_string();
            assert_eq!(said(&program, &[]), ["Permission", "Permission"], "{name}");
        }
    }
    let with_right = ["--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service"];
    assert_eq!(said("plain", &with_right), ["bound"]);
    broker.kill().unwrap();
    broker.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

fn leased() -> Client {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    client.request(&Message::Lease(1), PATIENCE).unwrap();
    client
}

fn low_bind() -> Message {
    Message::Cm(CmRequest::Bind(CmBind {
        handle: 111,
        space: PortSpace::Tcp,
        port: 111,
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        interface: 0,
        reuse: false,
        v6_only: false,
    }))
}

fn bind_low(client: &mut Client) -> String {
    match client.request(&low_bind(), PATIENCE) {
        Ok((Message::CmDone(_), _)) => "bound".to_owned(),
        Err(ClientError::Refused(refusal)) => format!("{:?}", refusal.code),
        other => panic!("{other:?}"),
    }
}

/// The connection is the standard input, and belongs to the parent, which has become another program.
fn ask_as_child() {
    let parent = format!("/proc/{}/comm", nix::unistd::getppid());
    eventually("the parent is another program", || {
        std::fs::read_to_string(&parent).is_ok_and(|name| name.starts_with("low-"))
    });
    let connection = std::io::stdin();
    packets::send(connection.as_fd(), &low_bind().encode(999).unwrap(), &[]).unwrap();
    let mut buffer = Vec::new();
    let answer = loop {
        match packets::recv(connection.as_fd(), &mut buffer) {
            Ok(packet) => match Message::decode(&buffer[..packet.unwrap().length], 0) {
                Ok((999, answer)) => break answer,
                _ => continue,
            },
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
        }
        let mut fds = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
    };
    match answer {
        Message::CmDone(_) => println!("\nport 111: bound"),
        Message::Refused(refusal) => println!("\nport 111: {:?}", refusal.code),
        other => panic!("{other:?}"),
    }
    std::process::exit(0);
}
