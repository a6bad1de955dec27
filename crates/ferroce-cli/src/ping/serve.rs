//! The end of a ping that answers.

use std::io::Write;
use std::net::SocketAddr;
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

/// Answers until it is stopped. A connection that fails concerns its peer alone.
pub fn forever(at: SocketAddr) -> Result<()> {
    let listener = Listener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
    eprintln!("ferroce: answers `ferroce ping` at port {} of {}", at.port(), at.ip());
    loop {
        let request = listener.accept()?;
        let peer = request.peer_addr();
        thread::spawn(move || {
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
    writeln!(out, "{}", listener.local_addr().port())?;
    out.flush()?;
    answer(listener.accept()?)
}

fn answer(request: Request) -> Result<()> {
    if !request.private_data().starts_with(GREETING) {
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
