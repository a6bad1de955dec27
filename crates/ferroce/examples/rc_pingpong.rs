//! `ibv_rc_pingpong` in Rust: the flags and the exchange of addresses are those of the program of
//! that name, so that either end may be it.
//!
//! ```text
//! cargo run --release --example rc_pingpong -- -d fr0 -g 0 &
//! cargo run --release --example rc_pingpong -- -d fr0 -g 0 127.0.0.1
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use ferroce::{
    Access, Address, Connection, Context, Gid, PathMtu, Psn, QpOptions, Qpn, QueuePair, ReadyToSend,
    SendOptions, Slice, Status,
};

/// Sends a message to and fro over a reliable connection.
#[derive(Parser)]
#[command(name = "rc_pingpong")]
struct Options {
    /// The server's name or address; without it this end is the server
    host: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// RDMA device, the first one if not given
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short, long, default_value_t = 1)]
    ib_port: u8,
    /// Octets of a message
    #[arg(short, long, default_value_t = 4096)]
    size: usize,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value_t = 1024)]
    mtu: usize,
    /// Receives posted at a time
    #[arg(short, long, default_value_t = 500)]
    rx_depth: u32,
    /// Exchanges
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u64,
    /// Sleep until something completes
    #[arg(short, long)]
    events: bool,
    /// Index of the local GID
    #[arg(short, long, default_value_t = 0)]
    gid_idx: u8,
    /// Check what arrived
    #[arg(short, long)]
    chk: bool,
}

/// One page of the check that the C program makes.
const PAGE: usize = 4096;
/// `wr_id` of receives and sends.
const RECV: u64 = 1;
const SEND: u64 = 2;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("rc_pingpong: {error}");
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

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let name = match &options.ib_dev {
        Some(name) => name.clone(),
        None => ferroce::devices()?.into_iter().next().ok_or("there is no RDMA device")?.name,
    };
    if options.ib_port != 1 {
        return Err(format!("port {} does not exist: {name} has port 1 only", options.ib_port).into());
    }
    let device = Context::open(&name)?;
    let domain = device.protection_domain()?;
    let fill = if options.host.is_some() { 0x7b } else { 0x7c };
    let region = domain.register(vec![fill; options.size], Access::LOCAL_WRITE)?;
    let channel = if options.events { Some(device.completion_channel()?) } else { None };
    let queue = device.completion_queue(options.rx_depth + 1, channel.as_ref())?;
    let sizes = QpOptions { max_send_wr: 1, max_recv_wr: options.rx_depth, ..QpOptions::default() };
    let qp = domain.rc_queue_pair(&queue, &queue, sizes)?.init(Access::empty())?;

    let whole = region.slice(..);
    for _ in 0..options.rx_depth {
        qp.post_recv(RECV, &[whole])?;
    }
    let local = qp.address(options.gid_idx)?;
    show("local", &local);

    let mut exchange = Exchange::start(options)?;
    if exchange.client {
        exchange.tell(&local)?;
    }
    let remote = exchange.hear()?;
    let connection = Connection { path_mtu: path_mtu(options.mtu)?, ..Connection::to(local, remote) };
    let connection = Connection { max_dest_rd_atomic: 1, ..connection };
    let sending = SendOptions { max_rd_atomic: 1, ..SendOptions::default() };
    let qp = qp.ready_to_receive(&connection)?.ready_to_send(sending)?;
    if exchange.client {
        exchange.done()?;
    } else {
        exchange.tell(&local)?;
        exchange.wait_until_done()?;
    }
    show("remote", &remote);

    if options.chk && exchange.client {
        for page in (0..options.size).step_by(PAGE) {
            region.write(page, &[0]);
        }
    }
    let elapsed = play(options, &qp, whole, exchange.client)?;
    report(options, elapsed);
    if options.chk && !exchange.client {
        let received = region.to_vec();
        if let Some(page) = (0..options.size).step_by(PAGE).find(|page| received[*page] != 0) {
            return Err(format!("invalid data in page {}", page / PAGE).into());
        }
    }
    Ok(())
}

/// To and fro, until both ends sent and received every message.
fn play(
    options: &Options,
    qp: &QueuePair<ReadyToSend>,
    memory: Slice,
    client: bool,
) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let (mut sent, mut received, mut posted) = (0, 0, options.rx_depth);
    let mut sending = client;
    let mut receiving = true;
    if client {
        qp.send(SEND, &[memory])?;
    }
    while sent < options.iters || received < options.iters {
        for completion in qp.send_queue().wait()? {
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
                        qp.post_recv(RECV, &[memory])?;
                    }
                    posted = options.rx_depth;
                }
            }
            if !sending && !receiving && sent < options.iters {
                qp.send(SEND, &[memory])?;
                (sending, receiving) = (true, true);
            }
        }
    }
    Ok(started.elapsed())
}

fn report(options: &Options, elapsed: Duration) {
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

fn path_mtu(octets: usize) -> Result<PathMtu, Box<dyn Error>> {
    [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096]
        .into_iter()
        .find(|mtu| mtu.bytes() == octets)
        .ok_or_else(|| format!("--mtu {octets}: a path MTU is 256, 512, 1024, 2048 or 4096").into())
}

fn show(end: &str, address: &Address) {
    let gid = Ipv6Addr::from(address.gid.0);
    let (qpn, psn) = (address.qpn.value(), address.psn.value());
    println!("  {end:<6} address:  LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
}

/// The TCP connection over which the ends tell each other their addresses, as text of 52 octets:
/// LID, QPN, PSN and GID in hexadecimal, colons between them, a zero octet at the end.
struct Exchange {
    stream: TcpStream,
    client: bool,
}

const TEXT: usize = 52;

impl Exchange {
    fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
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

    fn tell(&mut self, address: &Address) -> Result<(), Box<dyn Error>> {
        let gid: String = address.gid.0.iter().map(|octet| format!("{octet:02x}")).collect();
        let text = format!("0000:{:06x}:{:06x}:{gid}\0", address.qpn.value(), address.psn.value());
        Ok(self.stream.write_all(text.as_bytes())?)
    }

    fn hear(&mut self) -> Result<Address, Box<dyn Error>> {
        let mut text = [0; TEXT];
        self.stream
            .read_exact(&mut text)
            .map_err(|error| format!("the other end sent no address: {error}"))?;
        parse(&text).ok_or_else(|| "the other end sent something that is no address".into())
    }

    fn done(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.stream.write_all(b"done\0")?)
    }

    fn wait_until_done(&mut self) -> Result<(), Box<dyn Error>> {
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
    Some(Address { gid: Gid(gid.to_be_bytes()), qpn: Qpn::new(qpn), psn: Psn::new(psn), gid_index: 0 })
}
