//! The broker `ferroced` of this network namespace: found, or started.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferroce_client::{BrokerError, Starter};
use ferroce_host::environment;
use ferroce_ipc::ledger::LedgerReader;
use ferroce_ipc::trust::Files;
use ferroce_ipc::{
    BROKER_NAME, Client, CmIdEntry, DeviceInfo, FaultOrder, FaultReport, LeaseEntry, Message, Peer, Refusal,
    Setting, Status,
};

/// Time limit for each answer to a question.
const LIMIT: Duration = Duration::from_secs(2);
/// Time limit for a change, and for a greeting before it, while an earlier change may go on: on a busy
/// machine the kernel takes seconds to attach or detach AF_XDP, and a driver of DPDK may start a card.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a program's answer to an order: longer than the broker waits.
const ORDER_LIMIT: Duration = Duration::from_secs(5);
/// Orders that wait for their answers at once.
const MOST_ORDERS: usize = 32;

/// Asks the broker, and returns the part of the answer that `wanted` takes.
fn ask<T>(client: &mut Client, question: &Message, wanted: fn(Message) -> Option<T>) -> Result<T> {
    let (answer, _) = client.request(question, LIMIT)?;
    wanted(answer).with_context(|| format!("ferroced answered {question:?} with another message"))
}

/// The devices that a program started here sees.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    Observer::new()?.devices()
}

/// The state of a running broker, and its devices.
pub fn status() -> Result<(Status, Vec<DeviceInfo>)> {
    let mut broker = Observer::without_view()?;
    let devices = broker.devices()?;
    Ok((broker.status()?, devices))
}

/// Ends the running broker, and waits for its exit. Returns its process id, or `None` if no broker runs.
pub fn stop(force: bool) -> Result<Option<u32>> {
    let mut client = match Client::connect(BROKER_NAME, "", LIMIT) {
        Err(error) if error.is_leaving() => return Ok(None),
        other => other?,
    };
    let pid = client.peer().pid;
    ask(&mut client, &Message::Stop { force }, |answer| matches!(answer, Message::Done).then_some(()))?;
    match client.more(LIMIT) {
        Err(error) if error.is_leaving() => Ok(Some(pid)),
        _ => bail!("ferroced, process {pid}, has not exited after the request to stop"),
    }
}

/// The running broker, and its devices.
pub fn running() -> Result<(Peer, Vec<DeviceInfo>)> {
    let mut broker = Observer::of_running()?;
    let devices = broker.devices()?;
    Ok((broker.0.peer(), devices))
}

/// A connection for questions, and for orders about faults to running programs.
pub struct Observer(Client);

/// Answers to questions that were asked together.
pub struct Overview {
    /// The devices that a program started here sees.
    pub devices: Vec<DeviceInfo>,
    pub status: Status,
    /// The counters of each device that was named and is still there, summed over all programs.
    pub counters: BTreeMap<String, Vec<(String, u64)>>,
}

impl Observer {
    /// Finds or starts the broker.
    pub fn new() -> Result<Self> {
        connect(LIMIT).map(Self)
    }

    /// As [`Self::new`], but starts no broker.
    pub fn of_running() -> Result<Self> {
        let netdev = environment::text("FERROCE_NETDEV").unwrap_or_default();
        Ok(Self(connect_to_running(&netdev)?))
    }

    /// As [`Self::of_running`], without the device that `FERROCE_NETDEV` asks for.
    pub fn without_view() -> Result<Self> {
        connect_to_running("").map(Self)
    }

    pub fn status(&mut self) -> Result<Status> {
        ask(&mut self.0, &Message::GetStatus, |answer| {
            if let Message::Status(status) = answer { Some(status) } else { None }
        })
    }

    /// The devices that a program started here sees.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>> {
        ask(&mut self.0, &Message::ListDevices, |answer| {
            if let Message::Devices(devices) = answer { Some(devices) } else { None }
        })
    }

    /// The counters of a device, summed over all programs.
    pub fn statistics(&mut self, device: &str) -> Result<Vec<(String, u64)>> {
        ask(&mut self.0, &Message::GetStatistics(device.to_owned()), |answer| {
            if let Message::Statistics(counters) = answer { Some(counters) } else { None }
        })
    }

    /// Asks for everything that changes the files of devices, in one go: the broker wakes up once.
    pub fn overview<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Result<Overview> {
        let (mut devices, mut status, mut counters) = (None, None, BTreeMap::new());
        let mut asked = BTreeMap::new();
        let questions = [(None, Message::ListDevices), (None, Message::GetStatus)]
            .into_iter()
            .chain(names.map(|name| (Some(name), Message::GetStatistics(name.to_owned()))));
        for (name, question) in questions {
            match self.0.send(&question, &[]) {
                Ok(id) => drop(asked.insert(id, name)),
                // So many devices do not fit at once; the caller asks for each that is left.
                Err(error) if error.kind() == ErrorKind::WouldBlock && name.is_some() => break,
                Err(error) => return Err(error).context("cannot talk to ferroced"),
            }
        }
        while !asked.is_empty() {
            let (id, message, _) = self.0.next(LIMIT)?;
            let Some(name) = asked.remove(&id) else {
                match message {
                    Message::Refused(refusal) if id == 0 => return Err(refusal.into()),
                    _ => continue,
                }
            };
            match (message, name) {
                (Message::Devices(all), None) => devices = Some(all),
                (Message::Status(now), None) => status = Some(now),
                (Message::Statistics(of_device), Some(name)) => {
                    counters.insert(name.to_owned(), of_device);
                }
                // The device was removed meanwhile.
                (Message::Refused(_), Some(_)) => {}
                (Message::Refused(refusal), None) => return Err(refusal.into()),
                (other, _) => bail!("ferroced answered a question with {other:?}"),
            }
        }
        let (devices, status) = devices.zip(status).context("ferroced answered a question twice")?;
        Ok(Overview { devices, status, counters })
    }

    /// Bound ids and connections of all programs.
    pub fn cm_ids(&mut self) -> Result<Vec<CmIdEntry>> {
        let mut found = Vec::new();
        loop {
            let (ids, more) = ask(&mut self.0, &Message::GetCmIds(found.len() as u32), |answer| {
                if let Message::CmIds { ids, more } = answer { Some((ids, more)) } else { None }
            })?;
            let more = more && !ids.is_empty();
            found.extend(ids);
            if !more {
                return Ok(found);
            }
        }
    }

    /// The programs that hold slots, with their ledgers.
    pub fn ledgers(&mut self) -> Result<Vec<(LeaseEntry, LedgerReader)>> {
        self.ledgers_by(&Message::GetLedgers)
    }

    /// Programs that ended lately, with their ledgers.
    pub fn ended_ledgers(&mut self) -> Result<Vec<(LeaseEntry, LedgerReader)>> {
        self.ledgers_by(&Message::GetEndedLedgers)
    }

    fn ledgers_by(&mut self, question: &Message) -> Result<Vec<(LeaseEntry, LedgerReader)>> {
        let count = ask(&mut self.0, question, |answer| {
            if let Message::Ledgers(count) = answer { Some(count) } else { None }
        })?;
        let mut found = Vec::new();
        for _ in 0..count {
            match self.0.more(LIMIT)? {
                (Message::LedgerOf(program), files) => {
                    // An invalid ledger is skipped.
                    let ledger = files.into_iter().next().and_then(|file| LedgerReader::new(file).ok());
                    found.extend(ledger.map(|ledger| (program, ledger)));
                }
                (other, _) => bail!("ferroced answered a request for programs with {other:?}"),
            }
        }
        found.sort_by_key(|(program, _)| program.slots.first().copied());
        Ok(found)
    }

    /// Gives all programs the same order, and returns their answers in the order of the programs.
    pub fn order(
        &mut self,
        programs: &[LeaseEntry],
        order: &FaultOrder,
    ) -> Result<Vec<Result<FaultReport, Refusal>>> {
        let mut answers: Vec<Option<Result<FaultReport, Refusal>>> = vec![None; programs.len()];
        let mut left: VecDeque<usize> = (0..programs.len()).collect();
        let mut open = BTreeMap::new();
        while !(left.is_empty() && open.is_empty()) {
            while let Some(index) = left.front().copied().filter(|_| open.len() < MOST_ORDERS) {
                let (slot, pid) = (programs[index].slots.first().copied().unwrap_or(0), programs[index].pid);
                match self.0.send(&Message::FaultRequest { slot, pid, order: order.clone() }, &[]) {
                    Ok(id) => {
                        open.insert(id, index);
                        left.pop_front();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock && !open.is_empty() => break,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.0.wait_writable(ORDER_LIMIT)?;
                    }
                    Err(error) => return Err(error).context("cannot talk to ferroced"),
                }
            }
            let (id, message, _) = self.0.next(ORDER_LIMIT)?;
            let Some(index) = open.remove(&id) else {
                match message {
                    Message::Refused(refusal) if id == 0 => return Err(refusal.into()),
                    _ => continue,
                }
            };
            answers[index] = Some(match message {
                Message::FaultReport { result: Ok(report), .. } => Ok(report),
                Message::Refused(refusal) => Err(refusal),
                other => bail!("ferroced answered an order with {other:?}"),
            });
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// Sends a request; the broker answers with success or an error.
pub fn send(message: &Message) -> Result<()> {
    match connect(CHANGE_LIMIT)?.request(message, CHANGE_LIMIT)? {
        (Message::Done, _) => Ok(()),
        (other, _) => bail!("ferroced answered a request with {other:?}"),
    }
}

pub fn set(name: &str, settings: Vec<Setting>, transient: bool, force: bool) -> Result<()> {
    let message = Message::LinkSet { name: name.to_owned(), settings, transient, force };
    send(&message)
}

/// Starts a broker if none runs, unless `FERROCE_BROKER` says that the program has its own, or that none is
/// to be started.
pub fn ensure() -> Result<()> {
    match environment::text("FERROCE_BROKER").as_deref() {
        Some("embedded" | "none") => Ok(()),
        _ => connect(LIMIT).map(drop),
    }
}

/// Connects to a running broker.
fn connect_to_running(netdev: &str) -> Result<Client> {
    ferroce_client::connect_to_running(netdev, LIMIT).map_err(plain)
}

/// Connects to the broker, or starts one if none runs.
fn connect(limit: Duration) -> Result<Client> {
    let netdev = environment::text("FERROCE_NETDEV").unwrap_or_default();
    match ferroce_client::connect_to_running(&netdev, limit) {
        Err(BrokerError::Client(error)) if error.is_leaving() => {}
        done => return done.map_err(plain),
    }
    ferroce_client::connect_or_start(&Starter::of(program()?)).map_err(plain)
}

/// The error that the broker, or its start, had.
fn plain(error: BrokerError) -> anyhow::Error {
    match error {
        BrokerError::Client(error) => error.into(),
        BrokerError::Spawn(error) => error.into(),
        other => other.into(),
    }
}

/// The broker beside this program, if no other user can have put it there.
pub fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("/proc/self/exe")?;
    let beside = own.with_file_name("ferroced");
    Files::new(Some(&own))
        .program(&beside, own.parent())
        .with_context(|| format!("{} cannot be executed", beside.display()))
}
