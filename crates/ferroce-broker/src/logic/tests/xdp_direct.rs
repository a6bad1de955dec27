//! Ports of AF_XDP at the interface itself: who gets one.

use ferroce_ipc::{Datapath, DatapathState, Setting, XdpPorts};

use super::*;
use crate::privilege::{Right, Unprivileged};

/// `fr1` with AF_XDP on interface 2, at the broker of user `uid`. Client 1 holds no slots.
fn bench_of(uid: u32, ports: XdpPorts) -> Bench {
    let host = vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])];
    let system = Fake::default();
    let broker = Broker::new(system.clone(), uid, [2; 8], host);
    let mut bench = Bench { broker, system, now: Instant::now() };
    join(&mut bench, 1, uid, Hello::ours(""));
    let (name, netdev) = ("fr1".to_owned(), "eth0".to_owned());
    order(&mut bench, Message::LinkAdd { name, kind: LinkKind::Rxe, netdev, transient: false }).unwrap();
    order(&mut bench, set(Setting::Datapath(Datapath::Xdp))).unwrap();
    order(&mut bench, set(Setting::XdpPorts(ports))).unwrap();
    bench
}

fn bench() -> Bench {
    bench_of(UID, XdpPorts::Auto)
}

fn join(bench: &mut Bench, client: u64, uid: u32, hello: Hello) {
    let pid = client as u32 + 100;
    bench.broker.connected(ClientId(client), Peer { pid, uid }, ProcessId(pid.into()), true);
    bench.say(client, Message::Hello(hello), vec![]);
}

fn set(setting: Setting) -> Message {
    Message::LinkSet { name: "fr1".to_owned(), settings: vec![setting], transient: false, force: false }
}

fn order(bench: &mut Bench, message: Message) -> Result<(), Refusal> {
    let sent = bench.say(1, message, vec![]);
    match sent.into_iter().find(|(id, ..)| *id == 5).unwrap().1 {
        Message::Done => Ok(()),
        Message::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// A program of `uid` with a slot.
fn program(bench: &mut Bench, client: u64, uid: u32) {
    join(bench, client, uid, Hello::ours(""));
    bench.say(client, Message::Lease(1), vec![]);
    assert!(!bench.broker.leases.slots.of(ClientId(client)).is_empty());
}

/// The answer of the request of a program that was judged so: whether its port is direct.
fn open(bench: &mut Bench, client: u64, privilege: Result<(), Unprivileged>) -> Option<bool> {
    bench.broker.clients.judged(ClientId(client), Right::Frames, privilege);
    let sent = bench.say(client, Message::OpenXdp(2), vec![]);
    answer(sent)
}

fn answer(sent: Sent) -> Option<bool> {
    sent.into_iter().find_map(|(_, message, _)| match message {
        Message::Xdp { direct, .. } => Some(direct),
        Message::Refused(refusal) => panic!("{refusal}"),
        _ => None,
    })
}

fn counters(bench: &mut Bench) -> BTreeMap<String, u64> {
    let sent = bench.say(1, Message::GetStatistics("fr1".to_owned()), vec![]);
    let Message::Statistics(all) = &sent[0].1 else { panic!("{sent:?}") };
    let own =
        |name: &str| ["xdp_ports_", "xdp_direct_", "xdp_pair_"].iter().any(|start| name.starts_with(start));
    all.iter().filter(|(name, _)| own(name)).cloned().collect()
}

fn named(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn pairs(bench: &Bench) -> usize {
    bench.system.port.borrow().xdp.pairs.len()
}

#[test]
fn a_program_that_may_send_any_frame_gets_a_direct_port_and_others_a_pair() {
    let mut bench = bench();
    for client in 2..8 {
        program(&mut bench, client, UID);
    }
    let reasons = [
        Unprivileged::Unknown,
        Unprivileged::NoCapability,
        Unprivileged::UserNamespace,
        Unprivileged::Seccomp,
        Unprivileged::SetUser,
    ];
    for (client, why) in (3..).zip(reasons) {
        assert_eq!(open(&mut bench, client, Err(why)), Some(false), "{why:?}");
    }
    assert_eq!(pairs(&bench), 5);
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true));
    assert_eq!(pairs(&bench), 5, "and no pair");
    let want = [
        ("xdp_ports_direct", 1),
        ("xdp_direct_pid", 102),
        ("xdp_ports_pairs", 5),
        ("xdp_pair_unprivileged", 5),
    ];
    assert_eq!(counters(&mut bench), named(&want));
}

#[test]
fn a_judgement_is_of_one_request() {
    let mut bench = bench();
    program(&mut bench, 2, UID);
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true));
    // It has dropped the capability, and asks again.
    assert_eq!(open(&mut bench, 2, Err(Unprivileged::NoCapability)), Some(false));
    assert_eq!(counters(&mut bench)["xdp_ports_direct"], 0);
}

#[test]
fn a_program_that_was_never_judged_gets_a_pair() {
    let mut bench = bench();
    program(&mut bench, 2, UID);
    let sent = bench.say(2, Message::OpenXdp(2), vec![]);
    assert_eq!(answer(sent), Some(false));
    let want = [("xdp_ports_direct", 0), ("xdp_ports_pairs", 1), ("xdp_pair_unprivileged", 1)];
    assert_eq!(counters(&mut bench), named(&want));
}

#[test]
fn an_interface_has_one_direct_port_at_a_time() {
    let mut bench = bench();
    for client in 2..5 {
        program(&mut bench, client, UID);
    }
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true));
    assert_eq!(open(&mut bench, 3, Ok(())), Some(false));
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true), "in place of its own");
    bench.broker.died(bench.now, ProcessId(102));
    assert_eq!(open(&mut bench, 4, Ok(())), Some(true), "its end makes room");
    assert_eq!(counters(&mut bench)["xdp_pair_taken"], 1);
    assert!(!bench.system.port.borrow().xdp.slots.contains_key(&(2, 1)), "the slot of the first one is free");
}

#[test]
fn several_receive_queues_and_the_setting_make_pairs() {
    let mut bench = bench();
    program(&mut bench, 2, UID);
    bench.system.port.borrow_mut().xdp.queues = Some(4);
    assert_eq!(open(&mut bench, 2, Ok(())), Some(false));
    bench.system.port.borrow_mut().xdp.queues = None;
    order(&mut bench, set(Setting::XdpPorts(XdpPorts::Pairs))).unwrap();
    assert_eq!(open(&mut bench, 2, Ok(())), Some(false));
    let all = counters(&mut bench);
    assert_eq!((all["xdp_pair_queues"], all["xdp_pair_setting"]), (1, 1));
}

#[test]
fn only_a_broker_of_root_gives_direct_ports_by_the_setting_and_only_to_root() {
    let mut bench = bench_of(0, XdpPorts::Direct);
    bench.broker.serve_all_users();
    for (client, uid) in [(2, UID), (3, 0)] {
        join(&mut bench, client, uid, Hello::ours(""));
        bench.say(client, Message::Lease(1), vec![]);
    }
    assert_eq!(open(&mut bench, 2, Err(Unprivileged::NoCapability)), Some(false));
    assert_eq!(open(&mut bench, 3, Err(Unprivileged::NoCapability)), Some(true));

    let mut bench = self::bench();
    let refused = order(&mut bench, set(Setting::XdpPorts(XdpPorts::Direct))).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Permission);
    // The user wrote it into the file of the links.
    let mut configured = bench.system.port.borrow().configured.clone();
    configured[0].settings.xdp_ports = XdpPorts::Direct;
    let system = Fake::default();
    system.port.borrow_mut().configured = configured;
    let host = bench.broker.links.host.clone();
    let mut bench =
        Bench { broker: Broker::new(system.clone(), UID, [2; 8], host), system, now: Instant::now() };
    join(&mut bench, 1, UID, Hello::ours(""));
    program(&mut bench, 2, UID);
    let device = bench.devices(1).into_iter().find(|device| device.name == "fr1").unwrap();
    assert_eq!((device.settings.xdp_ports, device.datapath), (XdpPorts::Direct, DatapathState::XdpNative));
    assert_eq!(open(&mut bench, 2, Err(Unprivileged::NoCapability)), Some(false));
}

#[test]
fn a_queue_that_stays_busy_makes_a_pair() {
    let mut bench = bench();
    program(&mut bench, 2, UID);
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::EBUSY; 2];
    assert_eq!(open(&mut bench, 2, Ok(())), None, "the last socket may be about to close");
    assert_eq!(pairs(&bench), 0);
    let wait = |bench: &mut Bench| {
        let begun = bench.now;
        loop {
            let due = bench.broker.deadline().unwrap();
            bench.after(due - bench.now);
            if let Some(direct) = answer(bench.heard(2)) {
                assert!(bench.now - begun < Duration::from_secs(1));
                return direct;
            }
        }
    };
    assert!(wait(&mut bench), "it closed");

    // As many as there are attempts; the pair then opens.
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::EBUSY; 11];
    assert_eq!(open(&mut bench, 2, Ok(())), None);
    assert!(!wait(&mut bench));
    let all = counters(&mut bench);
    assert_eq!((all["xdp_pair_failed"], all["xdp_ports_pairs"], pairs(&bench)), (1, 1, 1));
    // At once, if waiting is of no use.
    bench.system.port.borrow_mut().xdp.open_errors = vec![libc::EINVAL];
    assert_eq!(open(&mut bench, 2, Ok(())), Some(false));
}

#[test]
fn the_end_of_the_interfaces_program_ends_a_direct_port() {
    let mut bench = bench();
    program(&mut bench, 2, UID);
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true));
    order(&mut bench, set(Setting::Datapath(Datapath::Udp))).unwrap();
    {
        let xdp = &bench.system.port.borrow().xdp;
        assert!(xdp.direct.is_empty() && xdp.slots.is_empty() && xdp.pairs.is_empty());
    }
    order(&mut bench, set(Setting::Datapath(Datapath::Xdp))).unwrap();
    assert_eq!(open(&mut bench, 2, Ok(())), Some(true));
    bench.say(2, Message::Release(Vec::new()), vec![]);
    assert!(bench.system.port.borrow().xdp.direct.is_empty(), "no slots, no port");
}
