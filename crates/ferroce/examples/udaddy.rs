//! Debian's `udaddy` in Rust: datagrams between two ends that resolve each other by IP address. Either end may be that
//! program.
//!
//! ```text
//! cargo run --release --example udaddy &
//! cargo run --release --example udaddy -- -s 127.0.0.1 -C 100
//! ```

use std::error::Error;
use std::iter::successors;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use ferroce::cm::{DatagramConnector, DatagramListener};
use ferroce::{
    Access, Completion, CompletionQueue, Context, HEADER, Imm, Init, MemoryRegion, ProtectionDomain, Qkey,
    QpOptions, QueuePair, ReadyToSend, Status, WorkRequest, service::Ud,
};

/// Sends datagrams, and has as many back.
#[derive(Parser)]
struct Options {
    /// The server's address; without it this end is the server
    #[arg(short)]
    server: Option<IpAddr>,
    /// The server's own address
    #[arg(short, default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    bind: IpAddr,
    /// Datagrams each way
    #[arg(short = 'C', default_value_t = 10)]
    count: u32,
    /// Octets of a datagram
    #[arg(short = 'S', default_value_t = 100)]
    size: usize,
}

/// Debian's program has no option for the port.
const PORT: u16 = 7174;
/// The Q_Key of librdmacm's datagrams.
const QKEY: Qkey = Qkey::new(0x0123_4567);
const RECV: u64 = 1;
const SEND: u64 = 2;

#[allow(dead_code, reason = "a test has its own")]
fn main() -> ExitCode {
    let Options { server, bind, count, size } = Options::parse();
    let done = match server {
        Some(server) => talk(SocketAddr::new(server, PORT), count, size),
        None => DatagramListener::bind(SocketAddr::new(bind, PORT))
            .map_err(Into::into)
            .and_then(|listener| serve(&listener, count, size)),
    };
    match done {
        Ok(()) => {
            println!("{count} datagrams each way");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let causes = successors(error.source(), |error| (*error).source());
            eprintln!("udaddy: {error}{}", causes.map(|error| format!(": {error}")).collect::<String>());
            ExitCode::FAILURE
        }
    }
}

/// Answers the next request with a queue pair, and returns all datagrams after the last arrived.
pub fn serve(listener: &DatagramListener, count: u32, size: usize) -> Result<(), Box<dyn Error>> {
    let request = listener.accept()?;
    let end = End::new(&request.device()?, count, size)?;
    // Its receives are posted already: the peer may send at once.
    request.answer(&end.qp, b"")?;
    let first = end.receive(count)?;
    let mut header = [0; HEADER];
    header.copy_from_slice(&end.memory.to_vec()[..HEADER]);
    let back = end.domain.answer(&header)?;
    end.send(count, |datagram| datagram.to(&back, first.src_qp, QKEY))
}

/// Resolves the server's queue pair, sends datagrams there and waits until they return.
pub fn talk(server: SocketAddr, count: u32, size: usize) -> Result<(), Box<dyn Error>> {
    let connector = DatagramConnector::new(server)?;
    let end = End::new(&connector.device()?, count, size)?;
    let peer = connector.ask(b"")?;
    let there = peer.address_handle(&end.domain)?;
    end.send(count, |datagram| datagram.to(&there, peer.qpn, peer.qkey))?;
    end.receive(count).map(drop)?;
    Ok(())
}

/// A UD queue pair with posted receives.
struct End {
    qp: QueuePair<ReadyToSend, Ud>,
    memory: MemoryRegion<'static>,
    domain: ProtectionDomain,
}

impl End {
    fn new(device: &Context, count: u32, size: usize) -> Result<Self, Box<dyn Error>> {
        let domain = device.protection_domain()?;
        let queue = || device.completion_queue(count, Some(&device.completion_channel()?));
        let options = QpOptions::default().max_send_wr(count).max_recv_wr(count);
        let qp: QueuePair<Init, Ud> = domain.ud_queue_pair(&queue()?, &queue()?, options)?.init(QKEY)?;
        let memory = domain.register(vec![0; HEADER + size], Access::LOCAL_WRITE)?;
        for _ in 0..count {
            qp.post_recv(RECV, &[memory.slice(..)])?;
        }
        Ok(Self { qp: qp.ready_to_receive()?.ready_to_send()?, memory, domain })
    }

    /// Sends datagrams. Their immediate data is our queue pair number, which Debian's server reads.
    fn send(
        &self,
        count: u32,
        to: impl Fn(WorkRequest) -> Result<WorkRequest, ferroce::Error>,
    ) -> Result<(), Box<dyn Error>> {
        let number = Imm(self.qp.qpn().value().to_be_bytes());
        for _ in 0..count {
            let datagram = WorkRequest::send_imm(SEND, &[self.memory.slice(HEADER..)], number);
            self.qp.post_send([&to(datagram)?])?;
        }
        completed(self.qp.send_queue(), count).map(drop)
    }

    /// Waits for `count` datagrams; returns the first.
    fn receive(&self, count: u32) -> Result<Completion, Box<dyn Error>> {
        completed(self.qp.receive_queue(), count)
    }
}

/// Waits for `count` completions; returns the first.
fn completed(queue: &CompletionQueue, count: u32) -> Result<Completion, Box<dyn Error>> {
    let mut first = None;
    for _ in 0..count {
        let done = queue.wait()?;
        if done.status != Status::Success {
            return Err(format!("a datagram completed with {:?}", done.status).into());
        }
        first.get_or_insert(done);
    }
    first.ok_or_else(|| "no datagram at all".into())
}
