//! Vendors' scripts for RoCE cards: links to this program with the scripts' names. They print what
//! `ferroce gid show` and `ferroce link show` do, in the scripts' own form.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory, Parser};
use ferroce_ipc::DeviceInfo;

use crate::args::{IbDev2NetDev, ShowGids};
use crate::gids::{self, GidRow};
use crate::{broker, rows};

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

    pub fn command(self) -> Command {
        match self {
            Self::ShowGids => ShowGids::command(),
            Self::IbDev2NetDev => IbDev2NetDev::command(),
        }
    }
}

/// The script whose name this program was called by.
pub fn called() -> Option<Script> {
    Script::of(&std::env::args_os().next()?)
}

pub fn run(script: Script) -> Result<()> {
    match script {
        Script::ShowGids => {
            let args = ShowGids::parse();
            if let (Some(device), Some(port)) = (&args.device, args.port) {
                rows::port_of(&format!("{device}/{port}"))?;
            }
            let devices = broker::devices()?;
            let found = rows::find(&devices, args.device.as_deref())?;
            rows::write_text(&gid_table(&gids::rows(&found, gids::netdev_name)))
        }
        Script::IbDev2NetDev => {
            IbDev2NetDev::parse();
            rows::write_text(&netdevs(&broker::devices()?))
        }
    }
}

/// A line for each used GID, and their count.
fn gid_table(rows: &[GidRow]) -> String {
    let mut text = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n".to_owned();
    text += "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n";
    for GidRow { ifname, index, gid, gid_type, netdev, .. } in rows {
        let quads = gid.0.chunks(2).map(|two| two.iter().map(|octet| format!("{octet:02x}")).collect());
        let quads = quads.collect::<Vec<String>>().join(":");
        let ipv4 = match gid.to_ip() {
            IpAddr::V4(ip) => format!("{ip}  "),
            IpAddr::V6(_) => "\t".to_owned(),
        };
        let version = if gid_type.ends_with("v1") { "v1" } else { "v2" };
        text += &format!("{ifname}\t1\t{index}\t{quads}\t{ipv4}\t{version}\t{netdev}\n");
    }
    text + &format!("n_gids_found={}\n", rows.len())
}

/// `fr0 port 1 ==> lo (Up)`.
fn netdevs(devices: &[DeviceInfo]) -> String {
    let state = |device: &DeviceInfo| if device.port_active { "Up" } else { "Down" };
    devices.iter().map(|d| format!("{} port 1 ==> {} ({})\n", d.name, d.netdev, state(d))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::device;
    use ferroce_ipc::{GidEntry, GidType};
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
        let text = gid_table(&gids::rows(&rows::find(&devices, None).unwrap(), netdev));
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
        assert_eq!(gid_table(&[]).lines().count(), 3);
    }

    #[test]
    fn gid_rows_are_text_and_json() {
        let devices = devices();
        let found = gids::rows(&rows::find(&devices, Some("fr1")).unwrap(), netdev);
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
        let text = netdevs(&devices());
        assert_eq!(text, "fr1 port 1 ==> eth0 (Up)\nfr0 port 1 ==> lo (Down)\n");
    }

    #[test]
    fn scripts_are_known_by_their_names() {
        assert_eq!(Script::of(OsStr::new("/opt/bin/show_gids")), Some(Script::ShowGids));
        assert_eq!(Script::of(OsStr::new("ibdev2netdev")), Some(Script::IbDev2NetDev));
        for other in ["ferroce", "/opt/show_gids/ferroce", ""] {
            assert_eq!(Script::of(OsStr::new(other)), None, "{other}");
        }
        for name in ["show_gids", "ibdev2netdev"] {
            Script::of(OsStr::new(name)).unwrap().command().debug_assert();
        }
    }
}
