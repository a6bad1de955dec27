//! Values of our devices in the form of sysfs, for programs that find no file there.

use ferroce_ipc::CmStatus;
use ferroce_ipc::sysfs::{Missing, Node, Tree, counters, numa_node};
use rustix::net::netdevice::index_to_name;

use crate::device::PortAttr;
use crate::engine::Engine;
use crate::error::{DeviceError, SysfsError};

/// Whether a path may lead to files of ours, by its words alone.
pub fn may_have(path: &str) -> bool {
    path.starts_with('/') && path.split('/').any(|part| ferroce_ipc::sysfs::CLASSES.contains(&part))
}

/// Whether the kernel refuses to read the file of this path, by its words alone, if nothing is in it.
pub fn is_refused_if_empty(path: &str) -> bool {
    may_have(path) && path.split('/').any(|part| part == "gid_attrs")
}

/// The content of one of our devices' files, with the newline, as it is now. The path is an absolute one
/// below `/sys/class`.
///
/// # Errors
/// As those of `open(2)` and `read(2)`.
pub fn read(path: &str) -> Result<String, SysfsError> {
    let engine = Engine::global()?;
    let devices = engine.current_devices()?;
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let netdev = |ifindex: u32| {
        let known = socket.as_ref().ok().and_then(|socket| index_to_name(socket, ifindex).ok());
        known.unwrap_or_else(|| format!("<{ifindex}>"))
    };
    let speed = |device: &_| PortAttr::of(device).width_and_speed();
    let tree = Tree { devices: &devices, speed: &speed, netdev: &netdev, numa_node: &numa_node };
    match tree.find(path) {
        Ok(Node::Text(text)) => Ok(text),
        Ok(Node::Directory | Node::Link(_)) => Err(SysfsError::Directory),
        Ok(Node::Unreadable) => Err(SysfsError::Empty),
        Ok(Node::Counter { device, group, name }) => {
            let broker = |error: ferroce_client::BrokerError| DeviceError::Broker(error.into());
            // Of a group that one of them knows nothing of, the other need not be asked.
            let of_cm = group.starts_with("cm_");
            let counted =
                if of_cm { Vec::new() } else { engine.broker().statistics(&device).map_err(broker)? };
            let cm = if of_cm { engine.broker().cm_status().map_err(broker)? } else { CmStatus::default() };
            let found =
                counters(&counted, &cm).into_iter().find(|found| (found.0, found.1) == (group, &name));
            found.map(|(_, _, value)| format!("{value}\n")).ok_or(SysfsError::NoSuchFile)
        }
        Err(Missing::NoSuchFile) => Err(SysfsError::NoSuchFile),
        Err(Missing::NotADirectory) => Err(SysfsError::NotADirectory),
    }
}
