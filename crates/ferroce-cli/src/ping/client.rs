//! The end of a ping that asks: each operation once, then latency and bandwidth.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferroce::cm::{Connected, Connector};
use ferroce::error::{self, ErrorKind};
use ferroce::{Access, Context as Device, Imm, MemoryRegion, QpState, RemoteMemory, WorkRequest};

use super::Local;
use super::ends::{self, ANSWER, IMM, INBOX, LARGE, SHORT, WORD};
use crate::finding::{Finding, Severity};

/// Time limit for one step.
const LIMIT: Duration = Duration::from_secs(3);
/// Duration of the measurement of latency, and of that of bandwidth.
const MEASURED: Duration = Duration::from_millis(200);
/// WRITEs in flight during the measurement of bandwidth.
const IN_FLIGHT: usize = 4;
/// The value that compare-and-swap stores, and the one that fetch-and-add adds.
const STORED: u64 = 0x0123_4567_89ab_cdef;
const ADDED: u64 = 0x1111;
/// Offset of the octets that READs and atomics return, behind the answer.
const RETURNED: usize = ANSWER;
/// Offset of the octets to send, behind the returned ones.
const OUT: usize = RETURNED + INBOX;

/// An operation: its name and its test, which returns what was seen.
type Step = (&'static str, fn(&Client) -> Result<String>);

const STEPS: [Step; 9] = [
    ("SEND", Client::send),
    ("SEND imm", Client::send_imm),
    ("WRITE", Client::write),
    ("WRITE imm", Client::write_imm),
    ("READ", Client::read),
    ("CMP_SWAP", Client::compare_swap),
    ("FETCH_ADD", Client::fetch_add),
    ("latency", Client::latency),
    ("bandwidth", Client::bandwidth),
];

/// A connection to an end that answers.
pub struct Client {
    // Dropped first: the queue pair uses the memory.
    connection: Connected,
    own: MemoryRegion<'static>,
    large: MemoryRegion<'static>,
    there: RemoteMemory,
}

impl Client {
    /// Prepares a connection to `peer`: from a device of this host and its address, or from those that reach
    /// the peer.
    pub fn connector(local: Option<&Local>, peer: SocketAddr) -> Result<Connector, ferroce::Error> {
        match local {
            Some(Local { device, address }) => {
                Connector::bound(*address, peer, &ends::options(&Device::open(device)?)?)
            }
            None => Connector::new(peer, &ends::options(&Connector::device_for(peer)?)?),
        }
    }

    /// Takes over a connection; `None` if the other end is no `ferroce ping --serve` of this version.
    pub fn new(connection: Connected) -> Result<Option<Self>> {
        let Some(there) = ends::memory_of(connection.private_data()) else { return Ok(None) };
        let domain = connection.domain();
        let own = domain.allocate(OUT + INBOX, Access::LOCAL_WRITE)?;
        let octets: Vec<u8> = (0..LARGE).map(|n| ((n * 31) >> 3) as u8).collect();
        let large = domain.register(octets, Access::LOCAL_WRITE)?;
        Ok(Some(Self { connection, own, large, there }))
    }

    /// Does each operation once, then measures. Stops where the connection breaks.
    pub fn run(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, step) in STEPS {
            if self.connection.queue_pair().state() == QpState::Error {
                findings.push(Finding::new(name, Severity::Note, "was not tried: the connection is broken"));
                continue;
            }
            findings.push(match step(self) {
                Ok(found) => Finding::ok(name, found),
                Err(why) => failed(name, &why),
            });
        }
        findings
    }

    fn send(&self) -> Result<String> {
        let sent = self.pattern(1);
        let answer = self.ask(&WorkRequest::send(0, &[self.own.slice(OUT..)]))?;
        same(&answer[..INBOX], &sent)?;
        Ok(format!("{INBOX} octets there and back"))
    }

    fn send_imm(&self) -> Result<String> {
        let (sent, imm) = (self.pattern(2), Imm(*b"ping"));
        let answer = self.ask(&WorkRequest::send_imm(0, &[self.own.slice(OUT..)], imm))?;
        same(&answer[..INBOX], &sent)?;
        same(&answer[IMM..][..4], &imm.0)?;
        Ok(format!("{INBOX} octets and immediate data"))
    }

    fn write(&self) -> Result<String> {
        let sent = self.pattern(3);
        self.finish(&WorkRequest::write(0, &[self.own.slice(OUT..)], self.remote(INBOX)))?;
        let answer = self.ask(&WorkRequest::send(0, &[]))?;
        same(&answer[INBOX..WORD], &sent)?;
        Ok(format!("{INBOX} octets arrived"))
    }

    fn write_imm(&self) -> Result<String> {
        let (sent, imm) = (self.pattern(4), Imm(*b"pong"));
        let to = self.remote(INBOX);
        let answer = self.ask(&WorkRequest::write_imm(0, &[self.own.slice(OUT..)], to, imm))?;
        same(&answer[INBOX..WORD], &sent)?;
        same(&answer[IMM..][..4], &imm.0)?;
        Ok(format!("{INBOX} octets and immediate data"))
    }

    fn read(&self) -> Result<String> {
        let into = self.own.slice(RETURNED..RETURNED + INBOX);
        self.finish(&WorkRequest::read(0, &[into], self.remote(INBOX)))?;
        same(&self.octets::<INBOX>(RETURNED), &self.octets::<INBOX>(OUT))?;
        Ok(format!("{INBOX} octets, those of the last WRITE"))
    }

    fn compare_swap(&self) -> Result<String> {
        let swap =
            |compare, swap| self.atomic(|old, at| WorkRequest::compare_swap(0, old, at, compare, swap));
        ensure!(swap(0, STORED)? == 0, "the first value was not 0");
        // Compares unequal, so it changes nothing.
        ensure!(swap(0, 1)? == STORED, "the value was not stored");
        Ok("stored if equal, and not if unequal".to_owned())
    }

    fn fetch_add(&self) -> Result<String> {
        let add = |add| self.atomic(|old, at| WorkRequest::fetch_add(0, old, at, add));
        let first = add(ADDED)?;
        ensure!(add(0)? == first.wrapping_add(ADDED), "the value was not added");
        Ok("added once".to_owned())
    }

    /// The median of half a round trip.
    fn latency(&self) -> Result<String> {
        let (mut times, end) = (Vec::new(), Instant::now() + MEASURED);
        while Instant::now() < end {
            let begin = Instant::now();
            self.exchange(&WorkRequest::send(0, &[]).inline(&[0; SHORT]))?;
            times.push(begin.elapsed() / 2);
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).context("no round trip")?;
        let micros = median.as_secs_f64() * 1e6;
        Ok(format!("{micros:.2} µs one way, {SHORT} octets, median of {}", times.len()))
    }

    fn bandwidth(&self) -> Result<String> {
        let queue = self.connection.queue_pair().send_queue();
        let request = WorkRequest::write(0, &[self.large.slice(..)], self.remote(INBOX));
        let (begin, mut posted, mut done) = (Instant::now(), 0, 0);
        while done < posted || begin.elapsed() < MEASURED {
            while posted < done + IN_FLIGHT && begin.elapsed() < MEASURED {
                self.connection.queue_pair().post_send([&request])?;
                posted += 1;
            }
            ends::next(queue, Instant::now() + LIMIT).map(drop)?;
            done += 1;
        }
        let rate = (done * LARGE) as f64 / begin.elapsed().as_secs_f64();
        let sent = self.large.to_vec();
        self.large.write(0, &vec![0; LARGE]);
        self.finish(&WorkRequest::read(0, &[self.large.slice(..)], self.remote(INBOX)))?;
        same(&self.large.to_vec(), &sent)?;
        Ok(format!("{:.2} GB/s, WRITEs of 1 MiB", rate / 1e9))
    }

    /// Fills the octets to send, differently for each `seed`.
    fn pattern(&self, seed: u8) -> [u8; INBOX] {
        let octets = std::array::from_fn(|n| seed.wrapping_mul(67).wrapping_add(n as u8));
        self.own.write(OUT, &octets);
        octets
    }

    fn octets<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut octets = [0; N];
        self.own.read(at, &mut octets);
        octets
    }

    fn remote(&self, offset: usize) -> RemoteMemory {
        RemoteMemory { addr: self.there.addr.wrapping_add(offset as u64), ..self.there }
    }

    /// Does an atomic with the word of the peer, and returns the word's former value.
    fn atomic(&self, request: impl Fn(ferroce::Slice, RemoteMemory) -> WorkRequest) -> Result<u64> {
        let old = self.own.slice(RETURNED..RETURNED + size_of::<u64>());
        self.finish(&request(old, self.remote(WORD)))?;
        Ok(u64::from_ne_bytes(self.octets(RETURNED)))
    }

    /// Posts a request, and waits for its completion.
    fn finish(&self, request: &WorkRequest) -> Result<()> {
        self.connection.queue_pair().post_send([request])?;
        ends::next(self.connection.queue_pair().send_queue(), Instant::now() + LIMIT).map(drop)
    }

    /// Posts a request that consumes a receive of the peer, and waits for the answer.
    fn exchange(&self, request: &WorkRequest) -> Result<()> {
        let qp = self.connection.queue_pair();
        qp.post_recv(0, &[self.own.slice(..ANSWER)])?;
        self.finish(request)?;
        ends::next(qp.receive_queue(), Instant::now() + LIMIT).map(drop).context("the answer")
    }

    /// As [`Self::exchange`], and returns the answer.
    fn ask(&self, request: &WorkRequest) -> Result<[u8; ANSWER]> {
        self.exchange(request)?;
        Ok(self.octets(0))
    }
}

/// The finding of a step that failed. An operation that the transport does not have is no error.
fn failed(name: &'static str, why: &anyhow::Error) -> Finding {
    match why.downcast_ref().map(ferroce::Error::kind) {
        Some(ErrorKind::Device(error::Device::Unsupported)) => {
            Finding::new(name, Severity::Note, "the device has no such operation")
        }
        _ => Finding::new(name, Severity::Error, format!("{why:#}")),
    }
}

fn same(got: &[u8], sent: &[u8]) -> Result<()> {
    let wrong = got.iter().zip(sent).position(|(got, sent)| got != sent);
    ensure!(got.len() == sent.len() && wrong.is_none(), "the data differ from octet {wrong:?} on");
    Ok(())
}
