use std::process::Command;

use super::super::netdevs;
use super::*;

/// Runs `body` on a thread in a network namespace of its own, as root.
fn in_namespace(name: &str, body: impl FnOnce() + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped {name}: a network namespace and veth interfaces need root");
        return;
    }
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        body();
    });
    thread.join().unwrap();
}

fn sysctl(path: &str) -> String {
    fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap_or_default().trim().to_owned()
}

fn shown(name: &str) -> String {
    let output = Command::new("ip").args(["-d", "address", "show", "dev", name]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn only_a_veth_with_name_and_alias_is_ours() {
    for (name, kind, alias, own) in [
        ("ferroce0", "veth", "ferroce", true),
        ("ferroce17p", "veth", "ferroce", true),
        ("ferroce17", "veth", "", false),
        ("ferroce17", "dummy", "ferroce", false),
        ("ferroce", "veth", "ferroce", false),
        ("ferroce17q", "veth", "ferroce", false),
        ("veth17", "veth", "ferroce", false),
    ] {
        assert_eq!(is_own(name, kind, alias), own, "{name} {kind} {alias}");
    }
    let long = names(9_999_999);
    assert!(long.iter().all(|name| name.len() <= 15), "{long:?}");
}

#[test]
fn a_pair_has_no_addresses_forwards_and_is_not_listed() {
    in_namespace("a_pair_has_no_addresses_forwards_and_is_not_listed", || {
        let before = netdevs().unwrap();
        let pair = create_pair(3, 1400).unwrap();
        assert_eq!(own_ends().unwrap().len(), 2);
        assert!(own_ends().unwrap().contains(&pair.near) && own_ends().unwrap().contains(&pair.far));
        assert_eq!(netdevs().unwrap(), before, "neither end is listed");
        for name in ["ferroce3", "ferroce3p"] {
            let shown = shown(name);
            for word in ["mtu 1400", "NOARP", ",UP", "numtxqueues 1 ", "numrxqueues 1 ", "alias ferroce"] {
                assert!(shown.contains(word), "{word}: {shown}");
            }
            assert!(!shown.contains("inet"), "{shown}");
        }
        assert_eq!(sysctl("ipv4/conf/ferroce3/forwarding"), "1");
        assert_eq!(sysctl("ipv4/conf/ferroce3p/forwarding"), sysctl("ipv4/conf/default/forwarding"));
        if !sysctl("ipv6/conf/ferroce3/forwarding").is_empty() {
            assert_eq!(sysctl("ipv6/conf/ferroce3/forwarding"), "1");
        }
        assert_eq!(create_pair(3, 1500).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(
            own_ends().unwrap().len(),
            2,
            "the failure left the first pair alone, and none of its own"
        );
        let other = create_pair(4, 1500).unwrap();
        delete_link(pair.far).unwrap();
        assert_eq!(own_ends().unwrap().len(), 2, "both ends are gone");
        assert_eq!(delete_link(pair.near).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        delete_link(other.near).unwrap();
        assert!(own_ends().unwrap().is_empty());
    });
}

#[test]
fn a_foreign_veth_is_listed_and_stays() {
    in_namespace("a_foreign_veth_is_listed_and_stays", || {
        let made = Command::new("ip")
            .args(["link", "add", "ferroce5", "type", "veth", "peer", "ferroce5p"])
            .status();
        assert!(made.is_ok_and(|status| status.success()));
        assert!(own_ends().unwrap().is_empty(), "it has no alias");
        assert!(netdevs().unwrap().iter().any(|netdev| netdev.name == "ferroce5"));
        // A pair whose far end has a name that is taken leaves no near end.
        let renamed = Command::new("ip").args(["link", "set", "ferroce5", "name", "other"]).status();
        assert!(renamed.is_ok_and(|status| status.success()));
        assert_eq!(create_pair(5, 1500).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(index_of("ferroce5").is_err());
    });
}

#[test]
fn without_the_right_there_is_no_pair() {
    if nix::unistd::geteuid().is_root() {
        println!("skipped without_the_right_there_is_no_pair: root has the right");
        return;
    }
    assert_eq!(create_pair(7, 1500).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}
