//! A look at all devices and programs, for commands that show more than one object.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use ferroce_ipc::LeaseEntry;
use ferroce_ipc::ledger::{DeviceBlock, Record, Table};
use rustix::param::clock_ticks_per_second;

use crate::broker::{Observer, Overview};

/// A connection to the broker that is made again when the broker has ended. An open connection also keeps
/// the broker, and so the counters.
#[derive(Default)]
pub struct Watch(Option<Observer>);

pub struct Look {
    pub at: Instant,
    pub overview: Overview,
    /// The running programs, in the order of their slots.
    pub programs: Vec<Program>,
}

pub struct Program {
    pub lease: LeaseEntry,
    /// The devices that the program used, with its counters.
    pub devices: Vec<DeviceBlock>,
    /// The number of objects by block of the device and kind.
    pub objects: BTreeMap<(usize, Table), u32>,
    pub queue_pairs: Vec<Record>,
    /// The processor time of the process, if it is visible here.
    pub cpu: Option<Duration>,
}

impl Watch {
    /// Asks the broker, and if that fails the one that runs now.
    pub fn ask<T>(&mut self, question: impl Fn(&mut Observer) -> Result<T>) -> Result<T> {
        if let Some(broker) = &mut self.0
            && let Ok(answer) = question(broker)
        {
            return Ok(answer);
        }
        self.0 = None;
        let mut broker = Observer::new()?;
        let answer = question(&mut broker)?;
        self.0 = Some(broker);
        Ok(answer)
    }
}

impl Look {
    pub fn at(broker: &mut Observer) -> Result<Self> {
        let devices = broker.devices()?;
        let mut overview = broker.overview(devices.iter().map(|device| &*device.name))?;
        // The broker takes a limited number of questions at once.
        for device in &devices {
            if !overview.counters.contains_key(&device.name)
                && let Ok(counters) = broker.statistics(&device.name)
            {
                overview.counters.insert(device.name.clone(), counters);
            }
        }
        let mut programs = Vec::new();
        for (lease, ledger) in broker.ledgers()? {
            programs.push(Program {
                devices: ledger.devices()?,
                objects: ledger.counts()?,
                queue_pairs: ledger.records(Table::Qp)?,
                cpu: cpu(&lease),
                lease,
            });
        }
        Ok(Self { at: Instant::now(), overview, programs })
    }
}

/// The processor time of a program. A process of another name is not the program: the broker may be of
/// another pid namespace.
fn cpu(program: &LeaseEntry) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid)).ok()?;
    let (name, ticks) = name_and_ticks(&stat)?;
    let per_second = clock_ticks_per_second();
    (name == program.command).then(|| Duration::from_millis(ticks * 1000 / per_second))
}

/// The name and the processor time of `/proc/PID/stat`: fields 2, 14 and 15 of proc(5). A name may have
/// spaces and brackets.
fn name_and_ticks(stat: &str) -> Option<(&str, u64)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let fields: Vec<u64> = rest.split(' ').skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    (fields.len() == 2).then(|| (name, fields.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_found_behind_any_name() {
        let stat = "4711 (a) (b) S 1 4711 4711 0 -1 4194560 100 0 0 0 17 25 3 4 20 0 1 0 99\n";
        assert_eq!(name_and_ticks(stat), Some(("a) (b", 42)));
        assert_eq!(name_and_ticks("4711 (a) S 1"), None);
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(name_and_ticks(&stat).is_some(), "{stat}");
    }
}
