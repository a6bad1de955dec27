//! Command lines of the scripts that people type for RoCE cards.

use clap::Parser;

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
