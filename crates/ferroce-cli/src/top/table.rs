//! Rows of the tables: rates between two looks.

use std::collections::BTreeMap;

use ferroce_ipc::ledger::records::QpProgress;
use ferroce_ipc::ledger::{DeviceBlock, Record, TRANSPORT_COUNTERS, Table as Objects};
use serde::Serialize;

use crate::look::{Look, Program};
use crate::resource::{service_name, state_name};

/// A column by its heading. Numbers stand at its right edge.
pub struct Column {
    pub heading: &'static str,
    pub width: usize,
    pub is_text: bool,
}

pub trait Table {
    const COLUMNS: &[Column];

    fn cells(&self) -> Vec<String>;

    fn header() -> Vec<String> {
        Self::COLUMNS.iter().map(|column| column.heading.to_owned()).collect()
    }
}

const fn number(heading: &'static str, width: usize) -> Column {
    Column { heading, width, is_text: false }
}

const fn text(heading: &'static str, width: usize) -> Column {
    Column { heading, width, is_text: true }
}

impl Column {
    /// The cell in the width of its column, without what could steer a terminal.
    pub fn padded(&self, cell: &str) -> String {
        let width = self.width;
        let cell: String = cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if self.is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    }
}

/// A program on one device. Rates are for each second.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct ProgramRow {
    pub pid: u32,
    pub comm: String,
    pub ifname: String,
    /// The first slot of the program, which no other has.
    pub slot: u16,
    pub qp: u32,
    pub sent_octets: f64,
    pub rcvd_octets: f64,
    pub direct_octets: f64,
    pub sent_pkts: f64,
    pub rcvd_pkts: f64,
    pub direct_ops: f64,
    pub resent_pkts: f64,
    /// Percent of one processor; `None` if the process is not visible here.
    pub cpu: Option<f64>,
}

/// A queue pair of a program. Rates are for each second.
pub struct QpRow {
    number: u32,
    remote: u32,
    service: &'static str,
    state: &'static str,
    rates: [f64; QP_RATES.len()],
}

/// The counters that a row of a queue pair shows.
const QP_RATES: [&str; 7] =
    ["sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "resent_pkts", "timeouts", "rcvd_rnr_err"];

impl Table for ProgramRow {
    const COLUMNS: &[Column] = &[
        number("PID", 7),
        text("COMM", 15),
        text("DEVICE", 8),
        number("QPS", 5),
        number("OUT-MB/s", 9),
        number("IN-MB/s", 9),
        number("DIRECT-MB/s", 11),
        number("OUT-PKT/s", 10),
        number("IN-PKT/s", 10),
        number("RESENT/s", 8),
        number("CPU%", 6),
    ];

    fn cells(&self) -> Vec<String> {
        let megabytes = |octets: f64| format!("{:.2}", octets / 1e6);
        let whole = |rate: f64| format!("{rate:.0}");
        vec![
            self.pid.to_string(),
            self.comm.clone(),
            self.ifname.clone(),
            self.qp.to_string(),
            megabytes(self.sent_octets),
            megabytes(self.rcvd_octets),
            megabytes(self.direct_octets),
            whole(self.sent_pkts),
            whole(self.rcvd_pkts),
            whole(self.resent_pkts),
            self.cpu.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
        ]
    }
}

impl Table for QpRow {
    const COLUMNS: &[Column] = &[
        number("LQPN", 8),
        number("RQPN", 8),
        text("TYPE", 10),
        text("STATE", 7),
        number("OUT-PKT/s", 10),
        number("IN-PKT/s", 10),
        number("SENDS/s", 10),
        number("RECVS/s", 10),
        number("RESENT/s", 8),
        number("TIMEOUT/s", 9),
        number("RNR/s", 8),
    ];

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.number.to_string(),
            self.remote.to_string(),
            self.service.to_owned(),
            self.state.to_owned(),
        ];
        cells.extend(self.rates.iter().map(|rate| format!("{rate:.0}")));
        cells
    }
}

fn slot(program: &Program) -> u16 {
    program.lease.slots.first().copied().unwrap_or(0)
}

/// Finds the program in another look. A slot may have gone to another process meanwhile.
fn same<'a>(program: &Program, look: &'a Look) -> Option<&'a Program> {
    look.programs.iter().find(|other| slot(other) == slot(program) && other.lease.pid == program.lease.pid)
}

fn elapsed(before: &Look, now: &Look) -> f64 {
    now.at.duration_since(before.at).as_secs_f64().max(1e-3)
}

/// The sum of a counter, which wraps: programs write what they like.
fn total<'a>(blocks: impl Iterator<Item = &'a DeviceBlock>, counter: &str) -> u64 {
    blocks.map(|block| block.totals.by_name(counter)).fold(0, u64::wrapping_add)
}

/// The programs, the busiest first.
pub fn programs(before: &Look, now: &Look) -> Vec<ProgramRow> {
    let seconds = elapsed(before, now);
    let mut rows = Vec::new();
    for program in &now.programs {
        let old = same(program, before);
        let mut devices: BTreeMap<&str, Vec<&DeviceBlock>> = BTreeMap::new();
        program.devices.iter().for_each(|block| devices.entry(&block.name).or_default().push(block));
        let cpu = program.cpu.zip(old.and_then(|old| old.cpu));
        let cpu = cpu.map(|(now, then)| 100.0 * now.saturating_sub(then).as_secs_f64() / seconds);
        for (name, blocks) in devices {
            let then = |name: &str, counter: &str| {
                let blocks = old.iter().flat_map(|old| &old.devices).filter(|block| block.name == name);
                total(blocks, counter)
            };
            let rate = |counter: &str| {
                let now = total(blocks.iter().copied(), counter);
                now.saturating_sub(then(name, counter)) as f64 / seconds
            };
            let pairs = |block: &&DeviceBlock| program.objects.get(&(block.block, Objects::Qp)).copied();
            rows.push(ProgramRow {
                pid: program.lease.pid,
                comm: program.lease.command.clone(),
                ifname: name.to_owned(),
                slot: slot(program),
                qp: blocks.iter().filter_map(pairs).sum(),
                sent_octets: rate("sent_octets"),
                rcvd_octets: rate("rcvd_octets"),
                direct_octets: rate("direct_octets"),
                sent_pkts: rate("sent_pkts"),
                rcvd_pkts: rate("rcvd_pkts"),
                direct_ops: rate("direct_ops"),
                resent_pkts: rate("resent_pkts"),
                cpu,
            });
        }
    }
    let busy = |row: &ProgramRow| row.sent_octets + row.rcvd_octets + row.direct_octets;
    rows.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    rows
}

/// The queue pairs of a program's device, the busiest first.
pub fn queue_pairs(before: &Look, now: &Look, of: &ProgramRow) -> Vec<QpRow> {
    let seconds = elapsed(before, now);
    let Some(program) = now.programs.iter().find(|program| slot(program) == of.slot) else {
        return Vec::new();
    };
    let old = same(program, before);
    let is_on_device = |record: &&Record| {
        program.devices.iter().any(|block| block.block == record.block() && block.name == of.ifname)
    };
    let old = old.into_iter().flat_map(|old| &old.queue_pairs);
    let old: BTreeMap<u32, &Record> = old.map(|old| (old.decode::<QpProgress>().qpn, old)).collect();
    let row = |record: &Record| {
        let progress: QpProgress = record.decode();
        let old = old.get(&progress.qpn).copied();
        let rates = QP_RATES.map(|counter| {
            let place = TRANSPORT_COUNTERS.iter().position(|name| *name == counter);
            let value =
                |record: &Record| place.and_then(|place| record.counters().get(place)).copied().unwrap_or(0);
            value(record).saturating_sub(old.map_or(0, value)) as f64 / seconds
        });
        QpRow {
            number: progress.qpn,
            remote: progress.remote_qpn,
            service: service_name(progress.service),
            state: state_name(progress.state),
            rates,
        }
    };
    let mut rows: Vec<QpRow> = program.queue_pairs.iter().filter(is_on_device).map(row).collect();
    let busy = |row: &QpRow| row.rates[0] + row.rates[1];
    rows.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    rows
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::look::tests::look;

    #[test]
    fn rates_are_those_of_a_program_over_all_blocks_of_a_device() {
        let before = look();
        let mut now = look();
        now.at = before.at + Duration::from_secs(2);
        let place = |name: &str| TRANSPORT_COUNTERS.iter().position(|known| *known == name).unwrap();
        for block in &mut now.programs[0].devices {
            block.totals.transport[place("resent_pkts")] += 3;
        }
        now.programs[0].cpu = now.programs[0].cpu.map(|cpu| cpu + Duration::from_secs(1));
        // Another process on a slot that was free has all its counters from this time.
        let mut second = look().programs.remove(0);
        (second.lease.pid, second.lease.slots) = (19, vec![18]);
        now.programs.push(second);
        let rows = programs(&before, &now);
        let [new, old] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(
            (old.pid, old.qp, old.sent_octets, old.resent_pkts, old.cpu),
            (18, 3, 0.0, 3.0, Some(50.0))
        );
        assert!(
            new.pid == 19 && new.sent_octets > 0.0 && new.cpu.is_none(),
            "the busiest is first: {rows:?}"
        );
        let transport = |look: &mut Look, octets| {
            look.programs[0].devices.iter_mut().for_each(|block| block.totals.transport.fill(octets));
        };
        transport(&mut now, u64::MAX);
        assert_eq!(programs(&before, &now).len(), 2, "counters that are too large");
        assert_eq!(ProgramRow::COLUMNS.len(), old.cells().len());
    }

    #[test]
    fn names_of_programs_do_not_steer_the_terminal() {
        assert_eq!(text("COMM", 6).padded("a\x1b[2J"), "a?[2J ");
        assert_eq!(number("PID", 4).padded("17"), "  17");
    }
}
