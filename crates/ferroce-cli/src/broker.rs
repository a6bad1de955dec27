//! The broker `ferroced` of this network namespace.

use std::time::Duration;

use anyhow::{Result, bail};
use ferroce_ipc::{BROKER_NAME, Client, DeviceInfo, Message};

/// How long the broker may take for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The devices that a program started here would see.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    match connect()?.request(&Message::ListDevices, LIMIT)? {
        (Message::Devices(devices), _) => Ok(devices),
        (other, _) => bail!("ferroced answered a question for devices with {other:?}"),
    }
}

/// A request that is answered by "done" or a refusal.
pub fn tell(message: &Message) -> Result<()> {
    match connect()?.request(message, LIMIT)? {
        (Message::Done, _) => Ok(()),
        (other, _) => bail!("ferroced answered a request with {other:?}"),
    }
}

fn connect() -> Result<Client> {
    let netdev = std::env::var("FERROCE_NETDEV").unwrap_or_default();
    Ok(Client::connect(BROKER_NAME, &netdev, LIMIT)?)
}
