use super::*;

fn frame(vlan: Option<u16>, ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x24, 0x8a, 7, 0xa5, 0x28, 0xc8, 0x24, 0x8a, 7, 0xa5, 0x28, 0xc9];
    if let Some(tci) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(rest);
    frame
}

fn ipv4(protocol: u8, flags: u16, words: u8) -> Vec<u8> {
    let mut ip = vec![0x40 | words, 0x20, 0, 60, 0, 1];
    ip.extend(flags.to_be_bytes());
    ip.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    ip.resize(usize::from(words) * 4, 0xee);
    ip.extend([0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
    ip
}

fn ipv6(next: u8) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 8, next, 64];
    ip.extend([0xfd; 16]);
    ip.extend([0xfe; 16]);
    ip.extend([0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
    ip
}

const PORTS: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// Each case: the patterns, the frame, and whether they match.
#[test]
fn rules_match_what_they_say() {
    use Layer::*;
    let exact = |layer, offset, value: &[u8]| Pattern::new(layer).at(offset, value, &vec![0xff; value.len()]);
    let udp = frame(None, 0x0800, &ipv4(17, 0x4000, 5));
    let tagged = frame(Some(0x6123), 0x0800, &ipv4(17, 0x4000, 5));
    let options = frame(None, 0x0800, &ipv4(6, 0, 7));
    let later_fragment = frame(None, 0x0800, &ipv4(17, 0x0001, 5));
    let first_fragment = frame(None, 0x0800, &ipv4(17, 0x2000, 5));
    let six = frame(None, 0x86dd, &ipv6(6));
    let arp = frame(None, 0x0806, &[0; 28]);
    let cases: &[(&str, &[Pattern], &[u8], bool)] = &[
        ("destination", &[exact(Ethernet, 0, &[0x24, 0x8a, 7, 0xa5, 0x28, 0xc8])], &udp, true),
        ("another destination", &[exact(Ethernet, 0, &[0x24, 0x8a, 7, 0xa5, 0x28, 0xc7])], &udp, false),
        ("part of it", &[Pattern::new(Ethernet).at(5, &[0xcf], &[0xf8])], &udp, true),
        ("not part of it", &[Pattern::new(Ethernet).at(5, &[0xcf], &[0xff])], &udp, false),
        ("source", &[exact(Ethernet, 6, &[0x24, 0x8a, 7, 0xa5, 0x28, 0xc9])], &udp, true),
        ("EtherType", &[exact(Ethernet, 12, &[8, 0])], &udp, true),
        ("EtherType behind the tag", &[exact(Ethernet, 12, &[8, 0])], &tagged, true),
        ("not the tag's", &[exact(Ethernet, 12, &[0x81, 0])], &tagged, false),
        ("VLAN", &[Pattern::new(Vlan).at(0, &[1, 0x23], &[0x0f, 0xff])], &tagged, true),
        ("another VLAN", &[Pattern::new(Vlan).at(0, &[1, 0x24], &[0x0f, 0xff])], &tagged, false),
        ("no VLAN", &[Pattern::new(Vlan)], &udp, false),
        ("IPv4 addresses", &[exact(Ipv4, 12, &[10, 0, 0, 1, 10, 0, 0, 2])], &udp, true),
        ("TOS and TTL", &[exact(Ipv4, 1, &[0x20]).at(8, &[64], &[0xff])], &udp, true),
        ("another TTL", &[exact(Ipv4, 1, &[0x20]).at(8, &[63], &[0xff])], &udp, false),
        ("any IPv4", &[Pattern::new(Ipv4)], &udp, true),
        ("IPv4 in IPv6", &[Pattern::new(Ipv4)], &six, false),
        ("IPv4 in ARP", &[Pattern::new(Ipv4)], &arp, false),
        ("UDP ports", &[exact(Udp, 0, &PORTS)], &udp, true),
        ("UDP ports of TCP", &[exact(Udp, 0, &PORTS)], &options, false),
        ("TCP behind options", &[exact(Tcp, 0, &PORTS)], &options, true),
        ("ports of a later fragment", &[Pattern::new(Udp)], &later_fragment, false),
        ("ports of a first fragment", &[exact(Udp, 2, &[0x56, 0x78])], &first_fragment, true),
        ("IPv6 addresses", &[exact(Ipv6, 8, &[0xfd; 16]).at(24, &[0xfe; 16], &[0xff; 16])], &six, true),
        ("TCP in IPv6", &[exact(Tcp, 0, &PORTS), Pattern::new(Ipv6)], &six, true),
        ("all of several", &[exact(Tcp, 0, &PORTS), Pattern::new(Ipv4)], &six, false),
        ("everything", &[], &arp, true),
    ];
    for (name, patterns, frame, want) in cases {
        assert_eq!(Rule::arriving(patterns.to_vec()).matches(frame, false), *want, "{name}");
        assert!(!Rule::arriving(patterns.to_vec()).matches(frame, true), "{name}, leaving");
    }
}

#[test]
fn a_frame_may_end_anywhere() {
    let whole = frame(Some(1), 0x0800, &ipv4(17, 0, 5));
    for layer in [Layer::Ethernet, Layer::Vlan, Layer::Ipv4, Layer::Ipv6, Layer::Tcp, Layer::Udp] {
        let rule = Rule::arriving(vec![Pattern::new(layer)]);
        let ends = match layer {
            Layer::Ethernet | Layer::Vlan => 18,
            Layer::Ipv4 => 38,
            Layer::Udp => 42,
            Layer::Ipv6 | Layer::Tcp => usize::MAX,
        };
        for len in 0..whole.len() {
            assert_eq!(rule.matches(&whole[..len], false), len >= ends, "{layer:?} in {len} octets");
        }
    }
    // An IPv4 header with a length field below its minimum.
    let mut short = frame(None, 0x0800, &ipv4(17, 0, 5));
    short[14] = 0x40;
    assert!(Rule::arriving(vec![Pattern::new(Layer::Udp)]).matches(&short, false));
}

#[test]
fn rules_say_what_the_interface_must_accept() {
    let mac = [2, 0, 0, 0, 0, 1];
    let exact = Pattern::new(Layer::Ethernet).at(0, &mac, &[0xff; 6]);
    let some = Pattern::new(Layer::Ethernet).at(0, &mac[..5], &[0xff; 5]);
    assert_eq!(Rule::arriving(vec![exact]).required_address(), Some(Some(mac)));
    assert_eq!(Rule::arriving(vec![some]).required_address(), None);
    for all in [Rule::all(false), Rule::all(true), Rule::sniffer()] {
        assert_eq!(all.required_address(), Some(None));
    }
    let mut broadcast = frame(None, 0x0806, &[0; 28]);
    assert!(!Rule::all(true).matches(&broadcast, false) && Rule::all(false).matches(&broadcast, false));
    broadcast[..6].fill(0xff);
    assert!(Rule::all(true).matches(&broadcast, false));
    assert!(Rule::sniffer().matches(&broadcast, true) && !Rule::all(false).matches(&broadcast, true));
}
