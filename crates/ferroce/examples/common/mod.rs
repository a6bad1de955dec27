//! Shared code of the pingpong examples: flags, the exchange of addresses by TCP, and the report of Debian's programs.
//! Either end may be Debian's program.

#![allow(dead_code, reason = "no example uses all of it")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use ferroce::{Address, CompletionQueue, Context, Gid, MemoryRegion, PathMtu, Psn, Qpn, Status};

/// Sends a message to and fro.
#[derive(Parser)]
pub struct Options {
    /// The server's name or address; without it this end is the server
    pub host: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,
    /// RDMA device, the first one if not given
    #[arg(short = 'd', long)]
    pub ib_dev: Option<String>,
    /// Port of the device
    #[arg(short, long, default_value_t = 1)]
    pub ib_port: u8,
    /// Octets of a message
    #[arg(short, long, default_value_t = 4096)]
    pub size: usize,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value_t = 1024)]
    pub mtu: usize,
    /// Receives posted at a time
    #[arg(short, long, default_value_t = 500)]
    pub rx_depth: u32,
    /// Exchanges
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub iters: u64,
    /// Sleep until something completes
    #[arg(short, long)]
    pub events: bool,
    /// Index of the local GID
    #[arg(short, long, default_value_t = 0)]
    pub gid_idx: u8,
    /// Check what arrived
    #[arg(short, long)]
    pub chk: bool,
}

/// One page of the C program's check.
const PAGE: usize = 4096;
pub const RECV: u64 = 1;
pub const SEND: u64 = 2;

/// Runs an example and prints its error.
pub fn main(name: &str, run: impl FnOnce(&Options) -> Result<(), Box<dyn Error>>) -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{name}: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

/// Opens the requested device, or the first.
pub fn open(options: &Options) -> Result<Context, Box<dyn Error>> {
    let name = match &options.ib_dev {
        Some(name) => name.clone(),
        None => ferroce::devices()?.into_iter().next().ok_or("there is no RDMA device")?.name,
    };
    if options.ib_port != 1 {
        return Err(format!("port {} does not exist: {name} has port 1 only", options.ib_port).into());
    }
    Ok(Context::open(&name)?)
}

/// Marks each page of the message, `from` on, as the C programs do.
pub fn mark(options: &Options, region: &MemoryRegion<'_>, from: usize) {
    (0..options.size).step_by(PAGE).for_each(|page| region.write(from + page, &[0]));
}

/// Checks the marks of the received message.
pub fn check(options: &Options, region: &MemoryRegion<'_>, from: usize) -> Result<(), Box<dyn Error>> {
    let received = region.to_vec();
    match (0..options.size).step_by(PAGE).find(|page| received[from + page] != 0) {
        Some(page) => Err(format!("invalid data in page {}", page / PAGE).into()),
        None => Ok(()),
    }
}

/// Exchanges addresses with the other end; `ready` is called with the peer's before the peer may send.
pub fn meet<R>(
    options: &Options,
    local: &Address,
    ready: impl FnOnce(Address) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    show("local", local);
    let mut exchange = Exchange::start(options)?;
    if exchange.client {
        exchange.tell(local)?;
    }
    let remote = exchange.hear()?;
    let made = ready(remote)?;
    if exchange.client {
        exchange.done()?;
    } else {
        exchange.tell(local)?;
        exchange.wait_until_done()?;
    }
    show("remote", &remote);
    Ok(made)
}

/// Exchanges messages until both ends have sent and received all. `send` posts a send, `receive` a receive.
pub fn play(
    options: &Options,
    queue: &CompletionQueue,
    mut send: impl FnMut() -> Result<(), ferroce::Error>,
    mut receive: impl FnMut() -> Result<(), ferroce::Error>,
) -> Result<Duration, Box<dyn Error>> {
    let client = options.host.is_some();
    let started = Instant::now();
    let (mut sent, mut received, mut posted) = (0, 0, options.rx_depth);
    let mut sending = client;
    let mut receiving = true;
    if client {
        send()?;
    }
    while sent < options.iters || received < options.iters {
        let completion = queue.wait()?;
        if completion.status != Status::Success {
            return Err(
                format!("work request {} ended with {:?}", completion.wr_id, completion.status).into()
            );
        }
        if completion.wr_id == SEND {
            sent += 1;
            sending = false;
        } else {
            received += 1;
            receiving = false;
            posted -= 1;
            if posted <= 1 {
                for _ in posted..options.rx_depth {
                    receive()?;
                }
                posted = options.rx_depth;
            }
        }
        if !sending && !receiving && sent < options.iters {
            send()?;
            (sending, receiving) = (true, true);
        }
    }
    Ok(started.elapsed())
}

pub fn report(options: &Options, elapsed: Duration) {
    let octets = options.size as u64 * options.iters * 2;
    let seconds = elapsed.as_secs_f64();
    let megabits = octets as f64 * 8.0 / 1e6;
    println!("{octets} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", megabits / seconds);
    println!(
        "{} iters in {seconds:.2} seconds = {:.2} usec/iter",
        options.iters,
        seconds * 1e6 / options.iters as f64
    );
}

pub fn path_mtu(octets: usize) -> Result<PathMtu, Box<dyn Error>> {
    [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096]
        .into_iter()
        .find(|mtu| mtu.bytes() == octets)
        .ok_or_else(|| format!("--mtu {octets}: a path MTU is 256, 512, 1024, 2048 or 4096").into())
}

pub fn show(end: &str, address: &Address) {
    let gid = Ipv6Addr::from(address.gid.0);
    let (qpn, psn) = (address.qpn.value(), address.psn.value());
    println!("  {end:<6} address:  LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
}

/// The TCP connection over which the ends exchange their addresses, as text of 52 octets: LID, QPN, PSN and GID in
/// hexadecimal, separated by colons, with a zero octet at the end.
pub struct Exchange {
    stream: TcpStream,
    pub client: bool,
}

const TEXT: usize = 52;

impl Exchange {
    pub fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let stream = match &options.host {
            Some(host) => TcpStream::connect((host.as_str(), options.port))
                .map_err(|error| format!("cannot connect to {host}:{}: {error}", options.port))?,
            None => {
                let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
                let listener = TcpListener::bind((any, options.port))
                    .or_else(|_| TcpListener::bind(("0.0.0.0", options.port)))
                    .map_err(|error| format!("cannot listen on port {}: {error}", options.port))?;
                listener.accept()?.0
            }
        };
        Ok(Self { stream, client: options.host.is_some() })
    }

    pub fn tell(&mut self, address: &Address) -> Result<(), Box<dyn Error>> {
        let gid: String = address.gid.0.iter().map(|octet| format!("{octet:02x}")).collect();
        let text = format!("0000:{:06x}:{:06x}:{gid}\0", address.qpn.value(), address.psn.value());
        Ok(self.stream.write_all(text.as_bytes())?)
    }

    pub fn hear(&mut self) -> Result<Address, Box<dyn Error>> {
        let mut text = [0; TEXT];
        self.stream
            .read_exact(&mut text)
            .map_err(|error| format!("the other end sent no address: {error}"))?;
        parse(&text).ok_or_else(|| "the other end sent an invalid address".into())
    }

    pub fn done(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.stream.write_all(b"done\0")?)
    }

    pub fn wait_until_done(&mut self) -> Result<(), Box<dyn Error>> {
        let mut text = [0; 5];
        Ok(self.stream.read_exact(&mut text)?)
    }
}

fn parse(text: &[u8; TEXT]) -> Option<Address> {
    let text = std::str::from_utf8(text).ok()?.trim_end_matches('\0');
    let mut fields = text.split(':');
    let _lid = fields.next()?;
    let qpn = u32::from_str_radix(fields.next()?, 16).ok()?;
    let psn = u32::from_str_radix(fields.next()?, 16).ok()?;
    let gid = u128::from_str_radix(fields.next()?, 16).ok()?;
    let gid = Gid(gid.to_be_bytes());
    // The text has no MTU: both ends are started with the same `--mtu`.
    Some(Address::new(gid, Qpn::new(qpn), Psn::new(psn), PathMtu::B4096))
}
