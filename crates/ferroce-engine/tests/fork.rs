//! A forked child. Alone in its binary: the broker must run in another process.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{Context, PerProcess, SendOp, WcOpcode};

const ROLE: &str = "FERROCE_TEST_ROLE";

/// Held by each test that forks: a socket that another thread has just made and not yet recorded would stay
/// open in the child.
static ALONE: Mutex<()> = Mutex::new(());

/// The role of the other process: it opens the device first, so the broker runs there, unless one
/// runs on this machine anyway.
#[test]
fn broker_role() {
    if std::env::var(ROLE).is_ok() {
        let _context = open();
        println!("the broker runs");
        std::thread::sleep(Duration::from_secs(60));
    }
}

struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_broker() -> Broker {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "broker_role", "--nocapture"])
        .env(ROLE, "broker")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    output.lines().map(Result::unwrap).find(|line| line.contains("the broker runs")).unwrap();
    Broker(process)
}

/// A forked child holds nothing of its parent's, its parent goes on, and it may open the device anew.
#[test]
fn a_forked_child_starts_afresh() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _broker = start_broker();
    let (a, b) = pair();
    // SAFETY: the child only uses the engine, which is made for this, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let afresh = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // The parent's objects are dead shells: ending them must neither hang nor close anything.
                a.qp.destroy();
                a.cq.destroy().unwrap();
                a.context.close();
                let sockets = std::fs::read_dir("/proc/self/fd")
                    .unwrap()
                    .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
                    .filter(|link| link.to_string_lossy().starts_with("socket:"))
                    .count();
                assert_eq!(sockets, 0, "sockets of the parent");
                let context = Context::open("fr0").expect("anew");
                assert_eq!(context.name(), "fr0");
                let (c, d) = pair();
                d.receive(1, d.sge(0, 64));
                c.post(1, SendOp::Send, c.sge(0, 64));
                d.expect(1, WcOpcode::Recv);
                c.expect(1, WcOpcode::Send);
            }));
            // SAFETY: ends this process without running the parent's destructors.
            unsafe { libc::_exit(i32::from(afresh.is_err())) };
        }
        child => {
            assert!(child > 0);
            for id in 0..50 {
                b.receive(id, b.sge(0, 64));
                a.post(id, SendOp::Send, a.sge(0, 64));
                b.expect(id, WcOpcode::Recv);
                a.expect(id, WcOpcode::Send);
            }
            let start = Instant::now();
            loop {
                let mut status = 0;
                // SAFETY: `status` is valid for writes; the child is ours.
                let done = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
                if done == child {
                    assert_eq!(status, 0, "the child failed");
                    break;
                }
                if start.elapsed() > PATIENCE {
                    // SAFETY: our own child.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    panic!("the child hangs");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A lock that a thread of the parent held is free in the child, and a queue pair of the parent takes no post there.
#[test]
fn a_forked_child_waits_for_no_lock_of_its_parent() {
    static HELD: PerProcess<Mutex<u32>> = PerProcess::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _broker = start_broker();
    let (a, _b) = pair();
    let held = HELD.get().lock().unwrap();
    // SAFETY: the child uses the engine, which is made for this, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let free = HELD.get().try_lock().is_ok();
            let refused = a.qp.post_send(std::iter::empty()).is_err();
            // SAFETY: ends this process without running the parent's destructors.
            unsafe { libc::_exit(i32::from(!free || !refused)) };
        }
        child => {
            let mut status = -1;
            // SAFETY: `status` is valid for writes; the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    assert!(HELD.get().try_lock().is_err());
    drop(held);
}
