//! `ferroce statistic`: counters of devices and of queue pairs.

use anyhow::Result;
use ferroce_ipc::ledger::records::QpProgress;
use ferroce_ipc::ledger::{RXE_COUNTERS, TRANSPORT_COUNTERS, Table};

use crate::args::{StatisticCommand, Style};
use crate::broker::Observer;
use crate::row::{Head, Row};
use crate::rows;
use crate::select::Selection;

pub fn run(command: StatisticCommand, style: Style) -> Result<()> {
    let mut broker = Observer::new()?;
    let rows = match command {
        StatisticCommand::Show { words } => devices(&mut broker, &words, style.details)?,
        StatisticCommand::Qp { words } => queue_pairs(&mut broker, &words)?,
    };
    rows::print(&rows, style)
}

/// A row for each device: the counters of rxe, with `all` ferroce's own as well.
fn devices(broker: &mut Observer, words: &[String], all: bool) -> Result<Vec<Row>> {
    let selection = Selection::parse(words, &[])?;
    let devices = broker.devices()?;
    let mut found = Vec::new();
    for (_, device) in rows::find(&devices, selection.device.as_deref())? {
        let mut row = Row::new(Head::Link(None, device.name.clone()));
        for (name, value) in broker.statistics(&device.name)? {
            if all || RXE_COUNTERS.contains(&&*name) {
                row = row.number(&name, value);
            }
        }
        found.push(row);
    }
    Ok(found)
}

/// A row for each queue pair.
fn queue_pairs(broker: &mut Observer, words: &[String]) -> Result<Vec<Row>> {
    let words =
        if words.first().is_some_and(|word| "show".starts_with(&**word)) { &words[1..] } else { words };
    let selection = Selection::parse(words, &["lqpn", "pid", "comm"])?;
    let devices = broker.devices()?;
    rows::find(&devices, selection.device.as_deref())?;
    let mut found = Vec::new();
    for (program, ledger) in broker.ledgers()? {
        let blocks = ledger.devices()?;
        for record in ledger.records(Table::Qp)? {
            let Some(block) = blocks.get(record.block()) else { continue };
            if !selection.has_device(&block.name) {
                continue;
            }
            let mut row = Row::new(Head::Link(None, block.name.clone()))
                .number("lqpn", record.decode::<QpProgress>().qpn)
                .number("pid", program.pid)
                .text("comm", program.command.clone());
            for (name, count) in TRANSPORT_COUNTERS.iter().zip(record.counters()) {
                row = row.number(name, *count);
            }
            found.extend(selection.takes(&row).then_some(row));
        }
    }
    Ok(found)
}
