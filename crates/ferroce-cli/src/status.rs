//! `ferroce status`: the present state of the broker and its programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use ferroce_ipc::{CmStatus, DeviceInfo, Status};
use serde::Serialize;

use crate::args::Style;
use crate::rows;

/// The whole report, in the structure of the JSON output.
#[derive(Serialize, Debug)]
struct Report {
    broker: Broker,
    /// Links with ICRC checks off.
    unchecked: Vec<String>,
    /// Links of iWARP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    iwarp: Vec<Iwarp>,
    programs: Vec<Program>,
    cm: Cm,
}

#[derive(Serialize, Debug)]
struct Iwarp {
    ifname: String,
    netdev: String,
    /// Whether connections ask for the CRC of MPA.
    crc: bool,
}

#[derive(Serialize, Debug)]
struct Broker {
    pid: u32,
    uid: u32,
    build: String,
    addresses: u16,
    slots: u16,
    adopted: bool,
}

#[derive(Serialize, Debug)]
struct Program {
    pid: u32,
    uid: u32,
    comm: String,
    slots: Vec<u16>,
    pd: u32,
    cq: u32,
    qp: u32,
    mr: u32,
}

#[derive(Serialize, Debug)]
struct Cm {
    connections: u32,
    questions: u32,
    listeners: u32,
    ports: u32,
    /// The groups and members have Linux's names below `/sys/class/infiniband/DEV/ports/1`.
    #[serde(flatten)]
    messages: Counters,
    no_mad: u64,
}

type Counters = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

impl Report {
    fn new(status: Status, devices: &[DeviceInfo]) -> Self {
        let program = |lease: ferroce_ipc::LeaseEntry| Program {
            pid: lease.pid,
            uid: lease.uid,
            comm: lease.command,
            slots: lease.slots,
            pd: lease.resources.pds,
            cq: lease.resources.cqs,
            qp: lease.resources.qps,
            mr: lease.resources.mrs,
        };
        let roce = devices.iter().filter(|device| !device.is_iwarp());
        let iwarp = devices.iter().filter(|device| device.is_iwarp());
        Self {
            broker: Broker {
                pid: status.broker_pid,
                uid: status.broker_uid,
                build: status.build,
                addresses: status.groups,
                slots: status.group_size,
                adopted: status.adopted,
            },
            unchecked: roce.filter(|d| !d.settings.crc).map(|d| d.name.clone()).collect(),
            iwarp: iwarp.map(Iwarp::new).collect(),
            programs: status.programs.into_iter().map(program).collect(),
            cm: Cm {
                connections: status.cm.connections,
                questions: status.cm.sidr_requests,
                listeners: status.cm.listeners,
                ports: status.cm.ports,
                messages: counters(&status.cm),
                no_mad: status.cm.no_mad,
            },
        }
    }
}

impl Iwarp {
    fn new(device: &DeviceInfo) -> Self {
        Self { ifname: device.name.clone(), netdev: device.netdev.clone(), crc: device.settings.crc }
    }
}

fn counters(cm: &CmStatus) -> Counters {
    let messages = |counts: &[u64]| CmStatus::MESSAGES.into_iter().zip(counts.iter().copied()).collect();
    BTreeMap::from([
        ("cm_rx_msgs", messages(&cm.counters.rx_msgs.0)),
        ("cm_rx_duplicates", messages(&cm.counters.rx_duplicates.0)),
        ("cm_tx_msgs", messages(&cm.counters.tx_msgs.0)),
        ("cm_tx_retries", messages(&cm.counters.tx_retries.0)),
        ("drops", CmStatus::DROPS.into_iter().zip(cm.counters.drops).collect()),
    ])
}

/// Prints the report in the given style; text without details omits counters of 0.
pub fn print(status: Status, devices: &[DeviceInfo], style: Style) -> Result<()> {
    let report = Report::new(status, devices);
    let text = rows::json(&report, style)?.unwrap_or_else(|| self::text(&report, style.details));
    rows::write_text(&text)
}

fn text(report: &Report, details: bool) -> String {
    let Report { broker, unchecked, iwarp, programs, cm } = report;
    let mut text = format!(
        "broker pid {} uid {} build {} addresses {} slots {}{}\n",
        broker.pid,
        broker.uid,
        broker.build,
        broker.addresses,
        broker.slots,
        if broker.adopted { " adopted yes" } else { "" }
    );
    for name in unchecked {
        let _ = writeln!(
            text,
            "WARNING: link {name}/1 does NOT check the ICRC of what arrives: damaged packets count as data \
             (ferroce link set {name} crc on)"
        );
    }
    for Iwarp { ifname, netdev, crc } in iwarp {
        let crc = if *crc { "on" } else { "off" };
        let _ = writeln!(text, "iwarp link {ifname}/1 netdev {netdev} crc {crc}");
    }
    for Program { pid, uid, comm, slots, pd, cq, qp, mr } in programs {
        let slots = ranges(slots);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "program pid {pid} comm {comm} uid {uid} slots {slots} pd {pd} cq {cq} qp {qp} mr {mr}"
        );
    }
    let Cm { connections, questions, listeners, ports, messages, no_mad } = cm;
    let _ = write!(text, "cm connections {connections} listeners {listeners} ports {ports}");
    for (name, count) in [("questions", u64::from(*questions)), ("no_mad", *no_mad)] {
        if details || count > 0 {
            let _ = write!(text, " {name} {count}");
        }
    }
    text.push('\n');
    for (group, counts) in messages {
        let shown: Vec<String> = counts
            .iter()
            .filter(|(_, count)| details || **count > 0)
            .map(|(name, count)| format!(" {name} {count}"))
            .collect();
        if !shown.is_empty() {
            let _ = writeln!(text, "cm {group}{}", shown.concat());
        }
    }
    text
}

/// `3,16-31`.
fn ranges(slots: &[u16]) -> String {
    let mut found: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match found.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*slot) => *last = *slot,
            _ => found.push((*slot, *slot)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    found.into_iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::device;
    use ferroce_ipc::{LeaseEntry, LinkKind, LinkSettings, ResourceCounts};

    fn report() -> Report {
        let mut cm = CmStatus { connections: 1, listeners: 2, ports: 3, no_mad: 4, ..CmStatus::default() };
        let counters = &mut cm.counters;
        (counters.rx_msgs.0[0], counters.tx_msgs.0[10], counters.drops[7]) = (5, 6, 7);
        let resources = ResourceCounts { pds: 1, cqs: 2, qps: 3, mrs: 4 };
        let unchecked = DeviceInfo {
            settings: LinkSettings { crc: false, ..LinkSettings::default() },
            ..device("fr1", "eth0", true)
        };
        let status = Status {
            broker_pid: 17,
            broker_uid: 1000,
            group_size: 3,
            groups: 2,
            adopted: true,
            build: "0.1.0".to_owned(),
            programs: vec![LeaseEntry {
                pid: 18,
                uid: 1000,
                command: "rping".to_owned(),
                slots: vec![1, 4, 5, 6],
                resources,
            }],
            cm: Box::new(cm),
        };
        let iwarp = DeviceInfo { name: "iw0".to_owned(), kind: LinkKind::Siw, ..unchecked.clone() };
        Report::new(status, &[unchecked, iwarp, device("fr0", "lo", true)])
    }

    #[test]
    fn text_leaves_out_what_did_not_happen() {
        let head = "broker pid 17 uid 1000 build 0.1.0 addresses 2 slots 3 adopted yes\n\
                    WARNING: link fr1/1 does NOT check the ICRC of what arrives: damaged packets count as data \
                    (ferroce link set fr1 crc on)\n\
                    iwarp link iw0/1 netdev eth0 crc off\n\
                    program pid 18 comm rping uid 1000 slots 1,4-6 pd 1 cq 2 qp 3 mr 4\n\
                    cm connections 1 listeners 2 ports 3 no_mad 4\n";
        let tail = "cm cm_rx_msgs req 5\ncm cm_tx_msgs apr 6\ncm drops refused 7\n";
        assert_eq!(text(&report(), false), format!("{head}{tail}"));
        let all = text(&report(), true);
        assert!(all.contains("cm cm_rx_duplicates apr 0 drep 0 "), "{all}");
        assert!(all.contains("cm connections 1 listeners 2 ports 3 questions 0 no_mad 4\n"), "{all}");
        assert_eq!(all.lines().count(), 10);
    }

    #[test]
    fn json_keys_are_stable() {
        let json = serde_json::to_value(report()).unwrap();
        for (path, want) in [
            ("/broker/pid", 17),
            ("/programs/0/qp", 3),
            ("/programs/0/slots/1", 4),
            ("/cm/listeners", 2),
            ("/cm/cm_rx_msgs/req", 5),
            ("/cm/cm_tx_retries/sidr_rep", 0),
            ("/cm/drops/refused", 7),
        ] {
            assert_eq!(json.pointer(path), Some(&want.into()), "{path}");
        }
    }
}
