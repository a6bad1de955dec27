//! The ports of AF_XDP at the interface of a device, from the counters of the broker.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use ferroce_ipc::DeviceInfo;
use serde::Serialize;

use crate::broker::Observer;

/// The ports of programs.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Number of ports at the interface itself, at most 1.
    direct: u64,
    /// The process with the direct one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
    /// Number of ports behind a checked pair.
    pairs: u64,
    /// How many programs got a pair since the XDP program was attached, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reasons: BTreeMap<&'static str, u64>,
}

/// The counters of the reasons, and their words.
const REASONS: [(&str, &str, &str); 5] = [
    ("xdp_pair_setting", "setting", "the setting xdp-ports is pairs"),
    ("xdp_pair_unprivileged", "unprivileged", "no CAP_NET_RAW here, or a seccomp filter"),
    ("xdp_pair_queues", "queues", "the interface has several receive queues"),
    ("xdp_pair_taken", "taken", "another program had the direct port"),
    ("xdp_pair_failed", "failed", "the kernel refused the socket"),
];

impl Ports {
    /// Reads the counters of a device. `None` if the broker does not count ports.
    pub fn of(counters: &[(String, u64)]) -> Option<Self> {
        let find = |name: &str| counters.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
        let reasons = REASONS.iter().filter_map(|(name, key, _)| Some((*key, find(name)?)));
        Some(Self {
            direct: find("xdp_ports_direct")?,
            pid: find("xdp_direct_pid"),
            pairs: find("xdp_ports_pairs")?,
            reasons: reasons.collect(),
        })
    }

    /// The ports of each device that has AF_XDP, by the name of the device. Without an answer of the broker
    /// they are unknown.
    pub fn of_all(devices: &[DeviceInfo]) -> BTreeMap<String, Self> {
        if !devices.iter().any(|device| device.datapath.is_xdp()) {
            return BTreeMap::new();
        }
        let Ok(mut broker) = Observer::of_running() else { return BTreeMap::new() };
        let with = devices.iter().filter(|device| device.datapath.is_xdp());
        let mut known = |device: &DeviceInfo| {
            Some((device.name.clone(), Self::of(&broker.statistics(&device.name).ok()?)?))
        };
        with.filter_map(&mut known).collect()
    }

    /// The reasons for which programs got a pair, as a sentence; empty if none did.
    pub fn why(&self) -> String {
        let words = REASONS.iter().filter_map(|(_, key, word)| Some((self.reasons.get(key)?, word)));
        words.map(|(count, word)| format!("{count} times {word}")).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "direct {}", self.direct)?;
        self.pid.map_or(Ok(()), |pid| write!(f, " pid {pid}"))?;
        write!(f, " pairs {}", self.pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_ports_and_reasons() {
        let counters = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
            all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        assert_eq!(Ports::of(&counters(&[("xdp_sent_pkts", 4)])), None, "an older broker");
        let none = Ports::of(&counters(&[("xdp_ports_direct", 0), ("xdp_ports_pairs", 0)])).unwrap();
        assert_eq!((none.to_string(), none.why()), ("direct 0 pairs 0".to_owned(), String::new()));
        let all = Ports::of(&counters(&[
            ("xdp_direct_pid", 17),
            ("xdp_pair_taken", 2),
            ("xdp_pair_unprivileged", 3),
            ("xdp_ports_direct", 1),
            ("xdp_ports_pairs", 4),
        ]))
        .unwrap();
        assert_eq!(all.to_string(), "direct 1 pid 17 pairs 4");
        assert_eq!(
            all.why(),
            "3 times no CAP_NET_RAW here, or a seccomp filter, 2 times another program had the direct port"
        );
        assert_eq!(
            serde_json::to_string(&all).unwrap(),
            "{\"direct\":1,\"pid\":17,\"pairs\":4,\"reasons\":{\"taken\":2,\"unprivileged\":3}}"
        );
    }
}
