//! The command line of `ferroce ping`.

use std::net::SocketAddr;

/// The port of connection management at which `ferroce ping --serve` answers by default.
pub const PING_PORT: u16 = 4791;

/// Arguments of `ferroce ping`.
#[derive(clap::Args, Debug)]
pub struct PingArgs {
    /// Name or address of another host. Without it, two processes of this host exchange the data.
    #[arg(value_name = "HOST")]
    pub host: Option<String>,
    /// Device of this host. By default it is the first one, and with HOST the one that reaches it.
    #[arg(long, value_name = "DEV[/PORT]", conflicts_with = "once_at")]
    pub device: Option<String>,
    /// Index in the GID table of the address that this end has; see `ferroce gid`. By default it is an
    /// address that the device uses for connections.
    #[arg(long, value_name = "INDEX", conflicts_with = "once_at")]
    pub gid: Option<u16>,
    /// Port of connection management at which `ferroce ping --serve` answers. It is no port of UDP or TCP.
    #[arg(long, value_name = "PORT", default_value_t = PING_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Answer `ferroce ping` of other hosts until it is stopped, on all devices or on one.
    #[arg(long, conflicts_with = "host")]
    pub serve: bool,
    /// Answer one connection at this address: the second process of a ping without HOST.
    #[arg(long, hide = true, value_name = "ADDRESS", conflicts_with_all = ["host", "serve"])]
    pub once_at: Option<SocketAddr>,
    /// This process started itself anew for the transport of its device.
    #[arg(long, hide = true)]
    pub again: bool,
}
