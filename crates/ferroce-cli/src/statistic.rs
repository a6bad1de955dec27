//! `ferroce statistic`: counters of devices and of queue pairs.

use std::time::{Duration, Instant};

use anyhow::Result;
use ferroce_ipc::ledger::records::QpProgress;
use ferroce_ipc::ledger::{RXE_COUNTERS, TRANSPORT_COUNTERS, Table};

use crate::args::{StatisticCommand, Style};
use crate::broker::Observer;
use crate::look::Watch;
use crate::row::{Head, Row};
use crate::rows;
use crate::select::Selection;

pub fn run(command: &StatisticCommand, every: Option<Duration>, style: Style) -> Result<()> {
    let look = |broker: &mut Observer| match command {
        StatisticCommand::Show { words } => devices(broker, words, style.details),
        StatisticCommand::Qp { words } => queue_pairs(broker, words),
    };
    match every {
        None => rows::print(&look(&mut Observer::new()?)?, style),
        Some(every) => watch(look, every, style),
    }
}

/// Prints rates until nobody reads them.
fn watch(look: impl Fn(&mut Observer) -> Result<Vec<Row>>, every: Duration, style: Style) -> Result<()> {
    let mut broker = Watch::default();
    let (mut before, mut at) = (broker.ask(&look)?, Instant::now());
    loop {
        std::thread::sleep(every);
        let (now, then) = (broker.ask(&look)?, std::mem::replace(&mut at, Instant::now()));
        let seconds = (at - then).as_secs_f64();
        let rates = Row::rates(&now, &before, seconds, is_counter);
        if !rows::write_more(&rows::text(&rates, style)?)? {
            return Ok(());
        }
        before = now;
    }
}

/// Whether a key is a counter, and not a part of the name of the row's object.
fn is_counter(key: &str) -> bool {
    !matches!(key, "lqpn" | "pid")
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
