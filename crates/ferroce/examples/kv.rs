//! A key-value store. A PUT is a message to the server. A GET reads the server's memory, and runs no code of the server.
//!
//!     kv serve 192.0.2.1:7471
//!     kv put 192.0.2.1:7471 KEY VALUE
//!     kv get 192.0.2.1:7471 KEY
//!
//! The table is an array of buckets: version, key, length of the value, value. The version is a seqlock: 0 in an empty
//! bucket, odd while the server changes the bucket, and larger after each change.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use clap::Parser;
use ferroce::cm::{Connected, Connector, EndOptions, Listener, Request};
use ferroce::{Access, CompletionQueue, MemoryRegion, RemoteMemory, WorkRequest};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The longest key in octets; shorter ones end with zeros.
const KEY: usize = 24;
/// The longest value in octets.
pub const VALUE: usize = 16_344;
/// The version of a bucket is its first word.
const VERSION: usize = 8;
const BUCKET: usize = VERSION + KEY + 8 + VALUE;
const BUCKETS: usize = 256;
/// Buckets that may have a key: its own and those behind it.
const PROBES: usize = 8;

/// Stores values by key
#[derive(Parser)]
enum Command {
    /// Serve clients, until the program is killed
    Serve { address: SocketAddr },
    /// Store a value of up to 16,344 octets; a key has up to 24
    Put { server: SocketAddr, key: String, value: String },
    /// Print the value of a key
    Get { server: SocketAddr, key: String },
}

#[allow(dead_code, reason = "a test has its own")]
fn main() -> Result<()> {
    match Command::parse() {
        Command::Serve { address } => serve(&Listener::bind(address)?),
        Command::Put { server, key, value } => Client::connect(server)?.put(&key, value.as_bytes()),
        Command::Get { server, key } => {
            let value = Client::connect(server)?.get(&key)?.ok_or("there is no such key")?;
            println!("{}", String::from_utf8_lossy(&value));
            Ok(())
        }
    }
}

/// Serves each connection in a thread of its own.
pub fn serve(listener: &Listener) -> Result<()> {
    let domain = Connector::device_for(listener.local_addr())?.protection_domain()?;
    let table = domain.allocate(BUCKETS * BUCKET, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    // The threads of the server write one after the other.
    let (location, table) = (table.remote(0), Arc::new(Mutex::new(table)));
    let options = EndOptions::default().domain(domain);
    loop {
        let (request, options, table) = (listener.accept()?, options.clone(), Arc::clone(&table));
        let serve = move || serve_client(request, &options, location, &table);
        thread::spawn(move || serve().unwrap_or_else(|error| eprintln!("kv: {error}")));
    }
}

type Table = Mutex<MemoryRegion<'static>>;

/// Tells the client where the table is, and executes PUTs until the client disconnects.
fn serve_client(request: Request, options: &EndOptions, location: RemoteMemory, table: &Table) -> Result<()> {
    let end = request.prepare(options)?;
    let message = end.domain().allocate(KEY + VALUE, Access::LOCAL_WRITE)?;
    end.queue_pair().post_recv(0, &[message.slice(..)])?;
    let connection = end.accept(&location.to_bytes())?;
    let qp = connection.queue_pair();
    // If the client disconnects, the receive fails, and perhaps the send of an answer before.
    while let Ok(len) = done(qp.receive_queue()) {
        let octets = message.to_vec();
        let (key, value) = octets[..len].split_at_checked(KEY).ok_or("a PUT without a key")?;
        let stored = store(table, key, value);
        qp.post_recv(0, &[message.slice(..)])?;
        qp.send_inline(0, &[stored.into()])?;
        let _ = done(qp.send_queue());
    }
    Ok(())
}

/// Stores a value, and returns whether there was a bucket for it.
fn store(table: &Table, key: &[u8], value: &[u8]) -> bool {
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    for bucket in buckets(key) {
        let version = table.load(bucket);
        let mut found = [0; KEY];
        table.read(bucket + VERSION, &mut found);
        if version == 0 || found == key {
            table.store(bucket, version + 1);
            let len = (value.len() as u64).to_be_bytes();
            table.write(bucket + VERSION, &[key, &len, value].concat());
            table.store(bucket, version + 2);
            return true;
        }
    }
    false
}

/// A connection to the server.
pub struct Client {
    connection: Connected,
    table: RemoteMemory,
    /// A bucket's version, its data, and its version again; or the server's answer in the first octet.
    read: MemoryRegion<'static>,
    /// A key and a value.
    message: MemoryRegion<'static>,
}

impl Client {
    pub fn connect(server: SocketAddr) -> Result<Self> {
        let end = Connector::new(server, &EndOptions::default())?;
        let read = end.domain().allocate(BUCKET + VERSION, Access::LOCAL_WRITE)?;
        let message = end.domain().allocate(KEY + VALUE, Access::empty())?;
        let connection = end.connect(b"")?;
        let table = RemoteMemory::from_bytes(connection.private_data().first_chunk().ok_or("no table")?)?;
        Ok(Self { connection, table, read, message })
    }

    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        if value.len() > VALUE {
            return Err(format!("a value has at most {VALUE} octets").into());
        }
        self.message.write(0, &[&padded(key)?, value].concat());
        let qp = self.connection.queue_pair();
        qp.post_recv(0, &[self.read.slice(..)])?;
        qp.send(0, &[self.message.slice(..KEY + value.len())])?;
        done(qp.send_queue())?;
        done(qp.receive_queue())?;
        if self.read.to_vec()[0] == 0 { Err("the table is full".into()) } else { Ok(()) }
    }

    /// Reads a value, if the key has one.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = padded(key)?;
        for bucket in buckets(&key) {
            let Some(data) = self.bucket(bucket)? else { return Ok(None) };
            if let Some((len, value)) = data.strip_prefix(&key).and_then(|data| data.split_first_chunk()) {
                let value = value.get(..u64::from_be_bytes(*len) as usize).ok_or("the length is wrong")?;
                return Ok(Some(value.to_vec()));
            }
        }
        Ok(None)
    }

    /// Reads the data of a bucket, until they are those of one version. Returns `None` for an empty bucket.
    fn bucket(&self, offset: usize) -> Result<Option<Vec<u8>>> {
        let qp = self.connection.queue_pair();
        let at = |offset: usize| RemoteMemory { addr: self.table.addr + offset as u64, ..self.table };
        // The server executes the READs of a queue pair in order.
        let reads = [
            WorkRequest::read(0, &[self.read.slice(..VERSION)], at(offset)).unsignaled(),
            WorkRequest::read(0, &[self.read.slice(VERSION..BUCKET)], at(offset + VERSION)).unsignaled(),
            WorkRequest::read(0, &[self.read.slice(BUCKET..)], at(offset)),
        ];
        loop {
            qp.post_send(&reads)?;
            done(qp.send_queue())?;
            match (self.read.load(0), self.read.load(BUCKET)) {
                (0, _) => return Ok(None),
                (before, after) if before == after && before % 2 == 0 => {
                    return Ok(Some(self.read.to_vec()[VERSION..BUCKET].to_vec()));
                }
                _ => thread::yield_now(),
            }
        }
    }
}

/// The offsets of the buckets that may have a key, by its hash (FNV-1a).
fn buckets(key: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
        (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3)
    });
    (0..PROBES).map(move |probe| (hash as usize + probe) % BUCKETS * BUCKET)
}

fn padded(key: &str) -> Result<[u8; KEY]> {
    let mut padded = [0; KEY];
    padded.get_mut(..key.len()).ok_or("a key has at most 24 octets")?.copy_from_slice(key.as_bytes());
    Ok(padded)
}

/// Waits for a work request, and returns the number of received octets if it succeeded.
fn done(queue: &CompletionQueue) -> Result<usize> {
    Ok(queue.wait()?.ok()?.len as usize)
}
