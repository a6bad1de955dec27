//! Finding a broker, or starting one.

use std::io;
use std::time::{Duration, Instant};

use ferroce_ipc::{BROKER_NAME, Client, ClientError, DeviceInfo, EmbedError, Listing, RefusalCode};
use tracing::warn;

use super::spawn::{SpawnError, Starter};
use super::{CONNECT, embed, list};
use ferroce_host::environment;
use ferroce_host::fork::Guarded;

/// The source of the broker: `FERROCE_BROKER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BrokerMode {
    /// `auto`: the one that runs, else `ferroced`, started by us; a thread of this process if `ferroced` is
    /// not found.
    #[default]
    Auto,
    /// `embedded`: the one that runs, else a thread of this process.
    Embedded,
    /// `none`: the one that runs.
    None,
}

impl BrokerMode {
    /// Reads `FERROCE_BROKER`; [`BrokerMode::Auto`] if its value is unknown or missing.
    pub fn from_env() -> Self {
        match environment::text("FERROCE_BROKER").as_deref() {
            Some("embedded") => Self::Embedded,
            Some("none") => Self::None,
            None | Some("auto" | "") => Self::Auto,
            Some(other) => {
                warn!("FERROCE_BROKER is auto, embedded or none, not {other:?}");
                Self::Auto
            }
        }
    }
}

/// How a program looks for its broker.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The source of the broker.
    pub mode: BrokerMode,
    /// The abstract name.
    pub name: String,
    /// An interface to have a device on, empty for none: `FERROCE_NETDEV`.
    pub netdev: String,
    /// Which devices the program lists.
    pub listing: Listing,
}

impl ConnectOptions {
    /// The usual name, and `FERROCE_NETDEV` and `FERROCE_LOOPBACK`.
    pub fn new(mode: BrokerMode) -> Self {
        let netdev = environment::text("FERROCE_NETDEV").unwrap_or_default();
        Self { mode, name: BROKER_NAME.to_owned(), netdev, listing: Listing::from_environment() }
    }
}

/// Why the broker is of no help.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The broker could not be started.
    #[error("cannot start ferroced")]
    Spawn(#[from] SpawnError),
    /// The broker could not be started in this process.
    #[error("cannot run the broker in this process")]
    Embedded(#[from] EmbedError),
    /// The broker cannot be asked, or refused with a sentence of its own.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A descriptor of our own could not be made.
    #[error("out of a resource")]
    Io(#[from] io::Error),
}

impl From<BrokerError> for io::Error {
    fn from(error: BrokerError) -> Self {
        let code = match &error {
            BrokerError::Client(ClientError::Refused(refusal)) => Some(refusal.code),
            _ => None,
        };
        let kind = match (&error, code) {
            (BrokerError::Client(ClientError::Foreign { .. }), _) => io::ErrorKind::PermissionDenied,
            (_, Some(RefusalCode::ForeignUser | RefusalCode::Permission)) => io::ErrorKind::PermissionDenied,
            (_, Some(RefusalCode::PortTaken | RefusalCode::Busy)) => io::ErrorKind::ResourceBusy,
            (_, Some(RefusalCode::UnknownNetdev | RefusalCode::UnknownLink)) => io::ErrorKind::NotFound,
            (_, Some(RefusalCode::Exists)) => io::ErrorKind::AlreadyExists,
            (BrokerError::Client(ClientError::Timeout { .. }), _) => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// For how long a broker that could not start may have lost a race against another one that does.
const RACE: Duration = Duration::from_secs(1);

/// A greeted client of a broker that was there or that was started, and the devices that the broker listed.
///
/// A broker that another program hosts ends with that program, at any moment. The greeting and the list are
/// therefore one attempt: if the broker ends between them, the next broker is asked for both.
pub(super) fn find_or_start(
    options: &ConnectOptions,
    starter: &Starter,
    deadline: Instant,
) -> Result<(Guarded<Client>, Vec<DeviceInfo>), BrokerError> {
    reach(options, Some(starter), deadline, |left| open(options, left))
}

/// A connection for some requests, to the broker that runs. Nobody looks for the next broker when this one
/// ends.
///
/// # Errors
/// [`BrokerError::Client`]: no broker runs, or the one that runs serves this user not, or does not answer for
/// `limit`.
pub fn connect_to_running(netdev: &str, limit: Duration) -> Result<Client, BrokerError> {
    let options = ConnectOptions { netdev: netdev.to_owned(), ..ConnectOptions::new(BrokerMode::None) };
    greet(&options, None, limit)
}

/// A connection for some requests, to the broker that runs or to one that `starter` starts.
///
/// # Errors
/// As [`connect_to_running`]; the broker cannot be started, or is not ready after 10 s.
pub fn connect_or_start(starter: &Starter) -> Result<Client, BrokerError> {
    greet(&ConnectOptions::new(BrokerMode::Auto), Some(starter), CONNECT)
}

fn greet(
    options: &ConnectOptions,
    starter: Option<&Starter>,
    limit: Duration,
) -> Result<Client, BrokerError> {
    let connect = |left| Client::connect(&options.name, &options.netdev, left);
    reach(options, starter, Instant::now() + limit, connect)
}

/// Returns the result of `open` for a broker that was there or that was started. `open` gets the time that is
/// left.
fn reach<T>(
    options: &ConnectOptions,
    starter: Option<&Starter>,
    deadline: Instant,
    mut open: impl FnMut(Duration) -> Result<T, ClientError>,
) -> Result<T, BrokerError> {
    let begun = Instant::now();
    let mut failed = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match open(left.max(Duration::from_millis(10))) {
            Ok(found) => return Ok(found),
            Err(e) if !e.is_leaving() => return Err(e.into()),
            Err(e) if left.is_zero() => return Err(failed.unwrap_or_else(|| e.into())),
            // A broker that is about to exit still holds the name.
            Err(ClientError::NoBroker) => {}
            Err(_) => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
        }
        let started = match options.mode {
            BrokerMode::None => return Err(ClientError::NoBroker.into()),
            BrokerMode::Embedded => embed::start(&options.name).map_err(BrokerError::from),
            BrokerMode::Auto => match starter
                .map_or(Err(SpawnError::NotFound), |starter| starter.start(deadline))
            {
                Err(SpawnError::NotFound) => {
                    let started = embed::start(&options.name).map_err(BrokerError::from);
                    started.inspect(|()| {
                        warn!("ferroced was not found: the broker runs in this process, and ends with it");
                    })
                }
                other => other.map_err(BrokerError::from),
            },
        };
        match started {
            Ok(()) => {}
            Err(
                e @ (BrokerError::Spawn(SpawnError::Said(_)) | BrokerError::Embedded(EmbedError::Taken(_))),
            ) => {
                // The new broker may have lost a race against another one, which is of use to us or just
                // ends.
                failed = Some(e);
                if begun.elapsed() > RACE || Instant::now() > deadline {
                    return Err(failed.unwrap_or_else(|| ClientError::NoBroker.into()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Greets the broker that runs, and asks it for its devices.
fn open(
    options: &ConnectOptions,
    limit: Duration,
) -> Result<(Guarded<Client>, Vec<DeviceInfo>), ClientError> {
    let mut client = Guarded::new(Client::connect(&options.name, &options.netdev, limit)?);
    super::met(client.peer().pid);
    let devices = list(&mut client)?;
    Ok((client, devices))
}
