//! `rxe_cfg`: links by the commands of the older tool.

use std::fmt::{self, Display};
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use ferroce_ipc::{DeviceInfo, LinkKind, Message, NetdevInfo, Origin, Setting};
use ferroce_wire::PathMtu;
use serde::Serialize;

use crate::args::{RxeCommand, Style};
use crate::{broker, link, rows, settings, usage::Usage};

/// Executes a command; without one, lists.
pub fn run(command: Option<RxeCommand>, style: Style) -> Result<()> {
    match command.unwrap_or(RxeCommand::Status) {
        RxeCommand::Status => status(style),
        RxeCommand::Start { proto: _ } => {
            broker::send(&Message::LinkStart)?;
            status(style)
        }
        RxeCommand::Stop => links()?.iter().try_for_each(|device| link::delete(&device.name, true)),
        RxeCommand::Persistent => {
            let netdevs = broker::netdevs()?;
            let kept = netdevs.iter().filter(|netdev| !netdev.configured.is_empty());
            let names: Vec<Name> = kept.map(|netdev| Name { ifname: netdev.name.clone() }).collect();
            rows::print(&names, style)
        }
        RxeCommand::Add { n, netdev } => {
            let devices = broker::devices()?;
            let free = |name: &String| devices.iter().all(|device| device.name != *name);
            let name = (0_u32..).map(|n| format!("rxe{n}")).find(free).unwrap_or_default();
            link::make(&name, LinkKind::Rxe, &netdev, n)
        }
        RxeCommand::Remove { n, which } => {
            let links = links()?;
            let found = links.iter().find(|device| device.name == which || device.netdev == which);
            let name = found.map_or(which.as_str(), |device| &device.name);
            link::delete(name, n)
        }
        RxeCommand::Crc { what, force } => {
            let check = settings::on_off(&what).unwrap_or(true);
            let devices = broker::devices()?;
            devices
                .iter()
                .filter(|device| !device.is_iwarp())
                .try_for_each(|device| broker::set(&device.name, vec![Setting::Crc(check)], false, force))
        }
        RxeCommand::Mtu { force, words } => mtu(force, &words),
    }
}

fn links() -> Result<Vec<DeviceInfo>> {
    let mut devices = broker::devices()?;
    devices.retain(|device| device.origin == Origin::Link && !device.is_iwarp());
    Ok(devices)
}

fn status(style: Style) -> Result<()> {
    let found = interfaces(&broker::netdevs()?, &broker::devices()?);
    match rows::json(&found, style)? {
        Some(text) => rows::write_text(&text),
        None => rows::write_text(&table(&found)),
    }
}

/// An interface whose link is saved.
#[derive(Serialize)]
struct Name {
    ifname: String,
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.ifname)
    }
}

/// An interface and its device.
#[derive(Serialize)]
struct Interface {
    ifname: String,
    link: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    driver: String,
    /// Megabits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<u32>,
    mtu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv4_addr: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdev: Option<String>,
    /// Octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    rmtu: Option<usize>,
}

/// Ethernet interfaces, and others with a device.
fn interfaces(netdevs: &[NetdevInfo], devices: &[DeviceInfo]) -> Vec<Interface> {
    let device = |netdev: &NetdevInfo| {
        devices.iter().find(|device| device.ifindex == netdev.ifindex && !device.is_iwarp())
    };
    let here = |netdev: &&NetdevInfo| netdev.ifindex != 0 && (netdev.ethernet || device(netdev).is_some());
    let interface = |netdev: &NetdevInfo| Interface {
        ifname: netdev.name.clone(),
        link: netdev.running,
        driver: netdev.driver.clone(),
        speed: netdev.speed,
        mtu: netdev.mtu,
        ipv4_addr: netdev.ipv4,
        rdev: device(netdev).map(|device| device.name.clone()),
        rmtu: device(netdev).map(|device| device.path_mtu().bytes()),
    };
    netdevs.iter().filter(here).map(interface).collect()
}

fn table(interfaces: &[Interface]) -> String {
    let mut lines =
        vec![["Name", "Link", "Driver", "Speed", "NMTU", "IPv4_addr", "RDEV", "RMTU"].map(str::to_owned)];
    lines.extend(interfaces.iter().map(|interface| {
        [
            interface.ifname.clone(),
            if interface.link { "yes" } else { "no" }.to_owned(),
            interface.driver.clone(),
            interface.speed.map(speed).unwrap_or_default(),
            interface.mtu.to_string(),
            interface.ipv4_addr.map(|ip| ip.to_string()).unwrap_or_default(),
            interface.rdev.clone().unwrap_or_default(),
            interface.rmtu.and_then(PathMtu::of_bytes).map(rmtu).unwrap_or_default(),
        ]
    }));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let padded = |line: &[String; 8]| {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("  {cell:<width$}"));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    lines.iter().map(padded).collect()
}

/// `10GigE`, `100Mb/s`.
fn speed(megabits: u32) -> String {
    match megabits {
        _ if megabits.is_multiple_of(1000) => format!("{}GigE", megabits / 1000),
        _ => format!("{megabits}Mb/s"),
    }
}

/// Octets and the verbs' code: `1024  (3)`.
fn rmtu(mtu: PathMtu) -> String {
    format!("{}  ({})", mtu.bytes(), mtu as u8)
}

/// Executes `[rxeN] MTU`. With `force` it first raises the MTU of an interface that is too small.
fn mtu(force: bool, words: &[String]) -> Result<()> {
    let (which, octets) = match words {
        [which, octets] => (Some(which.as_str()), octets),
        [octets] => (None, octets),
        _ => return Err(Usage("expected: [rxeN] MTU".to_owned()).into()),
    };
    let mtu = settings::mtu(octets).flatten();
    let mtu =
        mtu.ok_or_else(|| Usage(format!("a RoCE MTU is 256, 512, 1024, 2048 or 4096, not '{octets}'")))?;
    let all = links()?;
    let chosen: Vec<&DeviceInfo> = match which {
        None => all.iter().collect(),
        Some(name) => {
            let found: Vec<_> = all.iter().filter(|device| device.name == name).collect();
            ensure!(!found.is_empty(), "no link is called {name}; see `ferroce link show`");
            found
        }
    };
    let needed = mtu.bytes() as u32 + PathMtu::HEADER_BUDGET;
    let small = |device: &&&DeviceInfo| PathMtu::largest_fitting(device.mtu) < mtu;
    if let Some(device) = chosen.iter().find(small).filter(|_| !force) {
        bail!(
            "{} has an MTU of {}, and {} octets take {needed}: -f raises it",
            device.netdev,
            device.mtu,
            mtu.bytes()
        );
    }
    for device in chosen.iter().filter(small) {
        ip(&["link", "set", "dev", &device.netdev, "mtu", &needed.to_string()])?;
    }
    chosen
        .iter()
        .try_for_each(|device| broker::set(&device.name, vec![Setting::Mtu(Some(mtu))], false, false))
}

/// Runs ip(8).
pub fn ip(words: &[&str]) -> Result<()> {
    let line = format!("ip {}", words.join(" "));
    let output = Command::new("ip").args(words).output().with_context(|| format!("cannot run {line}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {}", message.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::device;

    #[test]
    fn interfaces_stand_under_their_headings() {
        let eth0 = NetdevInfo {
            name: "eth0".to_owned(),
            ifindex: 2,
            mtu: 1500,
            up: true,
            running: true,
            ethernet: true,
            driver: "virtio_net".to_owned(),
            ipv4: Some([192, 168, 1, 5].into()),
            ..NetdevInfo::default()
        };
        let other = |name: &str, ifindex, ethernet| NetdevInfo {
            name: name.to_owned(),
            ifindex,
            mtu: 9000,
            ethernet,
            speed: Some(10_000),
            ..NetdevInfo::default()
        };
        let netdevs = [eth0, other("eth11", 3, true), other("tun0", 4, false), other("gone", 0, true)];
        let devices = [device("rxe0", "eth0", true)];
        let found = interfaces(&netdevs, &devices);
        let json = rows::json(&found, Style { json: true, pretty: false, details: false }).unwrap().unwrap();
        let first = "[{\"ifname\":\"eth0\",\"link\":true,\"driver\":\"virtio_net\",\"mtu\":1500,\
                     \"ipv4_addr\":\"192.168.1.5\",\"rdev\":\"rxe0\",\"rmtu\":1024},";
        assert!(json.starts_with(first), "{json}");
        assert_eq!(
            table(&found),
            "  Name   Link  Driver      Speed   NMTU  IPv4_addr    RDEV  RMTU\n\
             \x20 eth0   yes   virtio_net          1500  192.168.1.5  rxe0  1024  (3)\n\
             \x20 eth11  no                10GigE  9000\n"
        );
        assert_eq!(speed(100), "100Mb/s");
    }
}
