//! The end of a ping that answers.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroce::Opcode;
use ferroce::cm::{Listener, Request};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::ends::{self, ANSWER, GREETING, IMM, INBOX, LARGE, SHORT};

/// Longest time for one connection, during which a thread polls.
const LONGEST: Duration = Duration::from_secs(20);
/// Connections that are answered at once; more are refused.
const MOST: usize = 16;

/// Answers until it is stopped. A connection that fails concerns its peer alone.
pub fn forever(at: SocketAddr) -> Result<()> {
    let listener = Listener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
    eprintln!("ferroce: answers `ferroce ping` at port {} of {}", at.port(), at.ip());
    let open = Arc::new(());
    loop {
        let Ok(request) = listener.accept() else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let (peer, held) = (request.peer_addr(), Arc::clone(&open));
        if Arc::strong_count(&open) > MOST + 1 {
            let _ = request.reject(GREETING);
            continue;
        }
        // A request without a thread is dropped, which refuses it.
        let _ = thread::Builder::new().spawn(move || {
            let _held = held;
            if let Err(why) = answer(request) {
                eprintln!("ferroce: {}: {why:#}", peer.ip());
            }
        });
    }
}

/// Answers one connection, and ends with the process that started this one. Prints the port first.
pub fn once(at: SocketAddr) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let listener = Listener::bind(at)?;
    let mut out = std::io::stdout();
    // This fails if that process had ended before the signal was set, because it was the reader.
    writeln!(out, "{}", listener.local_addr().port())?;
    out.flush()?;
    loop {
        let request = listener.accept()?;
        if is_ping(&request) {
            return answer(request);
        }
        let _ = request.reject(GREETING);
    }
}

fn is_ping(request: &Request) -> bool {
    request.private_data().starts_with(GREETING)
}

fn answer(request: Request) -> Result<()> {
    if !is_ping(&request) {
        return Ok(request.reject(GREETING)?);
    }
    let options = ends::options(&request.device()?)?;
    let end = request.prepare(&options)?;
    let memory = end.domain().allocate(INBOX + LARGE, ends::RIGHTS)?;
    let inbox = [memory.slice(..INBOX)];
    end.queue_pair().post_recv(0, &inbox)?;
    let connection = end.accept(&ends::agreement(&memory))?;
    let (qp, deadline) = (connection.queue_pair(), Instant::now() + LONGEST);
    // The peer ends the connection after its last message, which flushes the receive.
    while let Ok(got) = ends::next(qp.receive_queue(), deadline) {
        qp.post_recv(0, &inbox)?;
        let is_short = got.opcode == Opcode::Recv && got.len as usize == SHORT;
        if let Some(imm) = got.imm {
            memory.write(IMM, &imm.0);
        }
        qp.send(0, &[memory.slice(..if is_short { SHORT } else { ANSWER })])?;
        if ends::next(qp.send_queue(), deadline).is_err() {
            break;
        }
    }
    Ok(())
}
