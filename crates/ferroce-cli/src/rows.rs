//! Devices and links as rows: a line of text each, or a JSON array of objects with stable keys. Words and keys
//! are those of rdma(8).

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::Write;

use anyhow::{Context, Result, bail};
use ferroce_ipc::{DeviceInfo, PhysState};
use serde::Serialize;

use crate::args::Style;
use crate::settings;

/// One line of `link show`.
#[derive(Serialize, Debug)]
pub struct Link {
    ifindex: u32,
    ifname: String,
    port: u8,
    state: &'static str,
    physical_state: &'static str,
    netdev: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev_index: Option<u32>,
    /// Those that were set, in the words of `link set`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    settings: BTreeMap<&'static str, String>,
}

/// One line of `dev show`.
#[derive(Serialize, Debug)]
pub struct Dev {
    ifindex: u32,
    ifname: String,
    node_type: &'static str,
    fw: &'static str,
    node_guid: String,
    sys_image_guid: String,
}

/// The device that `DEV/PORT` names; every device has one port.
pub fn port_of(link: &str) -> Result<&str> {
    match link.split_once('/') {
        None | Some((_, "1")) => Ok(link.split('/').next().unwrap_or_default()),
        Some((device, port)) => bail!("{device} has no port {port}; it has one, {device}/1"),
    }
}

/// All devices with their index, or the one called `which`.
pub fn find<'a>(devices: &'a [DeviceInfo], which: Option<&str>) -> Result<Vec<(u32, &'a DeviceInfo)>> {
    let all = (0..).zip(devices);
    match which {
        None => Ok(all.collect()),
        Some(name) => {
            let found: Vec<_> = all.filter(|(_, device)| device.name == name).collect();
            if found.is_empty() {
                bail!("no device is called {name}; see `ferroce dev show`")
            } else {
                Ok(found)
            }
        }
    }
}

/// Rows of `link show`; with `details` the index of the network device and what was set as well.
pub fn links(devices: Vec<(u32, &DeviceInfo)>, details: bool) -> Vec<Link> {
    let row = |(ifindex, device): (u32, &DeviceInfo)| Link {
        ifindex,
        ifname: device.name.clone(),
        port: 1,
        state: if device.port_active { "ACTIVE" } else { "DOWN" },
        physical_state: match device.phys_state {
            PhysState::Polling => "POLLING",
            PhysState::Disabled => "DISABLED",
            PhysState::LinkUp => "LINK_UP",
        },
        netdev: device.netdev.clone(),
        netdev_index: details.then_some(device.ifindex),
        settings: if details { settings::shown(&device.settings) } else { BTreeMap::new() },
    };
    devices.into_iter().map(row).collect()
}

/// Rows of `dev show`.
pub fn devs(devices: Vec<(u32, &DeviceInfo)>) -> Vec<Dev> {
    let row = |(ifindex, device): (u32, &DeviceInfo)| {
        let guid = guid(device.node_guid);
        Dev {
            ifindex,
            ifname: device.name.clone(),
            node_type: "ca",
            fw: env!("CARGO_PKG_VERSION"),
            sys_image_guid: guid.clone(),
            node_guid: guid,
        }
    };
    devices.into_iter().map(row).collect()
}

/// `5054:00ff:fe77:0002`.
pub fn guid(octets: [u8; 8]) -> String {
    let quads: Vec<String> =
        octets.chunks(2).map(|c| c.iter().map(|b| format!("{b:02x}")).collect()).collect();
    quads.join(":")
}

impl Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifname, port, state, physical_state, netdev, .. } = self;
        write!(f, "link {ifname}/{port} state {state} physical_state {physical_state} netdev {netdev}")?;
        self.netdev_index.map_or(Ok(()), |index| write!(f, " netdev_index {index}"))?;
        self.settings.iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))
    }
}

impl Display for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifindex, ifname, node_type, fw, node_guid, sys_image_guid } = self;
        write!(f, "{ifindex}: {ifname}: node_type {node_type} fw {fw} ")?;
        write!(f, "node_guid {node_guid} sys_image_guid {sys_image_guid}")
    }
}

/// Prints rows in the style asked for.
pub fn print<T: Serialize + Display>(rows: &[T], style: Style) -> Result<()> {
    say(&text(rows, style)?)
}

/// Writes to standard output. A reader that has gone (`| head`) is no error.
pub fn say(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

fn text<T: Serialize + Display>(rows: &[T], style: Style) -> Result<String> {
    let mut text = match (style.json, style.pretty) {
        (true, true) => serde_json::to_string_pretty(rows)?,
        (true, false) => serde_json::to_string(rows)?,
        (false, _) => return Ok(rows.iter().map(|row| format!("{row}\n")).collect()),
    };
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ferroce_ipc::{LinkSettings, Origin, RoceMode, Setting};

    pub fn device(name: &str, netdev: &str, active: bool) -> DeviceInfo {
        DeviceInfo {
            id: 7,
            name: name.to_owned(),
            dev_name: "uverbs0".to_owned(),
            node_guid: [0x50, 0x54, 0x00, 0xff, 0xfe, 0x77, 0x00, 0x02],
            netdev: netdev.to_owned(),
            ifindex: 2,
            mtu: 1500,
            port_active: active,
            phys_state: if active { PhysState::LinkUp } else { PhysState::Disabled },
            origin: Origin::Link,
            gids: Vec::new(),
            settings: LinkSettings::default(),
        }
    }

    const TEXT: Style = Style { json: false, pretty: false, details: false };
    const JSON: Style = Style { json: true, ..TEXT };

    #[test]
    fn text_reads_as_the_kernels_tool() {
        let devices = [device("rxe0", "eth0", true), device("fr0", "lo", false)];
        let all = find(&devices, None).unwrap();
        assert_eq!(
            text(&links(all.clone(), false), TEXT).unwrap(),
            "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0\n\
             link fr0/1 state DOWN physical_state DISABLED netdev lo\n"
        );
        let one = find(&devices, Some("fr0")).unwrap();
        assert_eq!(
            text(&links(one, true), TEXT).unwrap(),
            "link fr0/1 state DOWN physical_state DISABLED netdev lo netdev_index 2\n"
        );
        let version = env!("CARGO_PKG_VERSION");
        let line = format!(
            "0: rxe0: node_type ca fw {version} node_guid 5054:00ff:fe77:0002 sys_image_guid 5054:00ff:fe77:0002\n"
        );
        assert_eq!(text(&devs(find(&devices, Some("rxe0")).unwrap()), TEXT).unwrap(), line);
    }

    #[test]
    fn json_keys_are_stable() {
        let devices = [device("rxe0", "eth0", true)];
        assert_eq!(
            text(&links(find(&devices, None).unwrap(), true), JSON).unwrap(),
            "[{\"ifindex\":0,\"ifname\":\"rxe0\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\",\
             \"netdev\":\"eth0\",\"netdev_index\":2}]\n"
        );
        let text = text(&devs(find(&devices, None).unwrap()), JSON).unwrap();
        for key in ["ifindex", "ifname", "node_type", "fw", "node_guid", "sys_image_guid"] {
            assert!(text.contains(&format!("\"{key}\":")), "{key}");
        }
        assert_eq!(super::text(&links(Vec::new(), false), JSON).unwrap(), "[]\n");
        let set = [Setting::RoceMode(RoceMode::Both), Setting::Crc(false)];
        let settings = set.iter().fold(LinkSettings::default(), |all, one| all.with(one).unwrap());
        let devices = [DeviceInfo { settings, ..device("fr1", "eth0", true) }];
        let rows = links(find(&devices, None).unwrap(), true);
        assert!(rows[0].to_string().ends_with(" netdev_index 2 crc off roce-mode both"), "{}", rows[0]);
        let json = super::text(&rows, JSON).unwrap();
        assert!(json.contains(",\"settings\":{\"crc\":\"off\",\"roce-mode\":\"both\"}}"), "{json}");
    }

    #[test]
    fn unknown_devices_and_ports_are_named() {
        let devices = [device("fr0", "lo", true)];
        assert!(find(&devices, Some("fr1")).unwrap_err().to_string().contains("fr1"));
        assert_eq!(port_of("fr0").unwrap(), "fr0");
        assert_eq!(port_of("fr0/1").unwrap(), "fr0");
        assert!(port_of("fr0/2").is_err());
    }
}
