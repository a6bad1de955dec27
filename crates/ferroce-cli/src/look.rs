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
pub mod tests {
    use ferroce_ipc::ledger::Totals;
    use ferroce_ipc::{ResourceCounts, Status};

    use super::*;
    use crate::rows::tests::device;

    /// A device, and a program that uses it.
    pub fn look() -> Look {
        let named = |value: u64| {
            Totals::default().named().iter().map(|(name, _)| ((*name).to_owned(), value)).collect()
        };
        let lease = LeaseEntry {
            pid: 18,
            uid: 1000,
            command: "ib_\"x\"".to_owned(),
            slots: vec![16, 17],
            resources: ResourceCounts::default(),
        };
        let status = Status {
            broker_pid: 17,
            broker_uid: 1000,
            group_size: 3,
            groups: 2,
            adopted: false,
            build: "0.1.0".to_owned(),
            programs: vec![lease.clone()],
            cm: Box::default(),
        };
        let mut totals = Totals::default();
        totals.transport[0] = 5;
        totals.device.iter_mut().for_each(|value| *value = 7);
        let block =
            |block| DeviceBlock { block, id: block as u32, name: "fr0".to_owned(), totals: totals.clone() };
        Look {
            at: Instant::now(),
            overview: Overview {
                devices: vec![device("fr0", "lo", true)],
                status,
                counters: BTreeMap::from([("fr0".to_owned(), named(3))]),
            },
            programs: vec![Program {
                lease,
                // The device was removed and added again.
                devices: vec![block(0), block(1)],
                objects: BTreeMap::from([((0, Table::Qp), 2), ((1, Table::Qp), 1)]),
                queue_pairs: Vec::new(),
                cpu: Some(Duration::from_millis(1250)),
            }],
        }
    }

    #[test]
    fn the_time_of_a_process_is_found_behind_any_name() {
        let stat = "4711 (a) (b) S 1 4711 4711 0 -1 4194560 100 0 0 0 17 25 3 4 20 0 1 0 99\n";
        assert_eq!(name_and_ticks(stat), Some(("a) (b", 42)));
        assert_eq!(name_and_ticks("4711 (a) S 1"), None);
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(name_and_ticks(&stat).is_some(), "{stat}");
    }
}
