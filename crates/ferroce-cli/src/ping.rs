//! `ferroce ping`: does each operation once between two processes of this host, or between two hosts.

mod client;
mod ends;
mod probe;
mod remote;
mod serve;
mod verdict;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ferroce_host::environment;
use ferroce_ipc::DeviceInfo;
use nix::ifaddrs::getifaddrs;

use crate::args::{PING_PORT as PORT, PingArgs, Style};
use crate::finding::{self, Finding};
use crate::{broker, rows};

use client::Client;

/// A device of this host and an address of it.
pub struct Local {
    device: String,
    /// Port 0, which is any.
    address: SocketAddr,
}

/// Exchanges the data, or answers other hosts; fails if something does not work.
pub fn run(args: &PingArgs, style: Style) -> Result<ExitCode> {
    if let Some(at) = args.once_at {
        return serve::once(at).map(|()| ExitCode::SUCCESS);
    }
    let is_chosen = args.device.is_some() || args.gid.is_some();
    if args.serve {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let mut at = if is_chosen { local(args)?.address } else { any };
        at.set_port(args.port);
        return serve::forever(at).map(|()| ExitCode::SUCCESS);
    }
    let findings = match &args.host {
        None => two_processes(&local(args)?)?,
        Some(host) => {
            let local = if is_chosen { Some(local(args)?) } else { None };
            remote::examine(host, args.port, local.as_ref())?
        }
    };
    finding::print(&findings, false, style)
}

/// The findings about another host, with the usual device and port.
pub fn examine(host: &str) -> Result<Vec<Finding>> {
    remote::examine(host, PORT, None)
}

/// The chosen device and address, or the first.
fn local(args: &PingArgs) -> Result<Local> {
    let devices = broker::devices()?;
    let which = args.device.as_deref().map(rows::port_of).transpose()?;
    let found = rows::find(&devices, which)?;
    let (_, device) =
        found.first().context("there is no device: ferroce link add fr1 type roce netdev IF")?;
    if which.is_some() {
        keep_transport(device, args.again)?;
    }
    let address =
        if device.is_iwarp() { address_of_interface(device) } else { address_of_gid(device, args.gid)? };
    let address = address.with_context(|| format!("{} has no address on {}", device.name, device.netdev))?;
    Ok(Local { device: device.name.clone(), address })
}

/// An address of an interface may be that of two devices, one of each transport. This process starts anew
/// with that of the chosen device, which the second process inherits.
fn keep_transport(device: &DeviceInfo, again: bool) -> Result<()> {
    const TRANSPORT: &str = "FERROCE_TRANSPORT";
    let transport = if device.is_iwarp() { "iwarp" } else { "roce" };
    if environment::text(TRANSPORT).as_deref() == Some(transport) {
        return Ok(());
    }
    // A program with more rights than its user ignores the environment.
    ensure!(!again, "{} cannot be chosen: {TRANSPORT}={transport} is ignored here", device.name);
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let options = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.insert(options, "--again".into());
    let error = itself()?.args(words).env(TRANSPORT, transport).exec();
    Err(error).context("cannot start again")
}

fn itself() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("/proc/self/exe")?))
}

/// The address of a GID that connections use. A link-local one is the last choice.
fn address_of_gid(device: &DeviceInfo, index: Option<u16>) -> Result<Option<SocketAddr>> {
    let version = device.settings.cm_type();
    let of_connections = || device.gids.iter().filter(|entry| entry.gid_type == version);
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let entry = match index {
        None => of_connections().min_by_key(|entry| is_local(&entry.gid.to_ip())),
        Some(index) => {
            let Some(entry) = of_connections().find(|entry| entry.index == index) else {
                let name = &device.name;
                bail!(
                    "{name} has no GID {index} of the RoCE version of its connections: see `ferroce gid show {name}`"
                );
            };
            Some(entry)
        }
    };
    Ok(entry.map(|entry| match entry.gid.to_ip() {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, 0, 0, entry.ifindex).into(),
        ip => SocketAddr::new(ip, 0),
    }))
}

/// The first IPv4 address of an interface, or its first address.
fn address_of_interface(device: &DeviceInfo) -> Option<SocketAddr> {
    let of_device = getifaddrs().ok()?.filter(|entry| entry.interface_name == device.netdev);
    let addresses = of_device.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::new(v4.ip().into(), 0));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
    });
    addresses.min_by_key(SocketAddr::is_ipv6)
}

/// A process that is ended and waited for.
struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a second process, and exchanges data with it.
fn two_processes(local: &Local) -> Result<Vec<Finding>> {
    let Local { device, address } = local;
    let mut command = itself()?;
    command.args(["ping", "--once-at", &address.to_string()]).stdout(Stdio::piped());
    let mut second = Second(command.spawn().context("cannot start a second process")?);
    let mut line = String::new();
    if let Some(out) = second.0.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let mut peer = *address;
    peer.set_port(line.trim().parse().context("the second process does not answer")?);
    let begin = Instant::now();
    let connected = Client::connector(Some(local), peer)?.connect(ends::GREETING)?;
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let client = Client::new(connected)?.context("the second process is of another version")?;
    let found = format!("{device} at {}: connected to a second process in {took:.1} ms", address.ip());
    let mut findings = vec![Finding::ok("connection", found)];
    findings.extend(client.run());
    Ok(findings)
}
