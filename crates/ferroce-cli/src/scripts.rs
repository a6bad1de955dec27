//! Vendors' scripts for RoCE cards: links to this program with the scripts' names.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory, Parser};
use ferroce_ipc::{DeviceInfo, GidType, LinkSettings, Setting};

use crate::args::{CmaRoceMode, CmaRoceTos, CompatGidGen, IbDev2NetDev, RxeCfg, ShowGids, Style};
use crate::{broker, gids, rows, rxe_cfg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// `show_gids [DEV [PORT]]`.
    ShowGids,
    /// `ibdev2netdev`.
    IbDev2NetDev,
    /// `cma_roce_mode -d DEV [-p PORT] [-m 1|2]`.
    CmaRoceMode,
    /// `cma_roce_tos -d DEV [-p PORT] [-t TOS]`.
    CmaRoceTos,
    /// `compat_gid_gen -d NETDEV [-v VLAN] [-D] [-n]`.
    CompatGidGen,
    /// `rxe_cfg …`.
    RxeCfg,
}

impl Script {
    fn of(program: &OsStr) -> Option<Self> {
        match Path::new(program).file_name()?.to_str()? {
            "show_gids" => Some(Self::ShowGids),
            "ibdev2netdev" => Some(Self::IbDev2NetDev),
            "cma_roce_mode" => Some(Self::CmaRoceMode),
            "cma_roce_tos" => Some(Self::CmaRoceTos),
            "compat_gid_gen" => Some(Self::CompatGidGen),
            "rxe_cfg" => Some(Self::RxeCfg),
            _ => None,
        }
    }

    pub fn command(self) -> Command {
        match self {
            Self::ShowGids => ShowGids::command(),
            Self::IbDev2NetDev => IbDev2NetDev::command(),
            Self::CmaRoceMode => CmaRoceMode::command(),
            Self::CmaRoceTos => CmaRoceTos::command(),
            Self::CompatGidGen => CompatGidGen::command(),
            Self::RxeCfg => RxeCfg::command(),
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
            rows::write_text(&gid_table(&rows::find(&devices, args.device.as_deref())?, gids::netdev_name))
        }
        Script::IbDev2NetDev => {
            IbDev2NetDev::parse();
            let devices = broker::devices()?;
            rows::write_text(&netdevs(&rows::find(&devices, None)?))
        }
        Script::CmaRoceMode => {
            let args = CmaRoceMode::parse();
            let modes = [(1, GidType::RoceV1), (2, GidType::RoceV2)];
            let mode = modes.into_iter().find(|(number, _)| Some(*number) == args.mode);
            cma(&args.device, args.port, mode.map(|(_, mode)| Setting::CmMode(mode)), |settings| {
                match settings.cm_type() {
                    GidType::RoceV1 => "IB/RoCE v1".to_owned(),
                    GidType::RoceV2 => "RoCE v2".to_owned(),
                }
            })
        }
        Script::CmaRoceTos => {
            let args = CmaRoceTos::parse();
            cma(&args.device, args.port, args.tos.map(Setting::CmTos), |settings| settings.cm_tos.to_string())
        }
        Script::CompatGidGen => compat_gid(&CompatGidGen::parse()),
        Script::RxeCfg => {
            // Drops the `-p` of `start`, which has another meaning for `ferroce`.
            let words = std::env::args_os().filter(|word| word != "-p");
            let style = Style { json: false, pretty: false, details: false };
            rxe_cfg::run(RxeCfg::parse_from(words).command, style)
        }
    }
}

/// Sets the attribute for connections of a device if requested, and prints it.
fn cma(
    device: &str,
    port: u8,
    setting: Option<Setting>,
    shown: impl Fn(&LinkSettings) -> String,
) -> Result<()> {
    let device = rows::port_of(&format!("{device}/{port}"))?.to_owned();
    if let Some(setting) = setting {
        broker::set(&device, vec![setting], false, false)?;
    }
    let devices = broker::devices()?;
    let found = rows::find(&devices, Some(&device))?;
    rows::write_text(
        &found.iter().map(|(_, device)| format!("{}\n", shown(&device.settings))).collect::<String>(),
    )
}

/// Adds, removes or only prints the GID made from the MAC address.
fn compat_gid(args: &CompatGidGen) -> Result<()> {
    let all = nix::ifaddrs::getifaddrs().context("cannot list network devices")?;
    let of = all.filter(|one| one.interface_name == args.device);
    let mac = of.filter_map(|one| one.address?.as_link_addr()?.addr()).next();
    let Some(mac) = mac else {
        bail!("no network device with a hardware address is called {}; see `ip link`", args.device)
    };
    let gid = compat_address(mac, args.vlan);
    rows::write_text(&format!("{gid}\n"))?;
    if args.dry {
        return Ok(());
    }
    let netdev = args.vlan.map_or(args.device.clone(), |vlan| format!("{}.{vlan}", args.device));
    let (verb, address) = (if args.delete { "del" } else { "replace" }, format!("{gid}/64"));
    rxe_cfg::ip(&["-6", "addr", verb, &address, "dev", &netdev])
}

/// fe80::/64 and the modified EUI-64 of a hardware address, with a VLAN's number in place of ff:fe.
fn compat_address(mac: [u8; 6], vlan: Option<u16>) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let [high, low] = vlan.unwrap_or(0xfffe).to_be_bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, high, low, d, e, f])
}

/// A line for each used GID, and their count.
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
        for name in
            ["show_gids", "ibdev2netdev", "cma_roce_mode", "cma_roce_tos", "compat_gid_gen", "rxe_cfg"]
        {
            Script::of(OsStr::new(name)).unwrap().command().debug_assert();
        }
    }

    #[test]
    fn gids_of_mac_form() {
        let mac = [0x52, 0x54, 0x00, 0x77, 0x00, 0x02];
        assert_eq!(compat_address(mac, None).to_string(), "fe80::5054:ff:fe77:2");
        assert_eq!(compat_address(mac, Some(100)).to_string(), "fe80::5054:0:6477:2");
    }
}
