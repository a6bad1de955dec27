use proptest::prelude::*;

use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link(flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend_from_slice(&ARPHRD_ETHER.to_ne_bytes());
    body.extend_from_slice(&7_u32.to_ne_bytes());
    body.extend_from_slice(&flags.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend(attributes.concat());
    body
}

#[test]
fn links() {
    let vlan = attribute(18 | 0x8000, &attribute(1, b"vlan\0"));
    let body = link(
        IFF_UP | IFF_LOWER_UP,
        &[
            attribute(3, b"eth0.5\0"),
            attribute(4, &1496_u32.to_ne_bytes()),
            attribute(5, &2_u32.to_ne_bytes()),
            vlan,
        ],
    );
    let found = parse_link(&body).unwrap();
    assert_eq!((found.netdev.name.as_str(), found.netdev.mtu, found.netdev.ifindex), ("eth0.5", 1496, 7));
    assert!(found.netdev.up && found.netdev.running && !found.netdev.loopback);
    assert_eq!((found.kind.as_str(), found.lower), ("vlan", Some(2)));
    // The lower interface is in another namespace.
    let elsewhere =
        link(0, &[attribute(3, b"veth\0"), attribute(5, &2_u32.to_ne_bytes()), attribute(37, &[0; 4])]);
    assert_eq!(parse_link(&elsewhere).unwrap().lower, None);
    assert!(parse_link(&link(0, &[])).is_none(), "no name");
    assert!(parse_link(&link(0, &[attribute(3, b"\xff\0")])).is_none(), "not a text");
}

#[test]
fn wires_that_are_memory() {
    let link = |ifindex, kind: &str, lower, controller| {
        let mut link = parse_link(&link(0, &[attribute(3, b"x\0")])).unwrap();
        (link.netdev.ifindex, link.kind) = (ifindex, kind.to_owned());
        (link.lower, link.controller) = (lower, controller);
        link
    };
    let mut all = vec![
        link(1, "", None, None),
        link(2, "", None, Some(8)),
        link(3, "veth", None, Some(7)),
        link(4, "veth", None, Some(8)),
        link(5, "vlan", Some(3), None),
        link(6, "macvlan", Some(2), None),
        link(7, "bridge", None, None),
        link(8, "bridge", None, None),
        link(9, "macvlan", Some(5), None),
        link(10, "bridge", None, None),
        // The lower interface is in another namespace.
        link(11, "macvlan", None, None),
        link(12, "vxlan", Some(3), None),
        // Two interfaces on each other: impossible, but the search must end.
        link(13, "vlan", Some(14), None),
        link(14, "vlan", Some(13), None),
    ];
    all[0].netdev.loopback = true;
    let found = all.iter().filter(|link| is_virtual_wire(&all, link, 0));
    let found: Vec<u32> = found.map(|link| link.netdev.ifindex).collect();
    assert_eq!(found, [1, 3, 4, 5, 7, 9, 10]);
}

#[test]
fn vlans_and_their_priorities() {
    let pair = |from: u32, to: u32| attribute(1, &[from.to_ne_bytes(), to.to_ne_bytes()].concat());
    let data = |map: &[Vec<u8>]| {
        [attribute(1, &100_u16.to_ne_bytes()), attribute(3 | 0x8000, &map.concat())].concat()
    };
    let vlan = |map: &[Vec<u8>]| {
        let info = [attribute(1, b"vlan\0"), attribute(2, &data(map))].concat();
        parse_link(&link(0, &[attribute(3, b"v\0"), attribute(18, &info)])).unwrap().vlan.unwrap()
    };
    assert_eq!(vlan(&[]), Vlan { id: 100, egress: [0; 8] });
    let mapped = vlan(&[pair(3, 5), pair(7, 7), pair(8, 1), pair(u32::MAX, 1)]);
    assert_eq!(mapped.egress, [0, 0, 0, 5, 0, 0, 0, 7]);
}

#[test]
fn bonds_and_the_member_that_sends() {
    // IFLA_BOND_MODE, IFLA_BOND_ACTIVE_SLAVE, IFLA_BOND_MIIMON
    let data = |mode: u8, active: &[Vec<u8>]| {
        [attribute(1, &[mode]), active.concat(), attribute(3, &50_u32.to_ne_bytes())].concat()
    };
    let bond = |data: &[u8]| {
        let info = [attribute(1, b"bond\0"), attribute(2 | 0x8000, data)].concat();
        let found = parse_link(&link(0, &[attribute(3, b"bond0\0"), attribute(18, &info)])).unwrap();
        (found.kind, found.active_member, found.vlan)
    };
    let active = |index: u32| [attribute(2, &index.to_ne_bytes())];
    assert_eq!(bond(&data(1, &active(5))), ("bond".to_owned(), Some(5), None));
    assert_eq!(bond(&data(1, &[])).1, None, "all its links are down");
    assert_eq!(bond(&data(4, &[])).1, None, "it spreads");
    assert_eq!(bond(&data(1, &active(0))).1, None);
    assert_eq!(bond(&attribute(2, &[1])).1, None, "too short");
}

#[test]
fn flow_control_of_priorities() {
    let pfc = attribute(2, &[8, 0b1_1000, 0, 0, 0, 0]);
    let body = [vec![0, 21, 0, 0], attribute(1, b"eth0\0"), attribute(13 | 0x8000, &pfc)].concat();
    assert_eq!(parse_pfc(&body), Some(0b1_1000));
    assert_eq!(parse_pfc(&[0, 21, 0, 0]), None);
    assert_eq!(flow_controlled("lo"), None);
}

#[test]
fn addresses_that_work() {
    let address = |flags: u32, attributes: &[Vec<u8>]| {
        let mut body = vec![10, 64, flags as u8, 0];
        body.extend_from_slice(&3_u32.to_ne_bytes());
        body.extend(attributes.concat());
        parse_address(&body).map(|(ifindex, ip)| format!("{ip} {ifindex}"))
    };
    let (ours, theirs) = (attribute(2, &[10, 0, 0, 1]), attribute(1, &[10, 0, 0, 2]));
    let wide = |flags: u32| attribute(8, &flags.to_ne_bytes());
    let cases = [
        (address(0, &[theirs.clone(), ours]), Some("10.0.0.1 3")),
        (address(0, std::slice::from_ref(&theirs)), Some("10.0.0.2 3")),
        (address(0, &[attribute(1, &[0; 15])]), None),
        (address(IFA_F_TENTATIVE, std::slice::from_ref(&theirs)), None),
        (address(IFA_F_TENTATIVE | IFA_F_OPTIMISTIC, std::slice::from_ref(&theirs)), Some("10.0.0.2 3")),
        (address(0, &[theirs.clone(), wide(IFA_F_DADFAILED)]), None),
        (address(IFA_F_TENTATIVE, &[theirs, wide(0)]), Some("10.0.0.2 3")),
    ];
    for (got, want) in cases {
        assert_eq!(got.as_deref(), want);
    }
}

#[test]
fn this_host_has_a_loopback_interface() {
    let found = netdevs().unwrap();
    let lo = found.iter().find(|n| n.loopback).unwrap();
    assert_eq!((lo.name.as_str(), lo.mac), ("lo", None));
    assert!(lo.mtu >= 1280);
    let refused = set_up(u32::MAX >> 1).unwrap_err();
    assert!(matches!(refused.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{refused}");
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (parse_link(&bytes).is_some(), parse_address(&bytes), parse_pfc(&bytes));
    }
}
