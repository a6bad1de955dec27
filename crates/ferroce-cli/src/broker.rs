//! The broker `ferroced` of this network namespace: found, or started.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferroce_ipc::ledger::LedgerReader;
use ferroce_ipc::trust::Files;
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, CmIdEntry, DeviceInfo, LeaseEntry, MINOR_LEDGER, MINOR_NETDEVS,
    MINOR_SETTINGS, MINOR_STOP, Message, NetdevInfo, Peer, Setting, Status,
};

/// How long the broker may take to start, or for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The devices that a program started here would see.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    match connect()?.request(&Message::ListDevices, LIMIT)? {
        (Message::Devices(devices), _) => Ok(devices),
        (other, _) => bail!("ferroced answered a question for devices with {other:?}"),
    }
}

/// What a broker that runs already does, and its devices.
pub fn status() -> Result<(Status, Vec<DeviceInfo>)> {
    let mut client = connect_to_running("")?;
    let devices = match client.request(&Message::ListDevices, LIMIT)? {
        (Message::Devices(devices), _) => devices,
        (other, _) => bail!("ferroced answered a question for devices with {other:?}"),
    };
    match client.request(&Message::GetStatus, LIMIT)? {
        (Message::Status(status), _) => Ok((status, devices)),
        (other, _) => bail!("ferroced answered a question for its state with {other:?}"),
    }
}

/// Ends the broker that runs, and waits until it has ended: its process id, or `None` if there is none.
pub fn stop(force: bool) -> Result<Option<u32>> {
    let mut client = match Client::connect(BROKER_NAME, "", LIMIT) {
        Err(error) if error.is_leaving() => return Ok(None),
        other => other?,
    };
    let (pid, broker) = (client.peer().pid, client.broker());
    ensure!(
        broker.minor >= MINOR_STOP,
        "the ferroced that runs ({}) is older than this command: kill {pid}",
        broker.build
    );
    match client.request(&Message::Stop { force }, LIMIT)? {
        (Message::Done, _) => {}
        (other, _) => bail!("ferroced answered a request with {other:?}"),
    }
    match client.more(LIMIT) {
        Err(error) if error.is_leaving() => Ok(Some(pid)),
        _ => bail!("ferroced, process {pid}, was told to end and has not yet"),
    }
}

/// The broker that runs already, and its devices.
pub fn running() -> Result<(Peer, Vec<DeviceInfo>)> {
    let netdev = std::env::var("FERROCE_NETDEV").unwrap_or_default();
    let mut client = connect_to_running(&netdev)?;
    match client.request(&Message::ListDevices, LIMIT)? {
        (Message::Devices(devices), _) => Ok((client.peer(), devices)),
        (other, _) => bail!("ferroced answered a question for devices with {other:?}"),
    }
}

/// A greeted connection to ask about counters and objects.
pub struct Observer(Client);

impl Observer {
    /// Finds or starts the broker.
    pub fn new() -> Result<Self> {
        let client = connect()?;
        ensure!(client.broker().minor >= MINOR_LEDGER, "ferroced is older than this command and cannot tell");
        Ok(Self(client))
    }

    /// As [`Self::new`], but starts none.
    pub fn of_running() -> Result<Self> {
        let netdev = std::env::var("FERROCE_NETDEV").unwrap_or_default();
        Ok(Self(connect_to_running(&netdev)?))
    }

    /// What the broker does.
    pub fn status(&mut self) -> Result<Status> {
        match self.0.request(&Message::GetStatus, LIMIT)? {
            (Message::Status(status), _) => Ok(status),
            (other, _) => bail!("ferroced answered a question for its state with {other:?}"),
        }
    }

    /// The devices that a program started here would see.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>> {
        match self.0.request(&Message::ListDevices, LIMIT)? {
            (Message::Devices(devices), _) => Ok(devices),
            (other, _) => bail!("ferroced answered a question for devices with {other:?}"),
        }
    }

    /// What a device counted in all programs.
    pub fn statistics(&mut self, device: &str) -> Result<Vec<(String, u64)>> {
        match self.0.request(&Message::GetStatistics(device.to_owned()), LIMIT)? {
            (Message::Statistics(counters), _) => Ok(counters),
            (other, _) => bail!("ferroced answered a question for counters with {other:?}"),
        }
    }

    /// Binds and connections of all programs.
    pub fn cm_ids(&mut self) -> Result<Vec<CmIdEntry>> {
        let mut found = Vec::new();
        loop {
            match self.0.request(&Message::GetCmIds(found.len() as u32), LIMIT)? {
                (Message::CmIds { ids, more }, _) => {
                    let more = more && !ids.is_empty();
                    found.extend(ids);
                    if !more {
                        return Ok(found);
                    }
                }
                (other, _) => bail!("ferroced answered a question for connections with {other:?}"),
            }
        }
    }

    /// The programs that hold slots, with their ledgers.
    pub fn ledgers(&mut self) -> Result<Vec<(LeaseEntry, LedgerReader)>> {
        let count = match self.0.request(&Message::GetLedgers, LIMIT)? {
            (Message::Ledgers(count), _) => count,
            (other, _) => bail!("ferroced answered a question for programs with {other:?}"),
        };
        let mut found = Vec::new();
        for _ in 0..count {
            match self.0.more(LIMIT)? {
                (Message::LedgerOf(program), files) => {
                    // One that is none shows nothing.
                    let ledger = files.into_iter().next().and_then(|file| LedgerReader::new(file).ok());
                    found.extend(ledger.map(|ledger| (program, ledger)));
                }
                (other, _) => bail!("ferroced answered a question for programs with {other:?}"),
            }
        }
        found.sort_by_key(|(program, _)| program.slots.first().copied());
        Ok(found)
    }
}

/// A request that is answered by "done" or a refusal.
pub fn tell(message: &Message) -> Result<()> {
    match connect()?.request(message, LIMIT)? {
        (Message::Done, _) => Ok(()),
        (other, _) => bail!("ferroced answered a request with {other:?}"),
    }
}

/// Changes settings of a device.
pub fn set(name: &str, settings: Vec<Setting>, transient: bool, force: bool) -> Result<()> {
    let message = Message::LinkSet { name: name.to_owned(), settings, transient, force };
    tell_since(MINOR_SETTINGS, &message)
}

/// A request that brokers before minor version `minor` do not know, and so would not answer.
pub fn tell_since(minor: u16, message: &Message) -> Result<()> {
    match connect_since(minor)?.request(message, LIMIT)? {
        (Message::Done, _) => Ok(()),
        (other, _) => bail!("ferroced answered a request with {other:?}"),
    }
}

/// The network interfaces as the broker sees them.
pub fn netdevs() -> Result<Vec<NetdevInfo>> {
    match connect_since(MINOR_NETDEVS)?.request(&Message::ListNetdevs, LIMIT)? {
        (Message::Netdevs(netdevs), _) => Ok(netdevs),
        (other, _) => bail!("ferroced answered a question for interfaces with {other:?}"),
    }
}

fn connect_since(minor: u16) -> Result<Client> {
    let client = connect()?;
    let broker = client.broker();
    if broker.minor < minor {
        bail!(
            "the ferroced that runs ({}) is older than this program: end it, so that a new one starts",
            broker.build
        );
    }
    Ok(client)
}

/// Makes sure that one runs, unless `FERROCE_BROKER` says that the program has its own or wants none started.
pub fn ensure() -> Result<()> {
    match std::env::var("FERROCE_BROKER").as_deref() {
        Ok("embedded" | "none") => Ok(()),
        _ => connect().map(drop),
    }
}

/// A greeted connection to a broker that runs already. If the broker exits while it is greeted, another look finds its
/// successor, or none.
fn connect_to_running(netdev: &str) -> Result<Client, ClientError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match Client::connect(BROKER_NAME, netdev, LIMIT) {
            Err(error)
                if error.is_leaving()
                    && !matches!(error, ClientError::NoBroker)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// A greeted connection. A broker that is just leaving is met with a new one.
fn connect() -> Result<Client> {
    let netdev = std::env::var("FERROCE_NETDEV").unwrap_or_default();
    let deadline = Instant::now() + LIMIT;
    loop {
        match Client::connect(BROKER_NAME, &netdev, LIMIT) {
            Err(error) if error.is_leaving() && Instant::now() < deadline => start()?,
            done => return Ok(done?),
        }
    }
}

/// `ferroced --detach` says `ready`, or a sentence why not, and ends; what it leaves running has nothing of ours.
fn start() -> Result<()> {
    let program = program()?;
    let null = || ferroce_ipc::null_stream().map(Stdio::from);
    let mut child = Command::new(&program)
        .arg("--detach")
        .stdin(null()?)
        .stdout(Stdio::piped())
        .stderr(null()?)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    match said.trim() {
        "ready" => Ok(()),
        "" => bail!("{} ended without a word: {status}", program.display()),
        sentence => bail!("{sentence}"),
    }
}

/// Beside this program, if strangers cannot have put it there.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("/proc/self/exe")?;
    let beside = own.with_file_name("ferroced");
    Files::new(Some(&own))
        .program(&beside, own.parent())
        .with_context(|| format!("{} cannot be executed", beside.display()))
}
