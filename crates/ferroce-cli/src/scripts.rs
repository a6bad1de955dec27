//! The scripts that people type for RoCE cards, by the names under which they know them: links to this program.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory, Parser};
use ferroce_ipc::{DeviceInfo, GidType};

use crate::args::{IbDev2NetDev, ShowGids};
use crate::{broker, gids, rows};

/// One of those scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// `show_gids [DEV [PORT]]`.
    ShowGids,
    /// `ibdev2netdev`.
    IbDev2NetDev,
}

impl Script {
    fn of(program: &OsStr) -> Option<Self> {
        match Path::new(program).file_name()?.to_str()? {
            "show_gids" => Some(Self::ShowGids),
            "ibdev2netdev" => Some(Self::IbDev2NetDev),
            _ => None,
        }
    }

    /// Its command line.
    pub fn command(self) -> Command {
        match self {
            Self::ShowGids => ShowGids::command(),
            Self::IbDev2NetDev => IbDev2NetDev::command(),
        }
    }
}

/// The script that this program was called as.
pub fn called() -> Option<Script> {
    Script::of(&std::env::args_os().next()?)
}

/// Does what the script does.
pub fn run(script: Script) -> Result<()> {
    match script {
        Script::ShowGids => {
            let args = ShowGids::parse();
            if let (Some(device), Some(port)) = (&args.device, args.port) {
                rows::port_of(&format!("{device}/{port}"))?;
            }
            let devices = broker::devices()?;
            rows::say(&gid_table(&rows::find(&devices, args.device.as_deref())?, gids::netdev_name))
        }
        Script::IbDev2NetDev => {
            IbDev2NetDev::parse();
            let devices = broker::devices()?;
            rows::say(&netdevs(&rows::find(&devices, None)?))
        }
    }
}

/// A line for each GID in use, and their count.
fn gid_table(devices: &[(u32, &DeviceInfo)], netdev: impl Fn(u32) -> String) -> String {
    let mut text = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n".to_owned();
    text += "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n";
    let mut count = 0;
    for (_, device) in devices {
        for entry in &device.gids {
            let gid: Vec<String> = entry
                .gid
                .0
                .chunks(2)
                .map(|two| two.iter().map(|octet| format!("{octet:02x}")).collect())
                .collect();
            let ipv4 = match entry.gid.to_ip() {
                IpAddr::V4(ip) => format!("{ip}  "),
                IpAddr::V6(_) => "\t".to_owned(),
            };
            let version = match entry.gid_type {
                GidType::RoceV1 => "v1",
                GidType::RoceV2 => "v2",
            };
            let (index, netdev) = (entry.index, netdev(entry.ifindex));
            text += &format!("{}\t1\t{index}\t{}\t{ipv4}\t{version}\t{netdev}\n", device.name, gid.join(":"));
            count += 1;
        }
    }
    text + &format!("n_gids_found={count}\n")
}

/// `fr0 port 1 ==> lo (Up)`.
fn netdevs(devices: &[(u32, &DeviceInfo)]) -> String {
    let state = |device: &DeviceInfo| if device.port_active { "Up" } else { "Down" };
    devices.iter().map(|(_, d)| format!("{} port 1 ==> {} ({})\n", d.name, d.netdev, state(d))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::device;
    use ferroce_ipc::GidEntry;
    use ferroce_wire::Gid;

    fn devices() -> [DeviceInfo; 2] {
        let mut first = device("fr1", "eth0", true);
        let entry = |index, ip: &str, gid_type, ifindex| GidEntry {
            index,
            gid: Gid::from_ip(ip.parse().unwrap()),
            gid_type,
            ifindex,
        };
        first.gids = vec![
            entry(0, "fe80::5054:ff:fe77:2", GidType::RoceV2, 2),
            entry(1, "10.77.0.2", GidType::RoceV2, 2),
            entry(4, "193.168.1.70", GidType::RoceV1, 3),
        ];
        [first, device("fr0", "lo", false)]
    }

    fn netdev(ifindex: u32) -> String {
        if ifindex == 2 { "eth0".to_owned() } else { "eth0.100".to_owned() }
    }

    #[test]
    fn gids_stand_under_their_headings() {
        let devices = devices();
        let text = gid_table(&rows::find(&devices, None).unwrap(), netdev);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "fr1\t1\t0\tfe80:0000:0000:0000:5054:00ff:fe77:0002\t\t\tv2\teth0",
                "fr1\t1\t1\t0000:0000:0000:0000:0000:ffff:0a4d:0002\t10.77.0.2  \tv2\teth0",
                "fr1\t1\t4\t0000:0000:0000:0000:0000:ffff:c1a8:0146\t193.168.1.70  \tv1\teth0.100",
                "n_gids_found=3",
            ]
        );
        let none = gid_table(&rows::find(&devices, Some("fr0")).unwrap(), netdev);
        assert_eq!(none.lines().count(), 3);
    }

    #[test]
    fn gid_rows_are_text_and_json() {
        let devices = devices();
        let found = gids::gids(&rows::find(&devices, Some("fr1")).unwrap(), netdev);
        assert_eq!(
            found[2].to_string(),
            "gid fr1/1 index 4 gid ::ffff:193.168.1.70 type RoCE v1 netdev eth0.100"
        );
        assert_eq!(
            serde_json::to_string(&found[1]).unwrap(),
            "{\"ifname\":\"fr1\",\"port\":1,\"index\":1,\"gid\":\"::ffff:10.77.0.2\",\"type\":\"RoCE v2\",\
             \"netdev\":\"eth0\"}"
        );
    }

    #[test]
    fn ports_and_their_netdevs() {
        let devices = devices();
        let text = netdevs(&rows::find(&devices, None).unwrap());
        assert_eq!(text, "fr1 port 1 ==> eth0 (Up)\nfr0 port 1 ==> lo (Down)\n");
    }

    #[test]
    fn scripts_are_known_by_their_names() {
        assert_eq!(Script::of(OsStr::new("/opt/bin/show_gids")), Some(Script::ShowGids));
        assert_eq!(Script::of(OsStr::new("ibdev2netdev")), Some(Script::IbDev2NetDev));
        for other in ["ferroce", "/opt/show_gids/ferroce", ""] {
            assert_eq!(Script::of(OsStr::new(other)), None, "{other}");
        }
        Script::ShowGids.command().debug_assert();
        Script::IbDev2NetDev.command().debug_assert();
    }
}
