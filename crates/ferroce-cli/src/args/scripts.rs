//! Command lines of the scripts that people type for RoCE cards and for rxe.

use clap::{Parser, Subcommand};

/// List the GIDs of all devices, or of one, as the script of that name does for RoCE cards.
#[derive(Parser, Debug)]
#[command(name = "show_gids", version)]
pub struct ShowGids {
    /// A device.
    #[arg(value_name = "DEV")]
    pub device: Option<String>,
    /// The port of the device, always 1.
    pub port: Option<u8>,
}

/// List which device is on which network interface, as the script of that name does for RoCE cards.
#[derive(Parser, Debug)]
#[command(name = "ibdev2netdev", version)]
pub struct IbDev2NetDev {}

/// Show or set the RoCE version that connections of a device use, as the script of that name does for RoCE
/// cards.
#[derive(Parser, Debug)]
#[command(name = "cma_roce_mode", version)]
pub struct CmaRoceMode {
    /// A device.
    #[arg(short, value_name = "DEV")]
    pub device: String,
    /// The port of the device, always 1.
    #[arg(short, default_value_t = 1)]
    pub port: u8,
    /// 1 is RoCE v1, 2 is RoCE v2.
    #[arg(short, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub mode: Option<u8>,
}

/// Show or set the type of service of connections whose program sets none, as the script of that name does
/// for RoCE cards.
#[derive(Parser, Debug)]
#[command(name = "cma_roce_tos", version)]
pub struct CmaRoceTos {
    /// A device.
    #[arg(short, value_name = "DEV")]
    pub device: String,
    /// The port of the device, always 1.
    #[arg(short, default_value_t = 1)]
    pub port: u8,
    /// 0 to 255: DSCP times 4.
    #[arg(short)]
    pub tos: Option<u8>,
}

/// Give a network interface the link-local address that RoCE v1 made of its hardware address before GIDs were
/// IP addresses.
#[derive(Parser, Debug)]
#[command(name = "compat_gid_gen")]
pub struct CompatGidGen {
    /// A network interface.
    #[arg(short, value_name = "NETDEV")]
    pub device: String,
    /// The VLAN of the interface: the address is that of NETDEV.VLAN.
    #[arg(short, short_alias = 'V', value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Remove the address.
    #[arg(short = 'D')]
    pub delete: bool,
    /// Only print it.
    #[arg(short = 'n')]
    pub dry: bool,
}

/// Manage links by the commands of the older tool of that name.
#[derive(Parser, Debug)]
#[command(name = "rxe_cfg", version, infer_subcommands = true)]
pub struct RxeCfg {
    /// Without one: status.
    #[command(subcommand)]
    pub command: Option<RxeCommand>,
}

/// Commands of `rxe_cfg`.
#[derive(Subcommand, Debug)]
pub enum RxeCommand {
    /// List the Ethernet interfaces and their devices.
    Status,
    /// Bring back the saved links that `stop` removed, and list.
    Start {
        /// Ignored: `ferroce link set DEV roce-mode` sets what a link speaks.
        #[arg(value_name = "-p PROTO")]
        proto: Option<String>,
    },
    /// Remove all links until the next start.
    Stop,
    /// List the interfaces whose link is saved.
    Persistent,
    /// Add a link on an interface, named rxe and a number.
    Add {
        /// Do not save it.
        #[arg(short)]
        n: bool,
        /// The interface.
        #[arg(value_name = "ethN")]
        netdev: String,
    },
    /// Remove a link.
    Remove {
        /// Keep the saved link: it is there again after the next restart.
        #[arg(short)]
        n: bool,
        /// The interface or the device.
        #[arg(value_name = "ethN | rxeN")]
        which: String,
    },
    /// Set whether links check the ICRC of received packets; it is always sent.
    Crc {
        /// For all links.
        #[arg(value_parser = ["enable", "disable"])]
        what: String,
        /// Allow it on real networks.
        #[arg(long)]
        force: bool,
    },
    /// Set the largest RoCE MTU of a link, or of all.
    Mtu {
        /// Raise the interface's MTU if it is too small.
        #[arg(short)]
        force: bool,
        /// The device, if not all, and 256, 512, 1024, 2048 or 4096.
        #[arg(required = true, num_args = 1..=2, value_name = "[rxeN] MTU")]
        words: Vec<String>,
    },
}
