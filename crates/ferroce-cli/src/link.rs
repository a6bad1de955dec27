//! `ferroce link add` and `ferroce link delete`.

use anyhow::Result;
use ferroce_ipc::{LinkKind, Message};

use crate::{broker, usage::Usage};

/// Parses `NAME type { roce | rxe | siw } netdev NETDEV`; the two pairs may be in any order, as in rdma(8).
pub fn add(name: &str, words: &[String], transient: bool) -> Result<()> {
    let (kind, netdev) = parse(words)?;
    make(name, kind, netdev, transient)
}

pub fn make(name: &str, kind: LinkKind, netdev: &str, transient: bool) -> Result<()> {
    broker::send(&Message::LinkAdd { name: name.to_owned(), kind, netdev: netdev.to_owned(), transient })?;
    if kind == LinkKind::Siw {
        return Ok(());
    }
    // An error here only omits advice; the link exists.
    for vlan in broker::netdevs().unwrap_or_default().iter().filter(|other| other.name == netdev) {
        if vlan.vlan.is_some_and(|vlan| vlan.egress == [0; 8]) {
            eprintln!(
                "ferroce: frames of {netdev} have priority 0 whatever their service level; this changes it: ip link set \
                 dev {netdev} type vlan egress-qos-map 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7"
            );
        }
    }
    Ok(())
}

pub fn delete(name: &str, transient: bool) -> Result<()> {
    broker::send(&Message::LinkDel { name: name.to_owned(), transient })
}

fn parse(words: &[String]) -> Result<(LinkKind, &str), Usage> {
    let (mut kind, mut netdev) = (None, None);
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
            [key, ..] => {
                return Err(Usage(format!(
                    "'{key}' is unexpected; expected: type {{ roce | siw }} netdev NETDEV"
                )));
            }
            [] => {}
        }
    }
    match (kind, netdev) {
        (Some(kind), Some(netdev)) => Ok((kind, netdev)),
        _ => Err(Usage("expected: type { roce | siw } netdev NETDEV".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_pairs_come_in_any_order_and_once() {
        for good in ["type roce netdev eth0", "netdev eth0 type roce"] {
            assert!(matches!(parse(&words(good)), Ok((LinkKind::Rxe, "eth0"))), "{good}");
        }
        assert!(matches!(parse(&words("type rxe netdev e")), Ok((LinkKind::Rxe, "e"))));
        assert!(matches!(parse(&words("type siw netdev e")), Ok((LinkKind::Siw, "e"))));
        for bad in ["", "type roce", "type iwarp netdev e", "type roce type siw", "type roce dev e", "netdev"]
        {
            assert!(parse(&words(bad)).is_err(), "{bad}");
        }
    }
}
