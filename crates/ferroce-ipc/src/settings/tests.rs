use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// `tclass src dst`, one a rule.
fn settings(tclass: Option<u8>, rules: &[&str]) -> LinkSettings {
    let mut all = LinkSettings { tclass, ..LinkSettings::default() };
    for rule in rules {
        let mut words = rule.split(' ');
        let mut next = || words.next().unwrap();
        let rule =
            TcRule { tclass: next().parse().unwrap(), source: prefix(next()), destination: prefix(next()) };
        all = all.with(&Setting::Rule(rule)).unwrap();
    }
    all
}

#[test]
fn precedence_of_traffic_classes() {
    /// The class for the device, rules, source, destination, what the packet gets that asked for 1.
    type Case = (&'static str, Option<u8>, &'static [&'static str], &'static str, &'static str, u8);
    let cases: &[Case] = &[
        ("nothing is set", None, &[], "1.1.1.2", "1.1.1.3", 1),
        ("one for the device", Some(32), &[], "1.1.1.2", "1.1.1.3", 32),
        ("one for the device, of zero", Some(0), &[], "1.1.1.2", "1.1.1.3", 0),
        ("for the device before every rule", Some(32), &["16 1.1.1.2 1.1.1.3"], "1.1.1.2", "1.1.1.3", 32),
        ("both addresses", None, &["16 1.1.1.2 1.1.1.0/24"], "1.1.1.2", "1.1.1.3", 16),
        ("another source", None, &["16 1.1.1.2 1.1.1.0/24"], "1.1.1.4", "1.1.1.3", 1),
        ("another destination", None, &["16 1.1.1.2 1.1.1.0/24"], "1.1.1.2", "1.1.2.3", 1),
        ("source alone", None, &["16 1.1.1.2 any"], "1.1.1.2", "9.9.9.9", 16),
        ("destination alone", None, &["16 any 9.9.9.9"], "1.1.1.2", "9.9.9.9", 16),
        ("no address", None, &["16 any any"], "fe80::1", "9.9.9.9", 16),
        (
            "the longer destination, though its source is shorter",
            None,
            &["16 1.1.1.2 1.1.0.0/16", "24 any 1.1.1.0/24"],
            "1.1.1.2",
            "1.1.1.3",
            24,
        ),
        (
            "the same in the other order",
            None,
            &["24 any 1.1.1.0/24", "16 1.1.1.2 1.1.0.0/16"],
            "1.1.1.2",
            "1.1.1.3",
            24,
        ),
        (
            "the longer source where destinations are as long",
            None,
            &["16 1.1.0.0/16 1.1.1.0/24", "24 1.1.1.0/24 1.1.1.0/24", "32 any 1.1.1.0/24"],
            "1.1.1.2",
            "1.1.1.3",
            24,
        ),
        (
            "the same in the other order",
            None,
            &["32 any 1.1.1.0/24", "24 1.1.1.0/24 1.1.1.0/24", "16 1.1.0.0/16 1.1.1.0/24"],
            "1.1.1.2",
            "1.1.1.3",
            24,
        ),
        (
            "a longer one that does not match",
            None,
            &["16 any 1.1.1.0/24", "24 1.1.1.9 1.1.1.3"],
            "1.1.1.2",
            "1.1.1.3",
            16,
        ),
        (
            "the later of two for the same",
            None,
            &["16 any 1.1.1.3", "24 any 1.1.1.3"],
            "1.1.1.2",
            "1.1.1.3",
            24,
        ),
        ("bits beyond the mask", None, &["16 any 1.1.1.77/24"], "1.1.1.2", "1.1.1.3", 16),
        ("a mask of no bits is of its family", None, &["16 any 0.0.0.0/0"], "fe80::1", "fe80::2", 1),
        ("and longer than any", None, &["16 any 0.0.0.0/0", "24 1.1.1.2 any"], "1.1.1.2", "1.1.1.3", 16),
        ("IPv6", None, &["16 2001:db8::/32 2001:db8:1::/48"], "2001:db8::1", "2001:db8:1::2", 16),
        ("IPv6, one bit off", None, &["16 any 2001:db8:1::/47"], "2001:db8::1", "2001:db8:2::2", 1),
        (
            "IPv6, the longer destination",
            None,
            &["16 2001:db8::1 2001:db8::/32", "24 any 2001:db8::/127"],
            "2001:db8::1",
            "2001:db8::1",
            24,
        ),
        (
            "IPv6, the longer source",
            None,
            &["16 2001:db8::/64 2001:db8::2", "24 2001:db8::1 2001:db8::2"],
            "2001:db8::1",
            "2001:db8::2",
            24,
        ),
        ("a range of IPv6 holds no IPv4", None, &["16 any ::/64"], "1.1.1.2", "1.1.1.3", 1),
    ];
    for (what, tclass, rules, source, destination, want) in cases {
        let got = settings(*tclass, rules).traffic_class(ip(source), ip(destination), 1);
        assert_eq!(got, *want, "{what}");
    }
}

#[test]
fn rules_come_and_go() {
    let all = settings(None, &["16 any 10.0.0.0/8", "24 1.1.1.2 10.1.0.0/16", "32 any 10.0.0.0/8"]);
    let shown: Vec<String> =
        all.rules.iter().map(|r| format!("{} {} {}", r.tclass, r.source, r.destination)).collect();
    assert_eq!(shown, ["24 1.1.1.2/32 10.1.0.0/16", "32 any 10.0.0.0/8"]);
    let none =
        |source, destination| Setting::NoRule { source: prefix(source), destination: prefix(destination) };
    assert_eq!(
        all.with(&none("any", "10.0.0.0/9")),
        Err("it has no rule for src=any dst=10.0.0.0/9".to_owned())
    );
    let fewer = all.with(&none("any", "10.0.0.0/8")).unwrap();
    assert_eq!(fewer.rules, all.rules[..1]);
    let rules: Vec<String> = (0..64).map(|n| format!("16 any 10.0.0.{n}")).collect();
    let full = settings(None, &rules.iter().map(String::as_str).collect::<Vec<_>>());
    let rule = TcRule { tclass: 1, source: Prefix::ANY, destination: Prefix::ANY };
    assert_eq!(full.with(&Setting::Rule(rule)), Err("it has 64 rules, the most there can be".to_owned()));
    let again = TcRule { destination: prefix("10.0.0.9"), ..rule };
    assert!(full.with(&Setting::Rule(again)).is_ok(), "in place of one");
}

#[test]
fn modes_of_connections_are_those_of_the_table() {
    let with = |settings: &[Setting]| {
        settings.iter().try_fold(LinkSettings::default(), |all, one| all.with(one)).map(|all| all.cm_type())
    };
    use GidType::{RoceV1, RoceV2};
    use RoceMode::{Both, V1, V2};
    use Setting::{CmMode, RoceMode as Mode};
    assert_eq!(with(&[]), Ok(RoceV2));
    assert_eq!(with(&[Mode(V1)]), Ok(RoceV1));
    assert_eq!(with(&[Mode(Both)]), Ok(RoceV2));
    assert_eq!(with(&[Mode(Both), CmMode(RoceV1)]), Ok(RoceV1));
    assert_eq!(with(&[Mode(Both), CmMode(RoceV1), Mode(V2)]), Ok(RoceV2));
    assert_eq!(with(&[CmMode(RoceV1)]), Err("it has no RoCE v1 GIDs; roce-mode both makes them".to_owned()));
    assert!(with(&[Mode(V1), CmMode(RoceV2)]).is_err());
    assert!(with(&[Setting::Unknown(77)]).unwrap_err().contains("77"));
    assert!(with(&[Setting::Ttl(Some(0))]).is_err());
    assert_eq!(LinkSettings::default().with(&Setting::Ttl(Some(9))).unwrap().hop_limit(64), 9);
    assert_eq!(LinkSettings::default().hop_limit(64), 64);
}

#[test]
fn prefixes_are_read_as_they_are_written() {
    for (text, shown) in [
        ("any", "any"),
        ("1.1.1.2", "1.1.1.2/32"),
        ("1.1.1.2/24", "1.1.1.0/24"),
        ("1.1.1.2/255.255.0.0", "1.1.0.0/16"),
        ("1.1.1.2/0.0.0.0", "0.0.0.0/0"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::1", "2001:db8::1/128"),
        ("2001:db8:ffff::/33", "2001:db8:8000::/33"),
        ("::/64", "::/64"),
    ] {
        assert_eq!(prefix(text).to_string(), shown);
        assert_eq!(prefix(shown), prefix(text));
    }
    for bad in [
        "",
        "/",
        "1.1.1",
        "1.1.1.2/",
        "1.1.1.2/33",
        "1.1.1.2/-1",
        "1.1.1.2/+8",
        "1.1.1.2/255.0.255.0",
        "::/129",
        "::/255.0.0.0",
        "1.1.1.2/0.0.0.255",
        "1.1.1.2 /8",
        "eth0",
        "1.1.1.2/999",
    ] {
        assert_eq!(bad.parse::<Prefix>(), Err(BadPrefix), "{bad}");
    }
}

#[test]
fn on_iwarp_only_the_crc_can_be_set() {
    for setting in [Setting::Crc(false), Setting::Unknown(99), Setting::Mtu(None), Setting::Roce(true)] {
        assert_eq!(setting.applies_to(LinkKind::Rxe), Ok(()), "{setting:?}");
    }
    assert_eq!(Setting::Crc(false).applies_to(LinkKind::Siw), Ok(()));
    for (setting, word) in [
        (Setting::RoceMode(RoceMode::V1), "roce-mode"),
        (Setting::CmTos(1), "cm-tos"),
        (Setting::Ttl(None), "ttl"),
        (Setting::NoRule { source: Prefix::ANY, destination: Prefix::ANY }, "tc"),
        (Setting::Roce(false), "roce"),
        (Setting::Mtu(None), "mtu"),
        (Setting::Congestion(false), "congestion"),
    ] {
        let sentence = setting.applies_to(LinkKind::Siw).unwrap_err();
        assert_eq!(sentence, format!("{word} means nothing on an iWARP link; only crc can be set there"));
    }
}
