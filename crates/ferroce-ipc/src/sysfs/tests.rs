use ferroce_wire::Gid;

use super::*;
use crate::{LinkKind, LinkSettings, Origin};

fn device(name: &str, dev_name: &str) -> DeviceInfo {
    let entry = |index, address: &str, gid_type| GidEntry {
        index,
        gid: Gid::from_ip(address.parse().unwrap()),
        gid_type,
        ifindex: 2,
    };
    DeviceInfo {
        id: 1,
        name: name.to_owned(),
        dev_name: dev_name.to_owned(),
        node_guid: [0x50, 0x54, 0x00, 0xff, 0xfe, 0x77, 0x00, 0x02],
        netdev: "eth0".to_owned(),
        ifindex: 2,
        mtu: 1500,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Link,
        kind: LinkKind::Rxe,
        datapath: Default::default(),
        gids: vec![entry(1, "10.0.0.1", GidType::RoceV2), entry(3, "10.0.0.1", GidType::RoceV1)],
        settings: LinkSettings::default(),
        macs: Default::default(),
    }
}

fn with<R>(body: impl FnOnce(&Tree<'_>) -> R) -> R {
    let devices = [device("fr1", "uverbs1"), device("fr0", "uverbs0")];
    let netdev = |ifindex| format!("if{ifindex}");
    body(&Tree { devices: &devices, speed: &|_| (2, 32), netdev: &netdev, numa_node: &|_| 3 })
}

fn with_siw<R>(body: impl FnOnce(&Tree<'_>) -> R) -> R {
    let siw = DeviceInfo { kind: LinkKind::Siw, gids: Vec::new(), ..device("siw0", "uverbs2") };
    let devices = [siw, device("fr0", "uverbs0")];
    body(&Tree { devices: &devices, speed: &|_| (1, 1), netdev: &|_| "eth0".to_owned(), numa_node: &|_| 0 })
}

fn text(text: &str) -> Result<Node, Missing> {
    Ok(Node::Text(format!("{text}\n")))
}

#[test]
fn what_is_written_is_what_is_found() {
    with(|tree| {
        let all = tree.all();
        assert_eq!(all.len(), 2 + 2 * (3 + 2 + 17 + 3 * 1024 + 4));
        for (path, node) in &all {
            let found = tree.find(&format!("/sys/class/{path}"));
            let want = if matches!(node, Node::Link(_)) { &Node::Directory } else { node };
            assert_eq!(found.as_ref(), Ok(want), "{path}");
            // All that leads there is a directory.
            let above: Vec<&str> = path.split('/').collect();
            for end in 0..above.len() {
                let path = format!("/sys/class/{}", above[..end].join("/"));
                assert_eq!(tree.find(&path), Ok(Node::Directory), "{path}");
            }
        }
    });
}

#[test]
fn contents() {
    with(|tree| {
        for (path, want) in [
            ("infiniband/fr0/node_guid", "5054:00ff:fe77:0002"),
            ("infiniband/fr0/ports/1/state", "4: ACTIVE"),
            ("infiniband/fr0/ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("infiniband/fr0/ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("infiniband/fr0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("infiniband/fr0/ports/1/gid_attrs/types/1", "RoCE v2"),
            ("infiniband/fr0/ports/1/gid_attrs/types/3", "IB/RoCE v1"),
            ("infiniband/fr0/ports/1/gid_attrs/ndevs/3", "if2"),
            ("infiniband/fr0/device/numa_node", "3"),
            ("infiniband_verbs/uverbs0/ibdev", "fr0"),
            ("infiniband_verbs/abi_version", "6"),
            ("infiniband_mad/umad0/ibdev", "fr1"),
            ("infiniband_mad/abi_version", "5"),
        ] {
            assert_eq!(tree.find(&format!("/sys/class/{path}")), text(want), "{path}");
        }
        let empty = "/sys/class/infiniband/fr0/ports/1/gid_attrs/types/2";
        assert_eq!(tree.find(empty), Ok(Node::Unreadable));
    });
}

/// The files are those of the kernel's siw.
#[test]
fn an_iwarp_device_is_an_rnic() {
    with_siw(|tree| {
        let siw0 = |file: &str| tree.find(&format!("/sys/class/infiniband/siw0/{file}"));
        for (file, want) in [
            ("node_type", "4: RNIC"),
            ("node_guid", "5054:00ff:fe77:0002"),
            ("ports/1/cap_mask", "0x00090000"),
            ("ports/1/gids/0", "5254:0077:0002:0000:0000:0000:0000:0000"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("ports/1/link_layer", "Ethernet"),
        ] {
            assert_eq!(siw0(file), text(want), "{file}");
        }
        assert_eq!(siw0("ports/1/gid_attrs/ndevs/0"), Ok(Node::Unreadable), "as in the kernel");
        for missing in ["parent", "ports/1/pkeys", "ports/1/pkeys/0", "ports/1/gids/1"] {
            assert_eq!(siw0(missing), Err(Missing::NoSuchFile), "{missing}");
        }
        assert_eq!(tree.find("/sys/class/infiniband_mad/umad0/ibdev"), text("fr0"), "iWARP has no MADs");
        assert_eq!(tree.find("/sys/class/infiniband_mad/umad1"), Err(Missing::NoSuchFile));
        for (path, node) in tree.all() {
            let want = if matches!(node, Node::Link(_)) { Node::Directory } else { node };
            assert_eq!(tree.find(&format!("/sys/class/{path}")), Ok(want), "{path}");
        }
    });
}

#[test]
fn paths_are_followed_as_the_kernel_does() {
    let fr0 = "/sys/class/infiniband/fr0";
    with(|tree| {
        for path in [
            "//sys///class/infiniband//fr0/fw_ver",
            "/sys/class/./infiniband/../infiniband/fr0/fw_ver",
            "/../sys/class/infiniband/fr0/ports/1/../../fw_ver",
            "/sys/class/infiniband/fr1/subsystem/fr0/fw_ver",
            "/sys/class/infiniband/fr1/subsystem/../infiniband/fr0/fw_ver",
            "/sys/class/infiniband/fr0/device/net/eth0/../../../fw_ver",
        ] {
            assert_eq!(tree.find(path), text(env!("CARGO_PKG_VERSION")), "{path}");
        }
        for directory in
            ["/", "", "/sys", "/sys/class/infiniband/", fr0, "/sys/class/infiniband/fr0/ports/1/hw_counters"]
        {
            assert_eq!(tree.find(directory), Ok(Node::Directory), "{directory}");
        }
        for file in [
            "nonsense",
            "ports/2/state",
            "ports/1/gids/1024",
            "ports/1/gids/01",
            "ports/1/gids/+1",
            "ports/1/gids/x",
        ] {
            assert_eq!(tree.find(&format!("{fr0}/{file}")), Err(Missing::NoSuchFile), "{file}");
        }
        for path in [
            "/sys/class/infiniband/fr2/fw_ver",
            "/sys/class/infiniband/abi_version",
            "/sys/class/infiniband_verbs/uverbs2",
            "/sys/class/infiniband_verbs/uverbs0/nonsense",
            "/sys/class/infiniband_mad/umad2/port",
            "/sys/class/infiniband_mad/umad/port",
            "/sys/class/net/eth0",
            "/proc/version",
        ] {
            assert_eq!(tree.find(path), Err(Missing::NoSuchFile), "{path}");
        }
        for file in [
            "fw_ver/",
            "fw_ver/..",
            "fw_ver/../fw_ver",
            "ports/1/gid_attrs/types/2/x",
            "ports/1/counters/x/y",
        ] {
            assert_eq!(tree.find(&format!("{fr0}/{file}")), Err(Missing::NotADirectory), "{file}");
        }
    });
}

/// As on a card, where it leads to the PCI device; each leads somewhere else.
#[test]
fn device_is_a_symbolic_link() {
    with(|tree| {
        let all = tree.all();
        let target = |path: &str| all.iter().find(|(known, _)| known == path).map(|(_, node)| node.clone());
        assert_eq!(target("infiniband/fr0/device"), Some(Node::Link(".fr0".to_owned())));
        assert_eq!(target("infiniband/fr1/device"), Some(Node::Link(".fr1".to_owned())));
        assert_eq!(tree.find("/sys/class/infiniband/fr0/.fr1"), Err(Missing::NoSuchFile));
        assert_eq!(tree.find("/sys/class/infiniband/fr0/device/../node_type"), text("1: CA"));
    });
}

#[test]
fn numa_nodes() {
    let sys = std::env::temp_dir().join(format!("ferroce-numa-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = sys.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    assert_eq!(numa_node_in(&sys, "eth0"), -1, "no sysfs");
    write("class/net/eth0/device/numa_node", "1\n");
    write("class/net/eth1/device/numa_node", "-1\n");
    for (online, want) in [("0\n", [1, 0, 0]), ("0-1\n", [1, -1, -1])] {
        write("devices/system/node/online", online);
        assert_eq!(["eth0", "eth1", "veth"].map(|netdev| numa_node_in(&sys, netdev)), want, "{online}");
    }
    std::fs::remove_dir_all(&sys).unwrap();
}

#[test]
fn counters_are_found_where_they_are_written() {
    let counted = [("sent_pkts".to_owned(), 7), ("sent_octets".to_owned(), 400)];
    let mut cm = CmStatus::default();
    cm.counters.tx_msgs.0 = [9; 11];
    let all = counters(&counted, &cm);
    for want in [
        ("hw_counters", "sent_pkts", 7),
        ("hw_counters", "lifespan", 1000),
        ("counters", "port_xmit_data", 100),
        ("counters", "port_xmit_packets", 7),
        ("cm_tx_msgs", "req", 9),
        ("cm_rx_msgs", "req", 0),
    ] {
        assert!(all.contains(&want), "{want:?}");
    }
    with(|tree| {
        for (group, name, _) in all {
            let want = Node::Counter { device: "fr0".to_owned(), group, name: name.to_owned() };
            let path = counter_path("fr0", group, name);
            assert_eq!(tree.find(&format!("/sys/class/{path}")), Ok(want), "{path}");
        }
    });
}

#[test]
fn rates() {
    for (codes, want) in [
        ((1, 1), "2.5 Gb/sec (1X SDR)"),
        ((2, 32), "100 Gb/sec (4X EDR)"),
        ((2, 256), "800 Gb/sec (4X XDR)"),
        ((1, 64), "50 Gb/sec (1X HDR)"),
    ] {
        assert_eq!(rate(codes), want);
    }
}
