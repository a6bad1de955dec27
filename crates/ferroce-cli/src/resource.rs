//! `ferroce resource show`: the objects of all programs, from their ledgers.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use ferroce_ipc::ledger::records::{CqRecord, MrRecord, PdRecord, QpRecord, SrqRecord};
use ferroce_ipc::ledger::{DeviceBlock, LedgerReader, Record, Table};
use ferroce_ipc::{CmIdState, DeviceInfo, LeaseEntry};

use crate::args::Style;
use crate::broker::Observer;
use crate::row::{Head, Row};
use crate::rows;
use crate::select::Selection;
use crate::usage::Usage;

/// The kinds that can be listed, in the order of the summary.
const KINDS: [&str; 7] = ["pd", "cq", "qp", "cm_id", "mr", "ctx", "srq"];

/// The keys of filters.
const KEYS: [&str; 21] = [
    "pid", "comm", "pdn", "cqn", "ctxn", "mrn", "srqn", "lqpn", "rqpn", "type", "state", "users", "cqe",
    "rkey", "lkey", "mrlen", "ps", "qp-type", "cm-idn", "src-addr", "dst-addr",
];

/// `[DEV]` or `KIND [link DEV[/PORT]] [FILTER VALUE]...`
pub fn show(words: &[String], style: Style) -> Result<()> {
    let mut broker = Observer::new()?;
    let kind = words.first().and_then(|word| KINDS.into_iter().find(|kind| kind == word));
    let rows = match (kind, words) {
        (Some(kind), [_, rest @ ..]) => {
            let (filters, name) = match rest {
                [name] => (&[][..], Some(rows::port_of(name)?.to_owned())),
                filters => (filters, None),
            };
            let mut selection = Selection::parse(filters, &KEYS)?;
            selection.device = selection.device.or(name);
            let devices = broker.devices()?;
            rows::find(&devices, selection.device.as_deref())?;
            list(&mut broker, kind, &devices, &selection)?
        }
        (_, []) => summary(&mut broker, None)?,
        (_, [name]) => {
            let name = rows::port_of(name)?;
            if broker.devices()?.iter().all(|device| device.name != name) {
                bail!(
                    "no device is called {name} (see `ferroce dev show`), and no kind of objects: there are {}",
                    KINDS.join(", ")
                );
            }
            summary(&mut broker, Some(name))?
        }
        _ => return Err(Usage(format!("a device, or one of {}", KINDS.join(", "))).into()),
    };
    rows::print(&rows, style)
}

/// A row for each device: the number of objects of each kind.
fn summary(broker: &mut Observer, which: Option<&str>) -> Result<Vec<Row>> {
    let devices = broker.devices()?;
    let mut counts: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for (_, ledger) in broker.ledgers()? {
        let blocks = ledger.devices()?;
        for ((block, table), count) in ledger.counts()? {
            if let Some(block) = blocks.get(block) {
                *counts.entry((block.name.clone(), kind_of(table))).or_default() += u64::from(count);
            }
        }
    }
    for (device, _) in cm_ids(broker, &devices)? {
        *counts.entry((device, "cm_id")).or_default() += 1;
    }
    let row = |(index, device): (u32, &DeviceInfo)| {
        let count = |kind| counts.get(&(device.name.clone(), kind)).copied().unwrap_or(0);
        let head = Head::Index(index, device.name.clone());
        KINDS.into_iter().fold(Row::new(head), |row, kind| row.number(kind, count(kind)))
    };
    Ok(rows::find(&devices, which)?.into_iter().map(row).collect())
}

pub const fn kind_of(table: Table) -> &'static str {
    match table {
        Table::Context => "ctx",
        Table::Pd => "pd",
        Table::Cq => "cq",
        Table::Srq => "srq",
        Table::Mr => "mr",
        Table::Qp => "qp",
    }
}

fn list(
    broker: &mut Observer,
    kind: &str,
    devices: &[DeviceInfo],
    selection: &Selection,
) -> Result<Vec<Row>> {
    if kind == "cm_id" {
        let rows = cm_ids(broker, devices)?;
        let wanted = |(device, row): &(String, Row)| selection.has_device(device) && selection.takes(row);
        return Ok(rows.into_iter().filter(wanted).map(|(_, row)| row).collect());
    }
    let mut found = Vec::new();
    for (program, ledger) in broker.ledgers()? {
        let program = Program { entry: &program, blocks: ledger.devices()?, ledger: &ledger, devices };
        let Some(table) = Table::ALL.into_iter().find(|table| kind_of(*table) == kind) else { break };
        let users = program.users(table)?;
        for record in ledger.records(table)? {
            let row = program.row(table, &record, users.get(&record.number).copied().unwrap_or(0));
            found.extend(row.filter(|(device, row)| selection.has_device(device) && selection.takes(row)));
        }
    }
    Ok(found.into_iter().map(|(_, row)| row).collect())
}

/// Bound ids and connections, each at the device with its address; those of the wildcard address at the
/// first.
fn cm_ids(broker: &mut Observer, devices: &[DeviceInfo]) -> Result<Vec<(String, Row)>> {
    let ids = broker.cm_ids()?;
    let programs: Vec<LeaseEntry> = if ids.is_empty() { Vec::new() } else { broker.status()?.programs };
    let mut rows = Vec::new();
    for id in ids {
        let has = |device: &DeviceInfo| {
            // Ids at iWARP devices have ports of TCP, and the broker does not know these.
            let wildcard = id.local.ip().is_unspecified() && !device.is_iwarp();
            wildcard || device.gids.iter().any(|entry| entry.gid.to_ip() == id.local.ip())
        };
        let Some(index) = devices.iter().position(has) else { continue };
        let name = devices[index].name.clone();
        let mut row = Row::new(Head::Link(Some(index as u32), name.clone())).number("cm-idn", id.number);
        if id.qpn > 0 {
            row = row.number("lqpn", id.qpn);
        }
        if id.qp_type > 0 {
            row = row.text("qp-type", service_name(id.qp_type.into()));
        }
        row = row.text(
            "state",
            match id.state {
                CmIdState::AddrBound => "ADDR_BOUND",
                CmIdState::Listen => "LISTEN",
                CmIdState::Connect => "CONNECT",
                CmIdState::Disconnect => "DISCONNECT",
            },
        );
        let space = match id.space {
            0x0002 => "IPoIB",
            0x0106 => "TCP",
            0x0111 => "UDP",
            0x013f => "IB",
            _ => "UNKNOWN",
        };
        row = row.text("ps", space);
        if let Some(program) = programs.iter().find(|program| program.slots.contains(&id.slot)) {
            row = row.number("pid", program.pid).text("comm", program.command.clone());
        }
        row = row.text("src-addr", id.local.to_string()).text("dst-addr", id.remote.to_string());
        rows.push((name, row));
    }
    Ok(rows)
}

struct Program<'a> {
    entry: &'a LeaseEntry,
    blocks: Vec<DeviceBlock>,
    ledger: &'a LedgerReader,
    devices: &'a [DeviceInfo],
}

impl Program<'_> {
    /// The number of objects that use each domain or completion queue.
    fn users(&self, table: Table) -> Result<BTreeMap<u32, u64>> {
        let mut users = BTreeMap::new();
        let mut count = |number: u32| *users.entry(number).or_default() += 1;
        let qps =
            if matches!(table, Table::Pd | Table::Cq) { self.ledger.records(Table::Qp)? } else { vec![] };
        match table {
            Table::Cq => qps.iter().for_each(|qp| {
                let QpRecord { parts, .. } = qp.decode();
                count(parts.send_cq);
                count(parts.recv_cq);
            }),
            Table::Pd => {
                qps.iter().for_each(|qp| count(qp.decode::<QpRecord>().parts.pd));
                self.ledger.records(Table::Mr)?.iter().for_each(|mr| count(mr.decode::<MrRecord>().pd));
                self.ledger.records(Table::Srq)?.iter().for_each(|srq| count(srq.decode::<SrqRecord>().pd));
            }
            Table::Context | Table::Srq | Table::Mr | Table::Qp => {}
        }
        Ok(users)
    }

    /// The device's name and the row; `None` if the record has no device.
    fn row(&self, table: Table, record: &Record, users: u64) -> Option<(String, Row)> {
        let name = self.blocks.get(record.block())?.name.clone();
        // The private device of another program is not in our list.
        let index = self.devices.iter().position(|device| device.name == name).unwrap_or(self.devices.len());
        let index = index as u32;
        let row = match table {
            Table::Qp => queue_pair(Row::new(Head::Link(Some(index), name.clone())), &record.decode()),
            Table::Pd => Row::new(Head::Dev(index, name.clone()))
                .number("pdn", record.number)
                .hex("local_dma_lkey", 0_u32)
                .number("users", users)
                .number("ctxn", record.decode::<PdRecord>().context),
            Table::Cq => {
                let cq: CqRecord = record.decode();
                Row::new(Head::Dev(index, name.clone()))
                    .number("cqn", record.number)
                    .number("cqe", cq.cqe)
                    .number("users", users)
                    .text("adaptive-moderation", "off")
                    .number("ctxn", cq.context)
            }
            Table::Srq => {
                let srq: SrqRecord = record.decode();
                let row = Row::new(Head::Dev(index, name.clone())).number("srqn", srq.srqn);
                let row = row.text("type", if srq.is_xrc != 0 { "XRC" } else { "BASIC" });
                let row = row.number("pdn", srq.pd);
                if srq.is_xrc != 0 { row.number("cqn", srq.cq) } else { row }
            }
            Table::Mr => {
                let mr: MrRecord = record.decode();
                Row::new(Head::Dev(index, name.clone()))
                    .number("mrn", record.number)
                    .hex("rkey", mr.rkey)
                    .hex("lkey", mr.lkey)
                    .number("mrlen", mr.length)
                    .number("pdn", mr.pd)
            }
            Table::Context => Row::new(Head::Dev(index, name.clone())).number("ctxn", record.number),
        };
        Some((name, row.number("pid", self.entry.pid).text("comm", self.entry.command.clone())))
    }
}

/// Names of `enum ibv_qp_type`.
pub const fn service_name(code: u16) -> &'static str {
    match code {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_INI",
        10 => "XRC_TGT",
        _ => "UNKNOWN",
    }
}

/// Names of `enum ibv_qp_state`.
pub fn state_name(code: u16) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(usize::from(code)).copied().unwrap_or("UNKNOWN")
}

fn queue_pair(row: Row, qp: &QpRecord) -> Row {
    let QpRecord { progress, parts } = qp;
    let service = service_name(progress.service);
    let connected = matches!(service, "RC" | "UC" | "XRC_INI" | "XRC_TGT");
    let state = state_name(progress.state);
    let row = row.number("lqpn", progress.qpn);
    let row = if connected { row.number("rqpn", progress.remote_qpn) } else { row };
    let row = row.text("type", service).text("state", state);
    let row = if connected { row.number("rq-psn", progress.psns.rq_psn) } else { row };
    let row = row.number("sq-psn", progress.psns.sq_psn);
    let row = if connected { row.text("path-mig-state", "MIGRATED") } else { row };
    row.number("pdn", parts.pd)
}
