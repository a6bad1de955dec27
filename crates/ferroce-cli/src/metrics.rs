//! `ferroce metrics`: all counters in the text of OpenMetrics 1.0, printed once or served.

mod server;
mod text;

use std::sync::Mutex;

use anyhow::Result;
use ferroce_ipc::CmStatus;
use ferroce_ipc::ledger::Table;

use crate::args::{MetricsArgs, Style};
use crate::look::{Look, Program, Watch};
use crate::resource::kind_of;
use crate::rows;
use crate::usage::Usage;

use text::{Kind, Metrics};

pub fn run(args: &MetricsArgs, style: Style) -> Result<()> {
    if style.json || style.pretty || style.details {
        return Err(Usage("`ferroce metrics` has one format, and no option -d, -j or -p".to_owned()).into());
    }
    let watch = Mutex::new(Watch::default());
    let now = move || {
        let mut watch = watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(metrics(&watch.ask(Look::at)?).to_string())
    };
    match &args.listen {
        Some(address) => server::serve(address, now),
        None => rows::write_text(&now()?),
    }
}

fn metrics(look: &Look) -> Metrics {
    let mut all = Metrics::default();
    let overview = &look.overview;
    for device in &overview.devices {
        let labels = [
            ("device", &*device.name),
            ("port", "1"),
            ("netdev", &*device.netdev),
            ("type", device.kind.name()),
        ];
        let help = "Whether the port of the device is active.";
        all.add("ferroce_device_active", Kind::Gauge, help, &labels, f64::from(u8::from(device.port_active)));
    }
    for (device, counters) in &overview.counters {
        for (name, value) in counters {
            count(&mut all, "device", name, &[("device", device), ("port", "1")], *value);
        }
    }
    look.programs.iter().for_each(|program| of_program(&mut all, program));
    let status = &overview.status;
    let labels = [("build", &*status.build), ("pid", &status.broker_pid.to_string())];
    all.add("ferroce_broker", Kind::Info, "The broker of this network namespace.", &labels, 1.0);
    let programs = status.programs.len() as f64;
    all.add("ferroce_programs", Kind::Gauge, "Programs that have a device open.", &[], programs);
    of_connections(&mut all, &status.cm);
    all
}

fn of_program(all: &mut Metrics, program: &Program) {
    let (pid, slot) =
        (program.lease.pid.to_string(), program.lease.slots.first().copied().unwrap_or(0).to_string());
    // Several programs may have no pid that the broker sees; a slot belongs to one program.
    let own = [("pid", &*pid), ("comm", &*program.lease.command), ("slot", &*slot)];
    for block in &program.devices {
        let labels = [&[("device", &*block.name), ("port", "1")][..], &own].concat();
        for (name, value) in block.totals.named() {
            count(all, "program", name, &labels, value);
        }
        for table in Table::ALL {
            let objects = program.objects.get(&(block.block, table)).copied().unwrap_or(0);
            let labels = [&labels[..], &[("kind", kind_of(table))]].concat();
            let help = "Objects of the program, by their kinds in `ferroce resource show`.";
            all.add("ferroce_program_objects", Kind::Gauge, help, &labels, objects.into());
        }
    }
    if let Some(cpu) = program.cpu {
        let help = "Processor time of the program, of user and system together.";
        all.add("ferroce_program_cpu_seconds", Kind::Counter, help, &own, cpu.as_secs_f64());
    }
}

/// Adds a counter of `ferroce statistic`.
fn count(all: &mut Metrics, of: &str, name: &str, labels: &[(&str, &str)], value: u64) {
    let unit = name.strip_suffix("_octets").map(|stem| format!("{stem}_bytes"));
    let metric = format!("ferroce_{of}_{}", unit.as_deref().unwrap_or(name));
    let help = format!("{name} of `ferroce -d statistic show`.");
    all.add(&metric, Kind::Counter, &help, labels, value as f64);
}

fn of_connections(all: &mut Metrics, cm: &CmStatus) {
    let objects = [
        ("connections", "Connections, with those in time-wait.", cm.connections),
        ("listeners", "Listeners of connection management.", cm.listeners),
        ("ports", "Bound ports of connection management.", cm.ports),
        ("sidr_requests", "Pending SIDR requests.", cm.sidr_requests),
    ];
    for (name, help, value) in objects {
        all.add(&format!("ferroce_cm_{name}"), Kind::Gauge, help, &[], value.into());
    }
    let counters = &cm.counters;
    let messages = [
        ("rx_msgs", "Messages of connection management that were received.", &counters.rx_msgs.0),
        (
            "rx_duplicates",
            "Messages of connection management that were received again.",
            &counters.rx_duplicates.0,
        ),
        ("tx_msgs", "Messages of connection management that were sent.", &counters.tx_msgs.0),
        ("tx_retries", "Messages of connection management that were sent again.", &counters.tx_retries.0),
    ];
    for (name, help, values) in messages {
        for (message, value) in CmStatus::MESSAGES.into_iter().zip(values) {
            all.add(
                &format!("ferroce_cm_{name}"),
                Kind::Counter,
                help,
                &[("message", message)],
                *value as f64,
            );
        }
    }
    for (reason, value) in CmStatus::DROPS.into_iter().zip(counters.drops) {
        let help = "Datagrams of connection management that were dropped.";
        all.add("ferroce_cm_drops", Kind::Counter, help, &[("reason", reason)], value as f64);
    }
}

#[cfg(test)]
mod tests;
