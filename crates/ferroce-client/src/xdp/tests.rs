use ferroce_ipc::{DatapathState, DeviceInfo, LinkSettings, Origin, PhysState};

use super::*;
use crate::offers::Ports;

fn device(ifindex: u32, datapath: DatapathState) -> DeviceInfo {
    DeviceInfo {
        id: ifindex,
        name: format!("rxe{ifindex}"),
        dev_name: "uverbs0".to_owned(),
        node_guid: [1; 8],
        netdev: "eth0".to_owned(),
        ifindex,
        mtu: 1500,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Link,
        kind: Default::default(),
        datapath,
        gids: Vec::new(),
        settings: LinkSettings::default(),
        macs: Default::default(),
    }
}

fn wanted(interfaces: &[u32]) -> Ports {
    Ports(interfaces.iter().map(|ifindex| (*ifindex, XdpSocketState::Wanted)).collect())
}

#[test]
fn a_socket_is_asked_for_when_its_device_has_af_xdp() {
    let mut ports = wanted(&[2, 3]);
    let udp =
        [device(2, DatapathState::Udp), device(3, DatapathState::Busy), device(4, DatapathState::XdpNative)];
    assert!(ports.due(&udp).is_empty());
    let xdp = [device(2, DatapathState::XdpGeneric), device(3, DatapathState::NoPermission)];
    assert_eq!(ports.due(&xdp), [2]);
    ports.set(2, XdpSocketState::Asked(7));
    assert!(ports.due(&xdp).is_empty(), "once");
    ports.set(2, XdpSocketState::Given);
    assert!(ports.due(&xdp).is_empty());
    // The administrator changes the datapath, and back.
    assert!(ports.due(&udp).is_empty());
    assert_eq!(ports.due(&xdp), [2]);
}

#[test]
fn each_broker_is_asked_again() {
    let mut ports = wanted(&[2]);
    let xdp = [device(2, DatapathState::XdpNative)];
    ports.set(2, XdpSocketState::Given);
    ports.forget_broker();
    assert_eq!(ports.due(&xdp), [2]);
}

#[test]
fn a_refusal_is_final_until_the_datapath_changes() {
    let mut ports = wanted(&[2, 3]);
    let xdp = [device(2, DatapathState::XdpNative), device(3, DatapathState::XdpNative)];
    ports.set(2, XdpSocketState::Asked(7));
    // A thread waits for this one.
    ports.set(3, XdpSocketState::Asked(0));
    assert_eq!((ports.refused(6), ports.refused(0), ports.refused(7)), (None, None, Some(2)));
    assert_eq!(ports.refused(7), None);
    assert!(ports.due(&xdp).is_empty());
    assert!(ports.due(&[]).is_empty());
    assert_eq!(ports.due(&xdp), [2, 3]);
}

#[test]
fn an_offer_has_a_socket_and_its_memory() {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(XdpOffer::new(2, false, vec![file()]).is_none());
    for direct in [false, true] {
        let offer = XdpOffer::new(2, direct, vec![file(), file()]).unwrap();
        assert_eq!((offer.ifindex, offer.direct), (2, direct));
    }
}
