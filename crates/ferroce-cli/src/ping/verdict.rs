//! Findings from what was heard of another host.

use std::net::IpAddr;
use std::time::Duration;

use ferroce::{PathMtu, RejReason};
use ferroce_wire::ROCE_UDP_PORT as PORT;

use super::probe::{Heard, Reason};
use crate::finding::{Finding, Severity};

/// The answers of a host and of the way to it.
#[derive(Debug)]
pub struct Facts {
    /// The host, as it was called.
    host: String,
    /// The address of the host.
    to: IpAddr,
    /// The address of this end.
    from: IpAddr,
    /// Octets of payload in the largest packets of a connection to it.
    mtu: usize,
    /// Requests of connection management.
    pub asked: usize,
    /// Answers to them.
    pub answered: usize,
    /// The time of the first answer.
    pub time: Duration,
    /// The reason of a refusal.
    pub refused: Option<RejReason>,
    /// The error of ICMP to a datagram to the port of RoCE.
    pub port: Heard,
    /// The error of ICMP to a datagram to a port that nobody has.
    pub closed: Heard,
    /// Datagrams to queue pair 1 of this host that ferroced refused: their ICRC was wrong, or they were no
    /// message of connection management.
    pub spoiled: u64,
    pub large: Large,
}

/// The fate of large packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Large {
    /// Large packets arrive, after this round trip.
    Arrive(Duration),
    /// Large packets are lost without an error; those with `fits` octets of payload arrive.
    Lost { fits: usize },
    /// A router says that the next network carries packets of `mtu` octets.
    Refused { mtu: u32, by: Option<IpAddr> },
    /// The host does not answer.
    Unknown,
}

impl Facts {
    pub fn new(host: &str, to: IpAddr, from: IpAddr, mtu: usize) -> Self {
        Self {
            host: host.to_owned(),
            to,
            from,
            mtu,
            asked: 0,
            answered: 0,
            time: Duration::ZERO,
            refused: None,
            port: Heard::Nothing,
            closed: Heard::Nothing,
            spoiled: 0,
            large: Large::Unknown,
        }
    }

    fn is_host(&self, by: &Option<IpAddr>) -> bool {
        *by == Some(self.to)
    }
}

/// The findings: whether the host answers, and if not why; whether addresses are translated; whether large
/// packets arrive.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let answer = if facts.answered == 0 { silence(facts) } else { answers(facts) };
    [Some(answer), translated(facts), large(facts)].into_iter().flatten().collect()
}

/// The operations were not tried, because nobody there does them.
pub fn no_server(port: u16) -> Finding {
    let found = format!(
        "were not tried: no `ferroce ping --serve` of this version is there at port {port}, or it is busy"
    );
    Finding::new("operations", Severity::Note, found)
}

/// Loss and congestion on the way, by the counters of the queue pair that did the operations.
pub fn way(count: impl Fn(&str) -> u64) -> Finding {
    let [sent, resent, gaps, cnps] = ["sent_pkts", "resent_pkts", "rcvd_seq_err", "rcvd_cnps"].map(&count);
    let [arrived, marked] = ["rcvd_pkts", "rcvd_ecn_marked"].map(&count);
    let found = format!(
        "{sent} packets sent, {resent} again; the peer told {gaps} gaps and {cnps} times of congestion; {arrived} arrived, {marked} marked by ECN"
    );
    // On a busy machine a few packets are sent again although none was lost.
    let lost = gaps > 0 || resent > sent / 100;
    Finding::new("way", if lost { Severity::Warning } else { Severity::Ok }, found)
}

fn answers(facts: &Facts) -> Finding {
    let Facts { host, to, from, asked, answered, time, .. } = facts;
    let who = if *host == to.to_string() { host.clone() } else { format!("{host} ({to})") };
    let why = match facts.refused {
        Some(reason) if reason != RejReason::INVALID_SERVICE_ID => format!("; it says {reason}"),
        _ => String::new(),
    };
    let time = millis(*time);
    let found = format!(
        "{who} answers RoCE from {from}: {answered} of {asked} requests, the first in {time} ms{why}"
    );
    if answered == asked {
        Finding::ok("answer", found)
    } else {
        Finding::new("answer", Severity::Warning, found)
            .cure("packets are lost on the way: look for a full queue or a bad cable")
    }
}

fn silence(facts: &Facts) -> Finding {
    let Facts { host, to, from, port, closed, .. } = facts;
    // The host was looked for on its network until the second datagram.
    let port = if matches!(closed, Heard::Error(Reason::NoHost, _)) { closed } else { port };
    let by = |by: &Option<IpAddr>| by.map_or_else(|| "somebody".to_owned(), |by| by.to_string());
    let (found, cure) = match port {
        Heard::Error(Reason::PortClosed, who) if facts.is_host(who) => (
            format!(
                "{host} is there, and nobody there has UDP port {PORT}: no RoCE, or a packet filter rejects it"
            ),
            "run `ferroce ping --serve` there, and if it runs, see `ferroce doctor` there".to_owned(),
        ),
        Heard::Error(Reason::PortClosed | Reason::Prohibited, who) => (
            format!("a packet filter at {} rejects UDP port {PORT} to {host}", by(who)),
            format!("accept UDP port {PORT} there, in both directions"),
        ),
        Heard::Error(Reason::NoHost, who) if who.is_none() || *who == Some(*from) => (
            format!("no host answers at {to} on the local network"),
            "check that it is up, its address, and the cable or VLAN".to_owned(),
        ),
        Heard::Error(Reason::NoHost, who) => (
            format!("the router {} knows no way to {to}", by(who)),
            "check the routes and that the host is up".to_owned(),
        ),
        Heard::Error(Reason::TooBig(mtu), who) => (
            format!("{} carries packets of {mtu} octets, which is too little for RoCE", by(who)),
            "use a larger MTU there".to_owned(),
        ),
        Heard::Nothing => match closed {
            Heard::Error(Reason::PortClosed, who) if facts.is_host(who) => (
                format!(
                    "{host} is there, but UDP port {PORT} is silent: a packet filter here, on the way or there drops it, or \
                     an address is translated (NAT), so that the ICRC is wrong there"
                ),
                format!(
                    "during a ping, run there `tcpdump -ni any udp port {PORT}`: no packets mean a filter before that host; \
                     packets from another address than {from} mean NAT; else see `ferroce doctor` there"
                ),
            ),
            _ => (
                format!(
                    "nothing comes back from {host}, from no port: it is down, or a packet filter drops everything"
                ),
                format!(
                    "try `ping {to}`; accept UDP port {PORT} in the packet filters here, on the way and there"
                ),
            ),
        },
    };
    Finding::new("answer", Severity::Error, found).cure(cure)
}

/// The ICRC covers both addresses, so RoCE does not cross a translation.
fn translated(facts: &Facts) -> Option<Finding> {
    let Facts { to, from, spoiled, answered, .. } = facts;
    let finding = |state, found| {
        let cure = "RoCE needs addresses that reach each other unchanged: routes or a tunnel instead of NAT";
        Some(Finding::new("nat", state, found).cure(cure))
    };
    if *spoiled > 0 {
        let found = format!(
            "{spoiled} datagrams that ferroced refused arrived meanwhile; a wrong ICRC, which NAT causes, is one reason"
        );
        return finding(Severity::Warning, found);
    }
    if *answered == 0 && is_private(*from) && is_public(*to) {
        return finding(Severity::Error, format!("{from} is private and {to} is not: NAT is in between"));
    }
    None
}

fn large(facts: &Facts) -> Option<Finding> {
    let Facts { host, mtu, large, answered, .. } = facts;
    let finding = |found, fits: usize| {
        let cure = format!(
            "ferroce link set DEV mtu {fits} for the device that leads there, or correct the MTU on the way"
        );
        Some(Finding::new("path mtu", Severity::Error, found).cure(cure))
    };
    match large {
        Large::Arrive(time) => {
            let time = millis(*time);
            let found = format!("packets with {mtu} octets of payload arrive; the round trip is {time} ms");
            Some(Finding::ok("path mtu", found))
        }
        Large::Lost { fits } => finding(
            format!(
                "packets with {mtu} octets of payload are lost without an error; those with {fits} arrive"
            ),
            *fits,
        ),
        Large::Refused { mtu: carried, by } => {
            let by = by.map_or_else(|| "a router".to_owned(), |by| by.to_string());
            finding(
                format!(
                    "packets with {mtu} octets of payload are lost: {by} carries packets of {carried} with all headers"
                ),
                PathMtu::largest_fitting(*carried).bytes(),
            )
        }
        Large::Unknown if *answered == 0 => None,
        Large::Unknown => Some(
            Finding::new(
                "path mtu",
                Severity::Note,
                format!("whether large packets arrive is unknown: {host} does not answer on closed ports"),
            )
            .cure(format!("run `ferroce ping --serve` there, or try `ping -M do -s {mtu} {}`", facts.to)),
        ),
    }
}

fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// Certainly not an address of a private network: those of documentation and shared ones may be anywhere.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            !(is_private(address)
                || v4.is_loopback()
                || v4.is_documentation()
                || v4.is_multicast()
                || is_shared)
        }
        IpAddr::V6(v6) => v6.segments()[0] & 0xe000 == 0x2000 && v6.segments()[..2] != [0x2001, 0xdb8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));
    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn facts() -> Facts {
        Facts { asked: 3, ..Facts::new("peer", TO, FROM, 4096) }
    }

    #[track_caller]
    fn says(facts: &Facts, want: &[(&str, Severity, &str)]) {
        let got = judge(facts);
        assert_eq!(got.len(), want.len(), "{got:?}");
        for (got, (check, state, part)) in got.iter().zip(want) {
            assert_eq!((got.check, got.state), (*check, *state), "{got:?}");
            assert!(got.found.contains(part), "{got:?}");
        }
    }

    #[test]
    fn silence_has_the_causes_that_remain() {
        let closed = |by| Heard::Error(Reason::PortClosed, Some(by));
        for (port, elsewhere, part) in [
            (closed(TO), closed(TO), "nobody there has UDP port 4791"),
            (closed(ROUTER), Heard::Nothing, "a packet filter at 10.0.0.3 rejects"),
            (Heard::Error(Reason::Prohibited, Some(TO)), Heard::Nothing, "a packet filter at 10.0.0.2"),
            (Heard::Error(Reason::NoHost, Some(FROM)), Heard::Nothing, "no host answers at 10.0.0.2"),
            (Heard::Error(Reason::NoHost, Some(ROUTER)), Heard::Nothing, "the router 10.0.0.3"),
            (Heard::Nothing, Heard::Error(Reason::NoHost, Some(FROM)), "no host answers at 10.0.0.2"),
            (Heard::Nothing, closed(TO), "UDP port 4791 is silent"),
            (Heard::Nothing, closed(ROUTER), "nothing comes back"),
            (Heard::Nothing, Heard::Nothing, "nothing comes back"),
        ] {
            let facts = Facts { port, closed: elsewhere, ..facts() };
            says(&facts, &[("answer", Severity::Error, part)]);
        }
    }

    #[test]
    fn a_translation_is_an_error_where_it_is_certain() {
        let spoiled = Facts { spoiled: 2, ..facts() };
        says(&spoiled, &[("answer", Severity::Error, ""), ("nat", Severity::Warning, "2 datagrams")]);
        let public = Facts { to: [192, 88, 99, 1].into(), ..facts() };
        says(&public, &[("answer", Severity::Error, ""), ("nat", Severity::Error, "10.0.0.1 is private")]);
        for elsewhere in [[100, 64, 0, 1], [172, 16, 0, 1], [192, 0, 2, 1]] {
            says(&Facts { to: elsewhere.into(), ..facts() }, &[("answer", Severity::Error, "")]);
        }
    }

    #[test]
    fn packets_that_were_sent_again_are_a_warning() {
        let found = |resent| {
            way(|name| if name == "resent_pkts" { resent } else { 7 * u64::from(name == "sent_pkts") })
        };
        assert_eq!([found(0).state, found(1).state], [Severity::Ok, Severity::Warning]);
        assert!(found(1).found.starts_with("7 packets sent, 1 again; "), "{:?}", found(1));
    }

    #[test]
    fn an_answer_has_its_losses_and_its_path() {
        let (time, refused) = (Duration::from_micros(200), Some(RejReason::INVALID_SERVICE_ID));
        let all = |large| Facts { answered: 3, time, refused, large, ..facts() };
        let path = |state, part| {
            [("answer", Severity::Ok, "3 of 3 requests, the first in 0.20 ms"), ("path mtu", state, part)]
        };
        says(&all(Large::Arrive(time)), &path(Severity::Ok, "4096 octets"));
        says(&all(Large::Unknown), &path(Severity::Note, "unknown"));
        says(&all(Large::Lost { fits: 1024 }), &path(Severity::Error, "those with 1024 arrive"));
        let refusal = Large::Refused { mtu: 1400, by: Some(ROUTER) };
        says(&all(refusal), &path(Severity::Error, "10.0.0.3 carries packets of 1400"));
        assert!(judge(&all(refusal))[1].cure.as_ref().is_some_and(|cure| cure.contains("mtu 1024")));
        let lossy = Facts { asked: 10, ..all(Large::Arrive(time)) };
        says(&lossy, &[("answer", Severity::Warning, "3 of 10"), ("path mtu", Severity::Ok, "")]);
    }
}
