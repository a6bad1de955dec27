//! A hostile program of another user at a broker of all users: it reaches nothing of the others, and its forged packets are counted.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::eventually;
use ferroce_ipc::ring::Rings;
use ferroce_ipc::{BROKER_NAME, Client, ClientError, LinkKind, Message, RefusalCode, doorbell};
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
    let maps_users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default().contains("4294967295");
    let may = Command::new("unshare").args(["-n", "true"]).stderr(Stdio::null()).status();
    if !nix::unistd::geteuid().is_root() || !maps_users || !may.is_ok_and(|status| status.success()) {
        println!("skipped {NAME}: it needs root, and the right to make a network namespace");
        return;
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-system-{}", std::process::id()));
    std::fs::create_dir_all(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut inside = Command::new("unshare");
    inside
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap());
    inside.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("FERROCE_TEST_ROLE", "inside");
    let status = inside.env("FERROCE_RUNTIME_DIR", &runtime).status().unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

fn inside() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroced"));
    let mut broker = command.args(["--system", "--mode", "0666"]).env("FERROCE_LOG", "warn").spawn().unwrap();
    let mut own = None;
    eventually("the broker answers", || {
        own = Client::connect(BROKER_NAME, "", PATIENCE).ok();
        own.is_some()
    });
    let mut own = own.unwrap();
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

    let (bell, far) = ferroce_ipc::packet::pair().unwrap();
    let open = Message::OpenRings { v2: false };
    let (_, mut memory) = client.request_with(&open, &[far.as_fd()], PATIENCE).unwrap();
    let mut rings = Rings::join(&memory.pop().unwrap()).unwrap();
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
    doorbell::ring(&bell);
    let sum = |client: &mut Client| -> u64 { COUNTERS.iter().map(|name| count(client, name)).sum() };
    eventually("all are counted", || sum(&mut client) >= FORGED.iter().sum());
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
