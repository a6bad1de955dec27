use std::path::PathBuf;

use ferroce_ipc::{DeviceInfo, PhysState};

use super::*;
use crate::doctor::host::Netdev;

fn folder(files: &[(&str, u64)]) -> Folder {
    let files = files.iter().map(|(name, inode)| ((*name).to_owned(), (1, *inode))).collect();
    Folder { path: PathBuf::from("/opt/lib"), files }
}

fn netdev(loopback: bool, up: bool, addresses: &[&str]) -> Netdev {
    Netdev { up, loopback, addresses: addresses.iter().map(|address| address.parse().unwrap()).collect() }
}

fn healthy() -> Host {
    Host {
        kernel: "6.1.0-18-amd64".to_owned(),
        libraries: vec![folder(&LIBRARIES.map(|name| (name, 7)))],
        netdevs: [
            ("lo".to_owned(), netdev(true, true, &["127.0.0.1", "::1"])),
            ("eth0".to_owned(), netdev(false, true, &["192.168.1.5"])),
        ]
        .into(),
        buffers: [Some(SMALL); 2],
        files: Some((1024, 4096)),
        ..Host::default()
    }
}

fn device(name: &str, netdev: &str, port_active: bool, gids: usize) -> DeviceInfo {
    let gid = ferroce_ipc::GidEntry {
        index: 0,
        gid: ferroce_wire::Gid::from_ip([192, 168, 1, 5].into()),
        gid_type: ferroce_ipc::GidType::RoceV2,
        ifindex: 2,
    };
    DeviceInfo {
        id: 1,
        name: name.to_owned(),
        dev_name: "uverbs0".to_owned(),
        node_guid: [1; 8],
        netdev: netdev.to_owned(),
        ifindex: 2,
        mtu: 1500,
        port_active,
        phys_state: PhysState::LinkUp,
        origin: Origin::Link,
        kind: ferroce_ipc::LinkKind::Rxe,
        datapath: Default::default(),
        gids: vec![gid; gids],
        settings: ferroce_ipc::LinkSettings::default(),
        macs: Default::default(),
    }
}

fn iwarp(name: &str, netdev: &str) -> DeviceInfo {
    DeviceInfo { kind: ferroce_ipc::LinkKind::Siw, ..device(name, netdev, true, 0) }
}

fn running(devices: Vec<DeviceInfo>) -> Broker {
    Broker::Runs { pid: 5, uid: 0, devices }
}

/// The findings of a check after a change to the healthy host.
fn found(check: &str, change: impl FnOnce(&mut Host)) -> Vec<Finding> {
    let mut host = healthy();
    change(&mut host);
    all(&host).into_iter().filter(|finding| finding.check == check).collect()
}

#[test]
fn descriptors_in_flight_are_compared() {
    let state = |count| {
        let all = found("files", |h| h.in_flight = Some(count));
        all.into_iter().map(|finding| finding.state).max()
    };
    assert_eq!(
        (state(0), state(3800), state(3900)),
        (Some(Severity::Ok), Some(Severity::Ok), Some(Severity::Warning))
    );
}

#[test]
fn routes_are_compared_with_links_of_roce() {
    let route =
        |ifindex, mtu, told| RouteMtu { ifindex, destination: [10, 9, 0, 0].into(), bits: 16, mtu, told };
    let say = |device, route| {
        let change = |h: &mut Host| (h.broker, h.routes) = (running(vec![device]), vec![route]);
        found("path mtu", change).pop().map(|finding| (finding.found, finding.cure.unwrap_or_default()))
    };
    let (told, cure) = say(device("fr1", "eth0", true, 1), route(2, 1000, true)).unwrap();
    assert!(
        told.starts_with("fr1 sends 1024 octets")
            && told.contains("10.9.0.0/16")
            && told.contains("a router"),
        "{told}"
    );
    assert!(cure.contains("mtu 512"), "{cure}");
    assert_eq!(say(device("fr1", "eth0", true, 1), route(2, 1104, false)), None, "it fits");
    assert_eq!(say(device("fr1", "eth0", true, 1), route(3, 1000, false)), None, "another interface");
    assert_eq!(say(iwarp("iw0", "eth0"), route(2, 1000, false)), None, "TCP sees to that");
}

#[test]
fn the_packet_filter_is_judged_by_what_it_drops() {
    let state = |firewall, devices| {
        let change = |h: &mut Host| (h.firewall, h.broker) = (firewall, running(devices));
        found("firewall", change).pop().unwrap().state
    };
    let drops = |by_name| {
        let (chain, shown_by) = ("nftables, inet t i".to_owned(), "nft list chain inet t i".to_owned());
        Firewall::Known(vec![Obstacle { chain, by_name, shown_by }])
    };
    let link = || vec![device("fr1", "eth0", true, 1)];
    assert_eq!(state(Firewall::Unknown("root alone".to_owned()), link()), Severity::Note);
    assert_eq!(state(Firewall::default(), link()), Severity::Ok);
    assert_eq!(
        (state(drops(true), vec![]), state(drops(true), link())),
        (Severity::Warning, Severity::Warning)
    );
    assert_eq!(
        (state(drops(false), vec![]), state(drops(false), link())),
        (Severity::Note, Severity::Warning)
    );
}

#[test]
fn a_healthy_host_has_nothing_to_cure() {
    for finding in all(&healthy()) {
        assert_eq!((finding.state, &finding.cure), (Severity::Ok, &None), "{finding:?}");
    }
}

#[test]
fn each_fault_is_named_with_its_cure() {
    let holder = |address: &str, kernel, process: Option<&str>| Holder {
        address: address.parse().unwrap(),
        uid: 1000,
        kernel,
        process: process.map(str::to_owned),
    };
    let card = |rxe| KernelDevice { name: "mlx5_0".to_owned(), netdev: "eth0".to_owned(), rxe };
    type Change = Box<dyn FnOnce(&mut Host)>;
    let cases: Vec<(&str, Change, Severity, &str, &str)> = vec![
        ("kernel", Box::new(|h| h.kernel = "4.19.0".to_owned()), Severity::Warning, "4.19", "5.10"),
        ("kernel", Box::new(|h| h.kernel.clear()), Severity::Note, "/proc", ""),
        (
            "libraries",
            Box::new(|h| h.libraries = vec![folder(&[(LIBRARIES[0], 7), (LIBRARIES[1], 8)])]),
            Severity::Error,
            "copies",
            "cd /opt/lib && ln -sf libibverbs.so.1 librdmacm.so.1 && ln -sf libibverbs.so.1 libibumad.so.3",
        ),
        (
            "libraries",
            Box::new(|h| h.libraries = vec![folder(&[(LIBRARIES[0], 7), (LIBRARIES[1], 7)])]),
            Severity::Warning,
            "libibumad.so.3",
            "ln -s libibverbs.so.1 /opt/lib/libibumad.so.3",
        ),
        ("libraries", Box::new(|h| h.libraries.clear()), Severity::Error, "none", "LD_LIBRARY_PATH"),
        ("loopback", Box::new(|h| drop(h.netdevs.remove("lo"))), Severity::Warning, "no loopback", "lo"),
        (
            "loopback",
            Box::new(|h| h.netdevs.get_mut("lo").unwrap().up = false),
            Severity::Error,
            "lo is down",
            "ip link set lo up",
        ),
        (
            "loopback",
            Box::new(|h| (h.netdevs.get_mut("lo").unwrap().up, h.net_admin) = (false, true)),
            Severity::Note,
            "will set it up",
            "",
        ),
        (
            "loopback",
            Box::new(|h| h.netdevs.get_mut("lo").unwrap().addresses.truncate(1)),
            Severity::Note,
            "IPv6",
            "",
        ),
        (
            "broker",
            Box::new(|h| h.broker = Broker::Unusable("held by process 7 of uid 12".to_owned())),
            Severity::Error,
            "uid 12",
            "--private-net",
        ),
        (
            "port",
            Box::new(move |h| h.port = vec![holder("0.0.0.0", false, Some("process 17 (nc)"))]),
            Severity::Error,
            "process 17 (nc) on 0.0.0.0",
            "end it",
        ),
        (
            "port",
            Box::new(move |h| h.port = vec![holder("0.0.0.0", false, None)]),
            Severity::Error,
            "uid 1000",
            "--private-net",
        ),
        (
            "port",
            Box::new(move |h| h.port = vec![holder("127.0.0.1", false, Some("process 9 (ferroced)"))]),
            Severity::Note,
            "process 9",
            "",
        ),
        (
            "port",
            Box::new(move |h| {
                h.port = vec![holder("::", true, None)];
                h.kernel_devices = vec![KernelDevice { name: "rxe0".to_owned(), ..card(true) }];
            }),
            Severity::Error,
            "the kernel",
            "rdma link delete rxe0",
        ),
        (
            "links",
            Box::new(|h| h.broker = running(Vec::new())),
            Severity::Note,
            "no link",
            "ferroce link add",
        ),
        (
            "links",
            Box::new(|h| h.broker = running(vec![device("fr1", "eth0", false, 1)])),
            Severity::Error,
            "fr1 is down",
            "ip link set eth0 up",
        ),
        (
            "links",
            Box::new(|h| h.broker = running(vec![device("fr1", "eth0", true, 0)])),
            Severity::Error,
            "no address",
            "ip addr add",
        ),
        (
            "links",
            Box::new(|h| h.broker = running(vec![iwarp("iw0", "eth1")])),
            Severity::Error,
            "no address that iWARP can use",
            "ip addr add",
        ),
        (
            "links",
            Box::new(|h| h.broker = running(vec![iwarp("iw0", "eth0")])),
            Severity::Ok,
            "iw0 (iWARP) on eth0 is active",
            "",
        ),
        (
            "card",
            Box::new(move |h| {
                h.broker = running(vec![device("fr1", "eth0", true, 1)]);
                h.kernel_devices = vec![card(false)];
            }),
            Severity::Error,
            "mlx5_0 is a card",
            "enable_roce",
        ),
        ("card", Box::new(move |h| h.kernel_devices = vec![card(false)]), Severity::Note, "mlx5_0", "netdev"),
        (
            "buffers",
            Box::new(|h| h.buffers = [Some(212_992), Some(SMALL)]),
            Severity::Warning,
            "net.core.rmem_max is 212992",
            "sysctl -w net.core.rmem_max=8388608",
        ),
        ("buffers", Box::new(|h| h.buffers = [None; 2]), Severity::Note, "cannot be seen", ""),
        ("files", Box::new(|h| h.files = Some((256, 256))), Severity::Warning, "256", "nofile"),
        ("files", Box::new(|h| h.files = Some((64, 64))), Severity::Error, "ferroced needs 256", "nofile"),
        (
            "broker",
            Box::new(|h| h.no_starter = Some("/opt/bin may be written to by others".to_owned())),
            Severity::Error,
            "/opt/bin may be",
            "chmod",
        ),
        ("copies", Box::new(|h| h.ptrace_scope = Some(1)), Severity::Note, "ptrace_scope is 1", "sysctl"),
        ("copies", Box::new(|h| h.seccomp = true), Severity::Note, "seccomp", ""),
        (
            "namespaces",
            Box::new(|h| h.no_namespace = Some("this system lets no user".to_owned())),
            Severity::Warning,
            "no user",
            "--private-net",
        ),
        (
            "nat",
            Box::new(|h| drop(h.netdevs.insert("tap0".to_owned(), netdev(false, true, &["10.0.2.100"])))),
            Severity::Error,
            "tap0",
            "macvlan",
        ),
        (
            "nat",
            Box::new(|h| h.container = Some("/.dockerenv".to_owned())),
            Severity::Warning,
            "192.168.1.5",
            "unchanged",
        ),
        ("nat", Box::new(|h| h.nat_rules = true), Severity::Note, "rules", "--dport 4791"),
    ];
    for (check, change, state, part, cure) in cases {
        let found = found(check, change);
        let [finding] = found.as_slice() else { panic!("{check}: {found:?}") };
        assert_eq!(finding.state, state, "{finding:?}");
        assert!(finding.found.contains(part), "'{part}' is not in {finding:?}");
        let given = finding.cure.as_deref().unwrap_or_default();
        assert!(given.contains(cure) && given.is_empty() == cure.is_empty(), "'{cure}': {finding:?}");
    }
}

#[test]
fn a_datapath_that_is_not_the_wanted_one_is_explained() {
    let with = |state, capabilities| {
        found("datapath", |host| {
            let settings =
                ferroce_ipc::LinkSettings { datapath: Datapath::Xdp, ..ferroce_ipc::LinkSettings::default() };
            host.broker =
                running(vec![DeviceInfo { datapath: state, settings, ..device("fr1", "eth0", true, 1) }]);
            host.broker_capabilities = capabilities;
            host.broker_program = Some("/usr/sbin/ferroced".into());
        })
    };
    for (state, capabilities, part, cure) in [
        (
            DatapathState::NoPermission,
            Some(1 << CAP_NET_ADMIN),
            "; it lacks CAP_NET_RAW, CAP_BPF",
            "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep /usr/sbin/ferroced",
        ),
        (
            DatapathState::NoPermission,
            Some(1 << CAP_SYS_ADMIN),
            "; it lacks CAP_NET_ADMIN, CAP_NET_RAW",
            "setcap",
        ),
        (DatapathState::NoPermission, None, "CAP_BPF in ferroced)", "as root"),
        (DatapathState::NoSupport, None, "no AF_XDP", "CONFIG_XDP_SOCKETS"),
        (DatapathState::WrongInterface, None, "Ethernet", "ferroce link set fr1 datapath udp"),
        (DatapathState::Busy, None, "another XDP program", "ip link set dev eth0 xdp off"),
        (DatapathState::Failed, None, "log", "ferroced.log"),
    ] {
        let found = with(state, capabilities);
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(finding.state, Severity::Warning);
        assert!(
            finding.found.starts_with("fr1 on eth0 is to use xdp, and uses udp (")
                && finding.found.contains(part),
            "{finding:?}"
        );
        assert!(finding.cure.as_ref().is_some_and(|given| given.contains(cure)), "{finding:?}");
    }
    assert_eq!(with(DatapathState::XdpNative, None), [Finding::ok("datapath", "fr1 on eth0: xdp (native)")]);
    let counted = [("xdp_ports_direct", 0), ("xdp_ports_pairs", 1), ("xdp_pair_queues", 1)];
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    let ports = found("datapath", |host| {
        let settings =
            ferroce_ipc::LinkSettings { datapath: Datapath::Xdp, ..ferroce_ipc::LinkSettings::default() };
        let datapath = DatapathState::XdpNative;
        host.broker = running(vec![DeviceInfo { datapath, settings, ..device("fr1", "eth0", true, 1) }]);
        host.xdp_ports = [("fr1".to_owned(), crate::ports::Ports::of(&counted).unwrap())].into();
    });
    let sentence = "fr1 on eth0: xdp (native); ports of programs: direct 0 pairs 1; programs got pairs: 1 times the interface \
                    has several receive queues";
    assert_eq!(ports, [Finding::ok("datapath", sentence)]);
    // The broker inside a program must not be given capabilities.
    let inside = found("datapath", |host| {
        let settings =
            ferroce_ipc::LinkSettings { datapath: Datapath::Xdp, ..ferroce_ipc::LinkSettings::default() };
        let datapath = DatapathState::NoPermission;
        host.broker = running(vec![DeviceInfo { datapath, settings, ..device("fr1", "eth0", true, 1) }]);
        host.broker_program = Some("/usr/bin/python3".into());
    });
    assert!(inside[0].cure.as_ref().is_some_and(|cure| !cure.contains("python3")), "{inside:?}");
    assert!(found("datapath", |host| host.broker = running(vec![device("fr1", "eth0", true, 1)])).is_empty());
}

#[test]
fn addresses_that_are_translated_sooner_or_later() {
    for (address, private) in [
        ("10.1.2.3", true),
        ("100.64.0.1", true),
        ("100.128.0.1", false),
        ("192.0.2.1", false),
        ("fd07::1", true),
        ("fe80::1", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(is_private(address.parse().unwrap()), private, "{address}");
    }
}
