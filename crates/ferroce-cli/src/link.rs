//! `ferroce link add` and `ferroce link delete`.

use anyhow::{Context, Result};
use ferroce_host::rtnetlink;
use ferroce_ipc::{LinkKind, Message, Setting};

use crate::{broker, settings, usage::Usage};

/// Parses `NAME type { roce | rxe | siw } netdev NETDEV [SETTING VALUE …]`; the pairs may be in any order, as
/// in rdma(8). On an error there is no such link.
pub fn add(name: &str, words: &[String], transient: bool) -> Result<()> {
    settings::check_name(name)?;
    let New { kind, netdev, settings } = parse(words)?;
    broker::send(&Message::LinkAdd { name: name.to_owned(), kind, netdev: netdev.to_owned(), transient })?;
    if kind != LinkKind::Siw {
        advise(netdev);
    }
    if settings.is_empty() {
        return Ok(());
    }
    broker::set(name, settings, transient, false).or_else(|refused| {
        delete(name, transient)
            .with_context(|| format!("{name} exists without its settings: {refused:#}"))?;
        Err(refused.context(format!("{name} was not added")))
    })
}

/// Says how to give the frames of a VLAN priorities, if they have none. An error only omits that.
fn advise(netdev: &str) {
    for vlan in rtnetlink::netdevs().unwrap_or_default().iter().filter(|other| other.name == netdev) {
        if vlan.vlan.is_some_and(|vlan| vlan.egress == [0; 8]) {
            eprintln!(
                "ferroce: frames of {netdev} have priority 0 whatever their service level; this changes it: ip link set \
                 dev {netdev} type vlan egress-qos-map 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7"
            );
        }
    }
}

pub fn delete(name: &str, transient: bool) -> Result<()> {
    broker::send(&Message::LinkDel { name: name.to_owned(), transient })
}

/// A link that does not exist yet.
#[derive(PartialEq, Debug)]
struct New<'a> {
    kind: LinkKind,
    netdev: &'a str,
    settings: Vec<Setting>,
}

fn parse(words: &[String]) -> Result<New<'_>, Usage> {
    let (mut kind, mut netdev, mut settings) = (None, None, Vec::new());
    for pair in words.chunks(2) {
        match pair {
            [key, value] if key == "type" && kind.is_none() => {
                kind = Some(match value.as_str() {
                    "roce" | "rxe" => LinkKind::Rxe,
                    "siw" => LinkKind::Siw,
                    other => {
                        return Err(Usage(format!("type {other} is unknown; it is roce (or rxe), or siw")));
                    }
                });
            }
            [key, value] if key == "netdev" && netdev.is_none() => netdev = Some(value.as_str()),
            [key, ..] if settings::is_known(key) => settings.push(pair),
            [key, ..] => {
                return Err(Usage(format!(
                    "'{key}' is unexpected; expected: type {{ roce | rxe | siw }} netdev NETDEV [SETTING VALUE …]"
                )));
            }
            [] => {}
        }
    }
    let (Some(kind), Some(netdev)) = (kind, netdev) else {
        return Err(Usage("expected: type { roce | rxe | siw } netdev NETDEV [SETTING VALUE …]".to_owned()));
    };
    if kind == LinkKind::Siw
        && let Some(other) = settings.iter().filter_map(|pair| pair.first()).find(|key| *key != "crc")
    {
        return Err(Usage(format!(
            "an iWARP link has no setting '{other}', because its packets are TCP's; it has only crc"
        )));
    }
    Ok(New { kind, netdev, settings: settings::parse(&settings.concat())? })
}

#[cfg(test)]
mod tests {
    use ferroce_ipc::{Datapath, XdpPorts};

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_pairs_come_in_any_order_and_once() {
        for good in ["type roce netdev eth0", "netdev eth0 type roce"] {
            let want = New { kind: LinkKind::Rxe, netdev: "eth0", settings: Vec::new() };
            assert_eq!(parse(&words(good)).unwrap(), want, "{good}");
        }
        assert!(matches!(
            parse(&words("type rxe netdev e")),
            Ok(New { kind: LinkKind::Rxe, netdev: "e", .. })
        ));
        assert!(matches!(
            parse(&words("type siw netdev e")),
            Ok(New { kind: LinkKind::Siw, netdev: "e", .. })
        ));
        for bad in ["", "type roce", "type iwarp netdev e", "type roce type siw", "type roce dev e", "netdev"]
        {
            assert!(parse(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_may_stand_among_the_pairs() {
        for good in [
            "type roce netdev e datapath xdp xdp-ports pairs",
            "datapath xdp type rxe xdp-ports pairs netdev e",
        ] {
            let settings = vec![Setting::Datapath(Datapath::Xdp), Setting::XdpPorts(XdpPorts::Pairs)];
            assert_eq!(
                parse(&words(good)).unwrap(),
                New { kind: LinkKind::Rxe, netdev: "e", settings },
                "{good}"
            );
        }
        let crc = parse(&words("type siw netdev e crc on")).unwrap().settings;
        assert_eq!(crc, [Setting::Crc(true)]);
        for (bad, sentence) in [
            ("type siw netdev e datapath xdp", "an iWARP link has no setting 'datapath'"),
            ("type siw netdev e crc on mtu 1024", "an iWARP link has no setting 'mtu'"),
            ("type roce netdev e datapath", "'datapath' lacks a value"),
            ("type roce netdev e datapath raw", "datapath is udp or xdp, not 'raw'"),
            ("type roce netdev e pfc 3", "'pfc' is unexpected"),
            ("datapath xdp", "expected: type"),
        ] {
            let said = parse(&words(bad)).unwrap_err().to_string();
            assert!(said.starts_with(sentence), "{bad}: {said}");
        }
    }
}
