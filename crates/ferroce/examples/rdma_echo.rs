//! A server that returns each message, and its client. They connect by IP address.
//!
//!     rdma_echo --port 7471                   the server
//!     rdma_echo --port 7471 192.0.2.1 -n 100  the client

use std::error::Error;
use std::iter::successors;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use ferroce::cm::{Connected, Connector, EndOptions, Listener, Request};
use ferroce::{Access, MemoryRegion, Opcode, QpOptions, Status};

/// Sends back what it receives, or sends and compares what comes back.
#[derive(Parser)]
struct Options {
    /// The server's name or address; without it this end is the server
    host: Option<String>,
    /// Port of the CM, which has nothing to do with TCP's
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// The server ends after so many connections
    #[arg(short, long)]
    connections: Option<usize>,
    /// Messages
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u64,
    /// Octets of a message
    #[arg(short, long, default_value_t = 4096)]
    size: usize,
}

const RECV: u64 = 1;
const SEND: u64 = 2;

#[allow(dead_code, reason = "a test has its own")]
fn main() -> ExitCode {
    let options = Options::parse();
    let run = || match &options.host {
        Some(host) => {
            let server =
                (host.as_str(), options.port).to_socket_addrs()?.next().ok_or("it has no address")?;
            let started = Instant::now();
            talk(server, options.size, options.iters)?;
            let each = started.elapsed().as_secs_f64() * 1e6 / options.iters as f64;
            println!("{} messages of {} octets, {each:.2} usec each", options.iters, options.size);
            Ok(())
        }
        None => {
            let listener = Listener::bind(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), options.port))?;
            serve(&listener, options.connections.unwrap_or(usize::MAX))
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = successors(error.source(), |error| (*error).source());
            eprintln!("rdma_echo: {error}{}", causes.map(|error| format!(": {error}")).collect::<String>());
            ExitCode::FAILURE
        }
    }
}

/// Serves one connection after the other.
pub fn serve(listener: &Listener, connections: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..connections {
        echo(listener.accept()?)?;
    }
    Ok(())
}

/// The client's private data are the length of its messages.
fn echo(request: Request) -> Result<(), Box<dyn Error>> {
    let size = usize::from(u16::from_be_bytes([request.private_data()[0], request.private_data()[1]]));
    if size == 0 {
        return Ok(request.reject(b"how long?")?);
    }
    let one = QpOptions::default().max_send_wr(1).max_recv_wr(1);
    let end = request.prepare(&EndOptions::default().queues(one))?;
    let region = end.domain().register(vec![0; 2 * size], Access::LOCAL_WRITE)?;
    let half = |n: usize, len: usize| region.slice(n % 2 * size..n % 2 * size + len);
    end.queue_pair().post_recv(RECV, &[half(0, size)])?;
    let mut connection = end.accept(b"")?;
    let mut n = 0;
    while let Some(len) = receive(&connection)? {
        // The peer sends the next message after this one returned, so its receive is posted first.
        connection.queue_pair().post_recv(RECV, &[half(n + 1, size)])?;
        connection.queue_pair().send(SEND, &[half(n, len)])?;
        // If the peer disconnected meanwhile, this completion is flushed, and so is the next receive.
        let _ = connection.queue_pair().send_queue().wait()?;
        n += 1;
    }
    connection.wait_disconnected()?;
    Ok(connection.disconnect()?)
}

/// Returns the length of the next message; `None` if the peer disconnected, which flushes the queue pair.
fn receive(connection: &Connected) -> Result<Option<usize>, Box<dyn Error>> {
    let completion = connection.queue_pair().receive_queue().wait()?;
    match (completion.status, completion.opcode) {
        (Status::Success, Opcode::Recv) => Ok(Some(completion.len as usize)),
        _ => Ok(None),
    }
}

/// Sends messages and compares those that return.
pub fn talk(server: SocketAddr, size: usize, iters: u64) -> Result<(), Box<dyn Error>> {
    let said = u16::try_from(size)?.to_be_bytes();
    let end = Connector::new(server, &EndOptions::default())?;
    let sent = end.domain().register(vec![0; size], Access::LOCAL_WRITE)?;
    let back = end.domain().register(vec![0; size], Access::LOCAL_WRITE)?;
    let mut connection = end.connect(&said)?;
    for n in 0..iters {
        one_message(&connection, &sent, &back, n)?;
    }
    connection.disconnect()?;
    Ok(connection.wait_disconnected()?)
}

fn one_message(
    connection: &Connected,
    sent: &MemoryRegion<'_>,
    back: &MemoryRegion<'_>,
    n: u64,
) -> Result<(), Box<dyn Error>> {
    let text: Vec<u8> = n.to_be_bytes().into_iter().cycle().take(sent.len()).collect();
    sent.write(0, &text);
    let qp = connection.queue_pair();
    qp.post_recv(RECV, &[back.slice(..)])?;
    qp.send(SEND, &[sent.slice(..)])?;
    receive(connection)?.ok_or("the server ended the connection")?;
    match qp.send_queue().wait()?.status {
        Status::Success => {}
        failed => return Err(format!("a send ended with {failed:?}").into()),
    }
    if back.to_vec() != text {
        return Err(format!("message {n} came back changed").into());
    }
    Ok(())
}
