//! The two ends of the baselines: a TCP stream, UDP datagrams in one direction, and ping-pongs by UDP and TCP. Each end is a
//! process of its own (`xtask bench-end`), and the receiver checks what it got, as `vbench` does for RDMA.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Kind {
    /// A loop of writes on one TCP stream.
    Tcp,
    /// A TCP ping-pong, both ends waiting by epoll on a non-blocking socket.
    TcpEpoll,
    /// A TCP ping-pong, both ends spinning on reads that do not block.
    TcpSpin,
    /// A TCP ping-pong, both ends blocking.
    TcpBlock,
    /// A UDP ping-pong, both ends spinning.
    UdpSpin,
    /// A UDP ping-pong, both ends blocking.
    UdpBlock,
    /// UDP datagrams in one direction, each sent and received by a call of its own.
    UdpOne,
    /// The same, 64 of them in one call, by segmentation offload at both ends.
    UdpGso,
    /// No exchange: one end that computes for as many seconds as it is told messages.
    Busy,
}

/// Datagrams in one call of [`Kind::UdpGso`].
const SEGMENTS: usize = 64;

/// Arguments of an end.
#[derive(Args)]
pub struct EndArgs {
    kind: Kind,
    /// Bytes of a message.
    size: usize,
    /// Messages; not used with --seconds.
    count: u64,
    /// A TCP stream of that length instead of a number of messages.
    #[arg(long)]
    seconds: Option<f64>,
    /// The congestion control of a TCP stream; without it, the system's.
    #[arg(long)]
    congestion: Option<String>,
    /// The address to listen at.
    #[arg(long)]
    listen: Option<String>,
    /// The address to connect to.
    #[arg(long)]
    connect: Option<String>,
}

/// Byte `i` of a message; the number of the message overlays its first eight bytes, and its last eight.
fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(7) ^ (i >> 8)) as u8
}

fn stamp(message: &mut [u8], number: u64) {
    let octets = number.to_ne_bytes();
    let end = message.len();
    message[..8].copy_from_slice(&octets);
    message[end - 8..].copy_from_slice(&octets);
}

fn is_stamped(message: &[u8], number: u64) -> bool {
    message.starts_with(&number.to_ne_bytes()) && message.ends_with(&number.to_ne_bytes())
}

/// Runs one end; the client prints what `vbench` prints.
pub fn run(args: &EndArgs) -> Result<()> {
    ensure!(args.size >= 8, "messages are of at least 8 bytes");
    ensure!(args.count > 0 || args.seconds.is_some(), "say how many messages, or how long");
    match (&args.listen, &args.connect, args.kind) {
        (_, _, Kind::Busy) => busy(args.count),
        (Some(at), None, Kind::UdpOne | Kind::UdpGso) => stream_server(at, args),
        (None, Some(to), Kind::UdpOne | Kind::UdpGso) => stream_client(to, args),
        (Some(at), None, Kind::Tcp) => tcp_server(at, args),
        (None, Some(to), Kind::Tcp) => tcp_client(to, args),
        (Some(at), None, Kind::TcpEpoll) => tcp_answerer(at, args),
        (None, Some(to), Kind::TcpEpoll) => tcp_asker(to, args),
        (Some(at), None, Kind::TcpSpin | Kind::TcpBlock) => stream_answerer(at, args),
        (None, Some(to), Kind::TcpSpin | Kind::TcpBlock) => stream_asker(to, args),
        (Some(at), None, _) => udp_server(at, args),
        (None, Some(to), _) => udp_client(to, args),
        _ => bail!("say --listen or --connect"),
    }
}

fn busy(seconds: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        std::hint::spin_loop();
    }
    Ok(())
}

fn tcp_server(at: &str, args: &EndArgs) -> Result<()> {
    let (mut stream, _) = TcpListener::bind(at)?.accept()?;
    let mut message = vec![0; args.size];
    for number in 0..args.seconds.map_or(args.count, |_| u64::MAX) {
        // A sender with a time limit ends the stream.
        if args.seconds.is_some() && stream.peek(&mut [0])? == 0 {
            break;
        }
        stream.read_exact(&mut message)?;
        ensure!(is_stamped(&message, number), "message {number} is wrong");
    }
    let body = message.get(8..args.size.saturating_sub(8)).unwrap_or_default();
    ensure!(body.iter().enumerate().all(|(i, b)| *b == pattern(i + 8)), "the last message is wrong");
    stream.write_all(b"x")?;
    Ok(())
}

fn tcp_client(to: &str, args: &EndArgs) -> Result<()> {
    let mut stream = TcpStream::connect(to).context("connect")?;
    stream.set_nodelay(true)?;
    if let Some(name) = &args.congestion {
        setsockopt(&stream, sockopt::TcpCongestion, &name.into()).with_context(|| name.clone())?;
    }
    let mut message: Vec<u8> = (0..args.size).map(pattern).collect();
    let mut gaps = Gaps::new();
    let is_over = |gaps: &Gaps, number| match args.seconds {
        Some(seconds) => gaps.elapsed().as_secs_f64() >= seconds,
        None => number == args.count,
    };
    let mut number = 0;
    while !is_over(&gaps, number) {
        stamp(&mut message, number);
        stream.write_all(&message)?;
        gaps.progress();
        number += 1;
    }
    // The end of a WRITE is its acknowledgement; here it is the receiver's word.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    gaps.progress();
    let (seconds, gap) = (gaps.elapsed().as_secs_f64(), gaps.longest.as_nanos());
    println!("seconds {seconds:.9} gap {gap} messages {number}");
    Ok(())
}

/// The longest time without progress.
struct Gaps {
    began: Instant,
    last: Instant,
    longest: Duration,
}

impl Gaps {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, longest: Duration::ZERO }
    }

    fn progress(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
    }

    /// From the beginning to the last progress.
    fn elapsed(&self) -> Duration {
        self.last - self.began
    }
}

/// Receives until all are there, or none comes any more: the network may lose some. The sender is told what arrived.
fn stream_server(at: &str, args: &EndArgs) -> Result<()> {
    let merged = args.kind == Kind::UdpGso;
    let (socket, mut stream) = udp_answerer(at, args.kind)?;
    setsockopt(&socket, sockopt::RcvBuf, &(4 << 20))?;
    setsockopt(&socket, sockopt::UdpGroSegment, &merged)?;
    stream.write_all(b"x")?;
    let mut buffer = vec![0; 65_536];
    let (mut received, mut next, mut gaps) = (0, 0, None);
    while received < args.count {
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            // The first one may take its time, since the sender starts when it has heard of this end.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && received > 0 => break,
            Err(error) => return Err(error).context("no datagram came"),
        };
        let gaps = gaps.get_or_insert_with(|| {
            socket.set_read_timeout(Some(Duration::from_millis(500))).ok();
            Gaps::new()
        });
        gaps.progress();
        for message in buffer.get(..length).unwrap_or_default().chunks(args.size) {
            let number = message.first_chunk().map(|octets| u64::from_ne_bytes(*octets)).unwrap_or_default();
            ensure!(message.len() == args.size && number >= next, "datagram {number} after {next}");
            next = number + 1;
            received += 1;
        }
    }
    let gaps = gaps.context("no datagram came")?;
    let text = format!(
        "seconds {:.9} gap {} messages {received}",
        gaps.elapsed().as_secs_f64(),
        gaps.longest.as_nanos()
    );
    stream.write_all(text.as_bytes())?;
    Ok(())
}

fn stream_client(to: &str, args: &EndArgs) -> Result<()> {
    let (socket, mut stream) = udp_asker(to, args.kind)?;
    let batch = if args.kind == Kind::UdpGso { SEGMENTS.min(60_000 / args.size).max(1) } else { 1 };
    if batch > 1 {
        setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(args.size)?)?;
    }
    let mut buffer: Vec<u8> = (0..batch * args.size).map(|i| pattern(i % args.size)).collect();
    for first in (0..args.count).step_by(batch) {
        let count = usize::try_from(args.count - first)?.min(batch);
        for (number, message) in (first..).zip(buffer.chunks_mut(args.size)) {
            stamp(message, number);
        }
        socket.send(buffer.get(..count * args.size).unwrap_or_default())?;
    }
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(!text.is_empty(), "the other end is gone");
    println!("{text}");
    Ok(())
}

/// An event loop around one stream.
struct Loop {
    set: Epoll,
    stream: TcpStream,
}

impl Loop {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        set.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { set, stream })
    }

    /// One message.
    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        let mut have = 0;
        while have < message.len() {
            let limit = EpollTimeout::from(5000u16);
            ensure!(self.set.wait(&mut [EpollEvent::empty()], limit)? == 1, "a message was lost");
            let got = self.stream.read(&mut message[have..])?;
            ensure!(got > 0, "the other end is gone");
            have += got;
        }
        Ok(())
    }
}

fn tcp_answerer(at: &str, args: &EndArgs) -> Result<()> {
    let mut events = Loop::new(TcpListener::bind(at)?.accept()?.0)?;
    let mut message = vec![0; args.size];
    for number in 0..args.count {
        events.receive(&mut message)?;
        ensure!(is_stamped(&message, number), "message {number} is wrong");
        events.stream.write_all(&message)?;
    }
    Ok(())
}

fn tcp_asker(to: &str, args: &EndArgs) -> Result<()> {
    let mut events = Loop::new(TcpStream::connect(to).context("connect")?)?;
    let mut message: Vec<u8> = (0..args.size).map(pattern).collect();
    ping_pong(args, &mut message, |message| {
        events.stream.write_all(message)?;
        events.receive(message)
    })
}

/// One message of a stream that does not block, or does.
fn read_message(stream: &mut TcpStream, message: &mut [u8]) -> Result<()> {
    let (mut have, deadline) = (0, Instant::now() + Duration::from_secs(5));
    while have < message.len() {
        match stream.read(&mut message[have..]) {
            Ok(0) => bail!("the other end is gone"),
            Ok(got) => have += got,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => return Err(error).context("a message was lost"),
        }
    }
    Ok(())
}

/// A stream for [`read_message`]; a blocking one gives up after a while.
fn ping_stream(stream: TcpStream, kind: Kind) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(kind == Kind::TcpSpin)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

fn stream_answerer(at: &str, args: &EndArgs) -> Result<()> {
    let mut stream = ping_stream(TcpListener::bind(at)?.accept()?.0, args.kind)?;
    let mut message = vec![0; args.size];
    for number in 0..args.count {
        read_message(&mut stream, &mut message)?;
        ensure!(is_stamped(&message, number), "message {number} is wrong");
        stream.write_all(&message)?;
    }
    Ok(())
}

fn stream_asker(to: &str, args: &EndArgs) -> Result<()> {
    let mut stream = ping_stream(TcpStream::connect(to).context("connect")?, args.kind)?;
    let mut message: Vec<u8> = (0..args.size).map(pattern).collect();
    ping_pong(args, &mut message, |message| {
        stream.write_all(message)?;
        read_message(&mut stream, message)
    })
}

/// The socket, spinning or not; a blocking one gives up after a while, since a datagram may be lost.
fn udp(at: &str, kind: Kind) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(kind == Kind::UdpSpin)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(socket)
}

fn recv(socket: &UdpSocket, message: &mut [u8]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match socket.recv(message) {
            Ok(n) => {
                ensure!(n == message.len(), "a datagram of {n} bytes");
                return Ok(());
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => return Err(error).context("a datagram was lost"),
        }
    }
}

/// The answering end's socket, connected to the asking end's, and the TCP stream by which they found each other: the TCP
/// port of the same number tells the client that this end is ready.
fn udp_answerer(at: &str, kind: Kind) -> Result<(UdpSocket, TcpStream)> {
    let socket = udp(at, kind)?;
    let (mut stream, _) = TcpListener::bind(at)?.accept()?;
    let mut peer = [0; 64];
    let length = stream.read(&mut peer)?;
    socket.connect(std::str::from_utf8(peer.get(..length).unwrap_or_default())?)?;
    Ok((socket, stream))
}

fn udp_asker(to: &str, kind: Kind) -> Result<(UdpSocket, TcpStream)> {
    let mut stream = TcpStream::connect(to).context("connect")?;
    let own = SocketAddr::new(stream.local_addr()?.ip(), 0);
    let socket = udp(&own.to_string(), kind)?;
    socket.connect(to)?;
    stream.write_all(socket.local_addr()?.to_string().as_bytes())?;
    stream.read_exact(&mut [0])?;
    Ok((socket, stream))
}

fn udp_server(at: &str, args: &EndArgs) -> Result<()> {
    let (socket, mut stream) = udp_answerer(at, args.kind)?;
    stream.write_all(b"x")?;
    let mut message = vec![0; args.size];
    for number in 0..args.count {
        recv(&socket, &mut message)?;
        ensure!(is_stamped(&message, number), "message {number} is wrong");
        socket.send(&message)?;
    }
    Ok(())
}

fn udp_client(to: &str, args: &EndArgs) -> Result<()> {
    let (socket, _stream) = udp_asker(to, args.kind)?;
    let mut message: Vec<u8> = (0..args.size).map(pattern).collect();
    ping_pong(args, &mut message, |message| {
        socket.send(message)?;
        recv(&socket, message)
    })
}

/// Sends each message by `exchange`, which leaves the answer in its place; prints half the time.
fn ping_pong(
    args: &EndArgs,
    message: &mut [u8],
    mut exchange: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut half = Vec::with_capacity(usize::try_from(args.count)?);
    for number in 0..args.count {
        let started = Instant::now();
        stamp(message, number);
        exchange(message)?;
        ensure!(is_stamped(message, number), "message {number} is wrong");
        half.push(started.elapsed().as_nanos() / 2);
    }
    half.sort_unstable();
    let at = |percent: usize| half.get(half.len() * percent / 100).copied().unwrap_or_default();
    println!("median {} p99 {} max {}", at(50), at(99), half.last().copied().unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(host: &str, kind: Kind, size: usize, count: u64) {
        let at = format!("{host}:{}", 30_000 + std::process::id() % 20_000 + kind as u32);
        let end = |listen: bool| EndArgs {
            kind,
            size,
            count,
            seconds: None,
            congestion: None,
            listen: listen.then(|| at.clone()),
            connect: (!listen).then(|| at.clone()),
        };
        let (server, client) = (end(true), end(false));
        std::thread::scope(|scope| {
            let server = scope.spawn(move || run(&server));
            std::thread::sleep(Duration::from_millis(100));
            run(&client).unwrap();
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_baselines_exchange_and_verify() {
        both("127.0.0.1", Kind::Tcp, 1000, 50);
        both("127.0.0.1", Kind::TcpEpoll, 8, 50);
        both("127.0.0.1", Kind::TcpSpin, 8, 50);
        both("127.0.0.1", Kind::TcpBlock, 8, 50);
        both("127.0.0.1", Kind::UdpBlock, 8, 50);
        both("127.0.0.1", Kind::UdpSpin, 24, 50);
        both("127.0.0.1", Kind::UdpOne, 8, 500);
        both("127.0.0.1", Kind::UdpGso, 8, 500);
        both("[::1]", Kind::UdpSpin, 8, 50);
    }
}
