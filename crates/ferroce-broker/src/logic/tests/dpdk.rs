//! Links on devices of DPDK.

use ferroce_ipc::{DPDK_PREFIX, DatapathState};

use super::*;

fn add(name: &str, kind: LinkKind, devargs: &str, transient: bool) -> Message {
    Message::LinkAdd { name: name.to_owned(), kind, netdev: format!("{DPDK_PREFIX}{devargs}"), transient }
}

fn delete(name: &str, transient: bool) -> Message {
    Message::LinkDel { name: name.to_owned(), transient }
}

/// A broker whose host has `lo`, with a client.
fn bench() -> Bench {
    let mut bench = Bench::loopback();
    bench.system.port.borrow_mut().host = vec![netdev(1, &["127.0.0.1", "::1"])];
    bench.connect(1, 101);
    bench
}

fn answer(bench: &mut Bench, client: u64, message: Message) -> Result<(), Refusal> {
    match bench.say(client, message, vec![]).into_iter().find(|(id, ..)| *id == 5).unwrap().1 {
        Message::Refused(refusal) => Err(refusal),
        Message::Done => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn open(bench: &Bench) -> Vec<(String, String, bool)> {
    let port = bench.system.port.borrow();
    port.dpdk.iter().map(|(tap, (devargs, keep))| (tap.clone(), devargs.clone(), *keep)).collect()
}

fn port(tap: &str, devargs: &str, keep: bool) -> (String, String, bool) {
    (tap.to_owned(), devargs.to_owned(), keep)
}

#[test]
fn a_link_stands_on_the_tap_of_its_port() {
    let mut bench = bench();
    answer(&mut bench, 1, add("d0", LinkKind::Rxe, "net_null0,a=1", false)).unwrap();
    answer(&mut bench, 1, add("d1", LinkKind::Rxe, "0000:03:00.0", true)).unwrap();
    assert_eq!(
        open(&bench),
        [port("dpdk0", "net_null0,a=1", true), port("dpdk1", "0000:03:00.0", false)],
        "the tap of a transient link does not outlive the broker"
    );
    let devices = bench.devices(1);
    assert_eq!(names(&devices), ["d0", "d1", "fr0"]);
    assert_eq!(devices[0].netdev, "dpdk0");
    let states: Vec<DatapathState> = devices.iter().map(|device| device.datapath).collect();
    assert_eq!(states, [DatapathState::Dpdk, DatapathState::Dpdk, DatapathState::Udp]);
    let view = bench.broker.switch_view();
    assert!(view.ports.iter().any(|port| port.ifindex == 100), "also without programs: {view:?}");
    {
        let port = bench.system.port.borrow();
        let saved: Vec<_> =
            port.configured.iter().map(|link| (link.netdev.as_str(), link.dpdk.as_deref())).collect();
        assert_eq!(saved, [("dpdk0", Some("net_null0,a=1"))]);
    }
    answer(&mut bench, 1, delete("d0", false)).unwrap();
    answer(&mut bench, 1, delete("d1", true)).unwrap();
    assert_eq!(open(&bench), []);
    assert_eq!(names(&bench.devices(1)), ["fr0"]);
    assert!(bench.system.port.borrow().configured.is_empty());
    answer(&mut bench, 1, add("d2", LinkKind::Rxe, "net_null0", false)).unwrap();
    assert_eq!(open(&bench), [port("dpdk0", "net_null0", true)], "the name is free again");
}

#[test]
fn refusals_leave_no_port() {
    let mut bench = bench();
    answer(&mut bench, 1, add("d0", LinkKind::Rxe, "net_null0", false)).unwrap();
    let before = open(&bench);
    for (message, code) in [
        (add("d1", LinkKind::Rxe, "net_null0,other=1", false), RefusalCode::Exists),
        (add("d0", LinkKind::Rxe, "net_null1", false), RefusalCode::Exists),
        (add("fr0", LinkKind::Rxe, "net_null1", false), RefusalCode::Exists),
        (add("d1", LinkKind::Siw, "net_null1", false), RefusalCode::BadRequest),
    ] {
        let what = format!("{message:?}");
        assert_eq!(answer(&mut bench, 1, message).unwrap_err().code, code, "{what}");
        assert_eq!(open(&bench), before, "{what}");
    }
    bench.system.port.borrow_mut().disk_full = true;
    let full = answer(&mut bench, 1, add("d1", LinkKind::Rxe, "net_null1", false)).unwrap_err();
    assert!(full.sentence.contains("--no-persist"), "{}", full.sentence);
    assert_eq!(open(&bench), before, "the port is closed again");
    bench.system.port.borrow_mut().disk_full = false;
    bench.system.port.borrow_mut().no_dpdk = true;
    let none = answer(&mut bench, 1, add("d1", LinkKind::Rxe, "net_null1", false)).unwrap_err();
    assert_eq!((none.code, none.sentence.as_str()), (RefusalCode::Failed, "no such device"));
    assert_eq!(names(&bench.devices(1)), ["d0", "fr0"]);
}

#[test]
fn the_next_broker_opens_the_port_again() {
    let mut bench = bench();
    answer(&mut bench, 1, add("d0", LinkKind::Rxe, "net_null0", false)).unwrap();
    let rename = Message::LinkRename { name: "d0".to_owned(), to: "left".to_owned(), transient: false };
    answer(&mut bench, 1, rename).unwrap();
    bench.system.port.borrow_mut().dpdk.clear();
    bench.dies();
    bench.connect(2, 102);
    assert_eq!(open(&bench), [port("dpdk0", "net_null0", true)]);
    let devices = bench.devices(2);
    assert_eq!(names(&devices), ["left", "fr0"]);
    assert_eq!(devices[0].datapath, DatapathState::Dpdk);
    // Put away, and there again with the next broker.
    answer(&mut bench, 2, delete("left", true)).unwrap();
    assert_eq!(open(&bench), []);
    bench.dies();
    bench.connect(4, 104);
    assert_eq!(open(&bench), [port("dpdk0", "net_null0", true)]);
    assert_eq!(names(&bench.devices(4)), ["left", "fr0"]);
    // Without its device the link waits.
    bench.system.port.borrow_mut().dpdk.clear();
    bench.system.port.borrow_mut().no_dpdk = true;
    bench.dies();
    bench.connect(3, 103);
    assert_eq!(open(&bench), []);
    answer(&mut bench, 3, delete("left", false)).unwrap();
    assert!(bench.system.port.borrow().configured.is_empty());
}
