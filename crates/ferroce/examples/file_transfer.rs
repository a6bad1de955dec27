//! Sends a file over one connection, and compares the checksums of both ends.
//!
//!     file_transfer receive 192.0.2.1:7471 FILE
//!     file_transfer send 192.0.2.1:7471 FILE
//!
//! The private data of the request is the size of the file. The receiver answers each message with its checksum so far.
//! Without answers the sender would be ahead of the posted receives, and its queue pair would pause often (RNR).

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use ferroce::cm::{Connector, EndOptions, Listener};
use ferroce::{Access, CompletionQueue};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The largest message in octets.
const CHUNK: usize = 1 << 18;
/// Messages that the receiver has not answered yet.
const DEPTH: usize = 8;
const RING: usize = DEPTH * CHUNK;

/// Transfers a file
#[derive(Parser)]
enum Command {
    /// Wait for a sender and write its file
    Receive { address: SocketAddr, file: PathBuf },
    /// Send a file to the receiver at this address
    Send { receiver: SocketAddr, file: PathBuf },
}

#[allow(dead_code, reason = "a test has its own")]
fn main() -> Result<()> {
    match Command::parse() {
        Command::Receive { address, file } => receive(&Listener::bind(address)?, &file),
        Command::Send { receiver, file } => send(receiver, &file),
    }
}

/// Writes the file of one sender.
pub fn receive(listener: &Listener, path: &Path) -> Result<()> {
    let request = listener.accept()?;
    let size = request.private_data().first_chunk().ok_or("the sender names no size")?;
    let mut progress = Progress::new(u64::from_be_bytes(*size));
    let mut file = File::create(path)?;
    let end = request.prepare(&EndOptions::default())?;
    let region = end.domain().allocate(RING, Access::LOCAL_WRITE)?;
    for start in (0..RING).step_by(CHUNK) {
        end.queue_pair().post_recv(0, &[region.slice(start..start + CHUNK)])?;
    }
    let mut connection = end.accept(b"")?;
    let qp = connection.queue_pair();
    let mut octets = vec![0; CHUNK];
    while progress.done < progress.size {
        let part = progress.next_part();
        done(qp.receive_queue())?;
        let octets = &mut octets[..part.len()];
        region.read(part.start, octets);
        qp.post_recv(0, &[region.slice(part.start..part.start + CHUNK)])?;
        file.write_all(octets)?;
        progress.add(octets);
        qp.send_inline(0, &progress.checksum.to_be_bytes())?;
        // The sender disconnects when it has the last answer. After an earlier failure the next receive fails.
        let _ = done(qp.send_queue());
    }
    Ok(connection.wait_disconnected()?)
}

/// Sends a file, and fails if the receiver has another checksum.
pub fn send(receiver: SocketAddr, path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut progress = Progress::new(file.metadata()?.len());
    let end = Connector::new(receiver, &EndOptions::default())?;
    let region = end.domain().allocate(RING, Access::empty())?;
    // All answers arrive here, in order: the last one stays.
    let answer = end.domain().allocate(8, Access::LOCAL_WRITE)?;
    let connection = end.connect(&progress.size.to_be_bytes())?;
    let qp = connection.queue_pair();
    let answered = || done(qp.send_queue()).and_then(|()| done(qp.receive_queue()));
    let mut octets = vec![0; CHUNK];
    let mut in_flight = 0;
    while progress.done < progress.size {
        if in_flight == DEPTH {
            answered()?;
            in_flight -= 1;
        }
        let part = progress.next_part();
        let octets = &mut octets[..part.len()];
        file.read_exact(octets)?;
        region.write(part.start, octets);
        qp.post_recv(0, &[answer.slice(..)])?;
        qp.send(0, &[region.slice(part)])?;
        in_flight += 1;
        progress.add(octets);
    }
    for _ in 0..in_flight {
        answered()?;
    }
    let theirs = u64::from_be(answer.load(0));
    if progress.size > 0 && theirs != progress.checksum {
        return Err(format!("checksum {:x}, but the receiver's is {theirs:x}", progress.checksum).into());
    }
    Ok(connection.disconnect()?)
}

/// The octets so far and their checksum (FNV-1a).
struct Progress {
    size: u64,
    done: u64,
    checksum: u64,
    started: Instant,
}

impl Progress {
    fn new(size: u64) -> Self {
        Self { size, done: 0, checksum: 0xcbf2_9ce4_8422_2325, started: Instant::now() }
    }

    /// The part of the ring for the next message. All messages but the last one are of `CHUNK` octets.
    fn next_part(&self) -> std::ops::Range<usize> {
        let start = self.done as usize % RING;
        start..start + (self.size - self.done).min(CHUNK as u64) as usize
    }

    /// Counts a message. Shows the progress each 8 MiB and at the end.
    fn add(&mut self, octets: &[u8]) {
        self.done += octets.len() as u64;
        for octet in octets {
            self.checksum = (self.checksum ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3);
        }
        if self.done.is_multiple_of(4 * RING as u64) || self.done == self.size {
            let rate = self.done as f64 / 1e6 / self.started.elapsed().as_secs_f64();
            let end = if self.done == self.size { "\n" } else { "" };
            eprint!("\r{} of {} octets, {rate:.0} MB/s{end}", self.done, self.size);
        }
    }
}

/// Waits for a work request that must succeed.
fn done(queue: &CompletionQueue) -> Result<()> {
    let _sent_or_received = queue.wait()?.ok()?;
    Ok(())
}
