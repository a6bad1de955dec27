//! Which device reaches an address: in a network namespace of the test's own, with `lo` and a veth.
#![allow(missing_docs, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::process::Command;

use ferroce_engine::cm::resolve::{ResolveError, Route, local, route};
use ferroce_wire::PathMtu;

const SCRIPT: &str = "
    ip link set lo up
    ip link add va type veth peer name vb && ip link set va up && ip link set vb up
    ip addr add 10.7.0.1/24 dev va && ip addr add 10.7.0.9/24 dev va
    ip addr add fe80::7:1/64 dev va nodad && ip addr add fd07::1/64 dev va nodad
    ip addr add 10.8.0.1/24 dev vb
    ip route add unreachable 198.51.100.0/24
    ip route add 192.0.2.0/24 via 10.7.0.3 mtu 590
    exec \"$0\" --exact \"$1\" --nocapture";

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// A route that the kernel gave is not requested again, until it changes.
#[test]
fn a_way_that_changes_is_seen_at_once() {
    if !in_namespace("a_way_that_changes_is_seen_at_once") {
        return;
    }
    let netdev = |destination: &str| to(destination).unwrap().local.device.netdev;
    for _ in 0..20 {
        assert_eq!(to("192.0.2.77:1").unwrap().mtu, PathMtu::B256);
        ip("route replace 192.0.2.0/24 via 10.7.0.3 mtu 700");
        assert_eq!(to("192.0.2.77:1").unwrap().mtu, PathMtu::B512);
        ip("route replace unreachable 192.0.2.0/24");
        assert_eq!(errno(to("192.0.2.77:1")), 113);
        ip("route replace 192.0.2.0/24 via 10.7.0.3 mtu 590");
    }
    assert_eq!(netdev("10.7.0.2:1"), "va");
    ip("rule add to 10.7.0.2 unreachable");
    assert_eq!(errno(to("10.7.0.2:1")), 101, "as Linux has it");
    ip("rule del to 10.7.0.2");
    assert_eq!(netdev("10.7.0.2:1"), "va");
    assert_eq!(from_to("10.7.0.9:0", "10.7.0.2:1").unwrap().source, "10.7.0.9:0".parse().unwrap());
    ip("addr del 10.7.0.9/24 dev va");
    assert!(matches!(from_to("10.7.0.9:0", "10.7.0.2:1"), Err(ResolveError::NotLocal(_))));
}

/// Runs the test of that name again inside. Whether this is that run.
fn in_namespace(test: &str) -> bool {
    if std::env::var_os("FERROCE_TEST_INSIDE").is_some() {
        ferroce_client::embed_with(ferroce_broker::start_embedded);
        return true;
    }
    let me = std::env::current_exe().unwrap();
    for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
        let unshare = |command: &[&str]| {
            let mut all = Command::new("unshare");
            all.args(flags).arg("--").args(command);
            all.env("FERROCE_TEST_INSIDE", "1").env("FERROCE_BROKER", "embedded").env("FERROCE_NETDEV", "va");
            all.status().is_ok_and(|status| status.success())
        };
        if unshare(&["ip", "link", "add", "v0", "type", "veth"]) {
            assert!(unshare(&["sh", "-ec", SCRIPT, &me.to_string_lossy(), test]), "{test} failed inside");
            return false;
        }
    }
    println!("skipped: no network namespace with a veth can be made here");
    false
}

/// Of an interface with an IPv6 address; sysfs would show those of the namespace outside.
fn index_of(netdev: &str) -> u32 {
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap();
    let line = table.lines().find(|line| line.ends_with(&format!(" {netdev}"))).unwrap();
    u32::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap()
}

fn to(destination: &str) -> Result<Route, ResolveError> {
    route(None, destination.parse().unwrap())
}

fn from_to(source: &str, destination: &str) -> Result<Route, ResolveError> {
    route(Some(source.parse().unwrap()), destination.parse().unwrap())
}

fn errno(result: Result<Route, ResolveError>) -> i32 {
    match result {
        Err(ResolveError::Unreachable { source, .. }) => source.raw_os_error().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_address_has_its_device() {
    if !in_namespace("each_address_has_its_device") {
        return;
    }
    let scope = index_of("va");
    let link_local = format!("[fe80::7:1%{scope}]:0");
    let neighbour = format!("[fe80::7:2%{scope}]:99");
    // Destination, netdev, source.
    for (destination, netdev, source) in [
        ("127.0.0.1:7174", "lo", "127.0.0.1:0"),
        ("127.3.2.1:7174", "lo", "127.0.0.1:0"),
        ("0.0.0.0:7174", "lo", "127.0.0.1:0"),
        ("[::1]:7174", "lo", "[::1]:0"),
        ("[::]:7174", "lo", "[::1]:0"),
        ("10.7.0.2:1", "va", "10.7.0.1:0"),
        ("192.0.2.77:1", "va", "10.7.0.1:0"),
        // Its own address: the way is over lo, the device is that of the address.
        ("10.7.0.1:1", "va", "10.7.0.1:0"),
        ("10.7.0.9:1", "va", "10.7.0.1:0"),
        ("[fd07::2]:1", "va", "[fd07::1]:0"),
        ("[fd07::1]:1", "va", "[fd07::1]:0"),
        (neighbour.as_str(), "va", link_local.as_str()),
    ] {
        let found = to(destination).unwrap_or_else(|error| panic!("{destination}: {error}"));
        assert_eq!(found.local.device.netdev, netdev, "{destination}");
        assert_eq!(found.source, source.parse::<SocketAddr>().unwrap(), "{destination}");
        assert_eq!(found.local.gid.gid.to_ip(), found.source.ip(), "{destination}");
        assert_eq!(found.destination.port(), destination.parse::<SocketAddr>().unwrap().port());
        assert_eq!(found.hop_limit, 64, "{destination}");
    }
    assert_eq!(to("0.0.0.0:5").unwrap().destination, "127.0.0.1:5".parse().unwrap());
    assert_eq!(to("127.0.0.1:1").unwrap().mtu, PathMtu::B4096);
    assert_eq!(to("10.7.0.2:1").unwrap().mtu, PathMtu::B1024);
    assert_eq!(to("192.0.2.77:1").unwrap().mtu, PathMtu::B256);

    // The source decides, where one is given.
    assert_eq!(from_to("10.7.0.9:5", "10.7.0.2:1").unwrap().source, "10.7.0.9:0".parse().unwrap());
    assert_eq!(from_to("0.0.0.0:5", "10.7.0.2:1").unwrap().source, "10.7.0.1:0".parse().unwrap());
    assert_eq!(from_to("10.7.0.9:5", "239.1.2.3:1").unwrap().local.device.netdev, "va");

    assert_eq!(errno(to("203.0.113.1:1")), 101, "ENETUNREACH");
    assert_eq!(errno(to("198.51.100.1:1")), 113, "EHOSTUNREACH");
    assert_eq!(errno(to("[fe80::7:2]:1")), 22, "EINVAL: a link-local address without its interface");
    assert!(matches!(to("10.8.0.2:1"), Err(ResolveError::NoDevice(ip)) if ip.to_string() == "10.8.0.1"));
    assert!(matches!(from_to("10.99.0.1:0", "10.7.0.2:1"), Err(ResolveError::NotLocal(_))));
    assert!(matches!(from_to("10.7.0.1:0", "[::1]:1"), Err(ResolveError::Families { .. })));

    let at = |address: &str| local(address.parse().unwrap());
    assert_eq!(at("0.0.0.0:7").unwrap(), None);
    assert_eq!(at("[::]:7").unwrap(), None);
    assert_eq!(at("10.7.0.9:7").unwrap().unwrap().device.netdev, "va");
    assert_eq!(at(&link_local).unwrap().unwrap().gid.ifindex, scope);
    assert!(matches!(at("10.8.0.1:7"), Err(ResolveError::NoDevice(_))));
    assert!(matches!(at("10.99.0.1:7"), Err(ResolveError::NotLocal(_))));
    assert!(matches!(at("239.1.2.3:7"), Err(ResolveError::NotLocal(_))));
}
