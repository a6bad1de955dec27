//! A memory window: the server opens a part of its memory to the client, which writes there and invalidates the key.
//!
//! ```text
//! cargo run --release --example window -- -d fr0 -g 0 -n 10 &
//! cargo run --release --example window -- -d fr0 -g 0 -n 10 127.0.0.1
//! ```
//!
//! In each round the server binds the window under a new key and sends it to the client; the client writes through the
//! window and invalidates it with its answer.

mod common;

use std::cell::RefCell;
use std::error::Error;
use std::process::ExitCode;

use common::{Options, RECV, SEND};
use ferroce::{
    Access, CompletionQueue, Connection, MemoryRegion, QpOptions, QueuePair, ReadyToSend, RemoteMemory,
    SendOptions, Status, WorkRequest,
};

const BIND: u64 = 3;
const WRITE: u64 = 4;
/// Octets of a window's address and key.
const NOTE: usize = RemoteMemory::LEN;

fn main() -> ExitCode {
    common::main("window", run)
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = common::open(options)?;
    let domain = device.protection_domain()?;
    let queue = device.completion_queue(16, None)?;
    let memory = domain.register(vec![0; options.size], Access::LOCAL_WRITE | Access::MW_BIND)?;
    let notes = domain.register(vec![0; 2 * NOTE], Access::LOCAL_WRITE)?;
    let qp = domain.rc_queue_pair(&queue, &queue, QpOptions::default())?.init(Access::REMOTE_WRITE)?;
    let incoming = notes.slice(..NOTE);
    qp.post_recv(RECV, &[incoming])?;
    let local = qp.address(options.gid_idx)?;
    let qp = common::meet(options, &local, |remote| {
        let connection = Connection::to(local, remote).path_mtu(common::path_mtu(options.mtu)?);
        Ok(qp.ready_to_receive(&connection)?.ready_to_send(SendOptions::default())?)
    })?;

    let end = End { qp, queue, memory, notes, early: RefCell::default() };
    if options.host.is_some() {
        (0..options.iters).try_for_each(|round| end.write(round))?;
    } else {
        let mut window = domain.memory_window()?;
        for round in 0..options.iters {
            let bind = WorkRequest::bind(BIND, &mut window, &end.memory, .., Access::REMOTE_WRITE);
            end.open(&bind, || window.remote(), round)?;
        }
    }
    println!("{} rounds", options.iters);
    Ok(())
}

struct End {
    qp: QueuePair<ReadyToSend>,
    queue: CompletionQueue,
    memory: MemoryRegion<'static>,
    notes: MemoryRegion<'static>,
    /// Completions that arrived before they were waited for.
    early: RefCell<Vec<u64>>,
}

impl End {
    /// Waits until all of `wr_ids` have completed.
    fn wait(&self, wr_ids: &[u64]) -> Result<(), Box<dyn Error>> {
        let mut early = self.early.borrow_mut();
        for wr_id in wr_ids {
            while !early.contains(wr_id) {
                let completion = self.queue.wait()?;
                if completion.status != Status::Success {
                    return Err(format!("work request {}: {:?}", completion.wr_id, completion.status).into());
                }
                early.push(completion.wr_id);
            }
            early.retain(|other| other != wr_id);
        }
        Ok(())
    }

    /// The server: opens the window, sends its key, and waits until the client has written and closed it.
    fn open(
        &self,
        bind: &WorkRequest,
        opened: impl FnOnce() -> RemoteMemory,
        round: u64,
    ) -> Result<(), Box<dyn Error>> {
        self.notes.write(NOTE, &opened().to_bytes());
        // The order of the two requests is that on the wire: the client receives the key after the bind.
        self.qp.post_send(&[bind.clone(), WorkRequest::send(SEND, &[self.notes.slice(NOTE..)])])?;
        self.wait(&[BIND, SEND, RECV])?;
        let byte = round as u8;
        if self.memory.to_vec().iter().any(|&seen| seen != byte) {
            return Err(format!("round {round}: the client wrote something else").into());
        }
        Ok(self.qp.post_recv(RECV, &[self.notes.slice(..NOTE)])?)
    }

    /// The client: waits for the window, writes through it, and closes it.
    fn write(&self, round: u64) -> Result<(), Box<dyn Error>> {
        self.wait(&[RECV])?;
        self.qp.post_recv(RECV, &[self.notes.slice(..NOTE)])?;
        let mut note = [0; NOTE];
        self.notes.read(0, &mut note);
        let window = RemoteMemory::from_bytes(&note)?;
        self.memory.write(0, &vec![round as u8; self.memory.len()]);
        self.qp.post_send(&[
            WorkRequest::write(WRITE, &[self.memory.slice(..)], window),
            WorkRequest::send_invalidate(SEND, &[self.notes.slice(NOTE..)], window.rkey),
        ])?;
        self.wait(&[WRITE, SEND])
    }
}
