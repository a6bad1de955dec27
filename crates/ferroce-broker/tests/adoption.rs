//! The broker dies, programs and their traffic do not.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{brokers, connect, eventually, isolated, kill, program};
use ferroce_client::{BrokerClient, BrokerEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A program with a lease: counts the datagrams that reach its IPv4 socket, until its standard input ends.
fn run_program() {
    let client = connect();
    let lease = client.lease(1).unwrap();
    let slot = lease.members()[0];
    println!("\nslot {slot}");
    let (right, stray) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for address in lease.addresses {
        let (right, stray) = (Arc::clone(&right), Arc::clone(&stray));
        let socket = UdpSocket::from(address.fd);
        socket.set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            let mut datagram = [0; 64];
            while let Ok((12, _)) = socket.recv_from(&mut datagram) {
                match datagram[5] == slot {
                    true => right.fetch_add(1, Ordering::Relaxed),
                    false => stray.fetch_add(1, Ordering::Relaxed),
                };
            }
        });
    }
    std::thread::spawn(move || follow(&client, |event| println!("\n{event:?}")));
    let mut line = String::new();
    while std::io::stdin().lock().read_line(&mut line).unwrap() > 0 {
        println!("\ncounts {} {}", right.load(Ordering::Relaxed), stray.load(Ordering::Relaxed));
    }
    std::process::exit(0);
}

/// Follows the broker as an engine's background thread does.
fn follow(client: &BrokerClient, mut each: impl FnMut(BrokerEvent)) {
    loop {
        poll(&mut [PollFd::new(&client.event_fd(), PollFlags::IN)], None).unwrap();
        client.process().into_iter().for_each(&mut each);
    }
}

struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    slot: u8,
}

impl Program {
    fn start(test: &str) -> Self {
        let mut child = program(test, "program");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut new = Self { input: child.stdin.take(), child, output, slot: 0 };
        new.slot = new.line_starting("slot ").parse().unwrap();
        new
    }

    /// The rest of the next line that starts so.
    fn line_starting(&mut self, start: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the program ended before it said {start:?}"
            );
            if let Some(rest) = line.trim_end().strip_prefix(start) {
                return rest.to_owned();
            }
        }
    }

    /// Datagrams for its slot, and strays, that it has received.
    fn counts(&mut self) -> (u64, u64) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
        let line = self.line_starting("counts ");
        let (right, stray) = line.split_once(' ').unwrap();
        (right.parse().unwrap(), stray.parse().unwrap())
    }

    fn leave(mut self) {
        drop(self.input.take());
        self.child.wait().unwrap();
    }
}

/// Sends datagrams to slots, on and on.
struct Traffic {
    socket: UdpSocket,
    sent: BTreeMap<u8, u64>,
}

impl Traffic {
    fn send(&mut self, slots: &[u8], rounds: u32) {
        for _ in 0..rounds {
            for &slot in slots {
                let to =
                    if self.socket.local_addr().unwrap().is_ipv4() { "127.0.0.1:4791" } else { "[::1]:4791" };
                self.socket.send_to(&[0, 0, 0, 0, 0, slot, 0, 0, 0, 0, 0, 0], to).unwrap();
                *self.sent.entry(slot).or_default() += 1;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn no_packet_strays_when_the_broker_dies() {
    const NAME: &str = "no_packet_strays_when_the_broker_dies";
    if std::env::var_os("FERROCE_TEST_ROLE").is_some() {
        return run_program();
    }
    isolated(NAME, || {
        let mut programs: Vec<Program> = (0..3).map(|_| Program::start(NAME)).collect();
        assert_eq!(programs.iter().map(|p| p.slot).collect::<Vec<_>>(), [1, 2, 3]);
        let mut traffic = Traffic { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), sent: BTreeMap::new() };
        traffic.send(&[1, 2, 3], 200);

        let before = brokers();
        assert_eq!(before.len(), 1);
        kill(before[0]);
        traffic.send(&[1, 2, 3], 500);
        for program in &mut programs {
            program.line_starting("Reconnected");
        }
        eventually("there is one new broker", || brokers().len() == 1);
        assert_ne!(brokers(), before);
        traffic.send(&[1, 2, 3], 200);

        // All have all that was sent to them, before one leaves.
        let sent = traffic.sent.clone();
        for program in &mut programs {
            let slot = program.slot;
            eventually("every datagram is there", || program.counts() == (sent[&slot], 0));
        }
        programs.remove(1).leave();
        traffic.send(&[1, 3], 200);
        eventually("slot 2 is free within a second", || {
            let client = connect();
            client.lease(1).is_ok_and(|lease| lease.members() == [2])
        });
        let fourth = Program::start(NAME);
        assert_eq!(fourth.slot, 2);
        programs.insert(1, fourth);
        let fifth = Program::start(NAME);
        assert_eq!(fifth.slot, 4, "a new slot comes at the end of the adopted group");
        programs.push(fifth);
        traffic.sent.insert(2, 0);
        traffic.send(&[1, 2, 3, 4], 500);
        for program in &mut programs {
            let (slot, sent) = (program.slot, traffic.sent[&program.slot]);
            eventually(&format!("slot {slot} has every datagram"), || program.counts() == (sent, 0));
        }
        programs.into_iter().for_each(Program::leave);
    });
}

#[test]
fn brokers_die_again_and_again() {
    const NAME: &str = "brokers_die_again_and_again";
    if std::env::var_os("FERROCE_TEST_ROLE").is_some() {
        return run_program();
    }
    isolated(NAME, || {
        let mut programs: Vec<Program> = (0..2).map(|_| Program::start(NAME)).collect();
        for round in 0..4 {
            for pid in brokers() {
                kill(pid);
            }
            for program in &mut programs {
                program.line_starting("Reconnected");
            }
            // A program may come in any of these moments.
            let newcomer = Program::start(NAME);
            assert_eq!(newcomer.slot, 3 + round, "slots of programs that live are nobody else's");
            programs.push(newcomer);
        }
        let mut traffic = Traffic { socket: UdpSocket::bind("[::1]:0").unwrap(), sent: BTreeMap::new() };
        let slots: Vec<u8> = programs.iter().map(|p| p.slot).collect();
        traffic.send(&slots, 100);
        for program in &mut programs {
            eventually("every datagram is there", || program.counts() == (100, 0));
        }
        programs.into_iter().for_each(Program::leave);
    });
}

#[test]
fn a_stopped_program_keeps_its_slot() {
    const NAME: &str = "a_stopped_program_keeps_its_slot";
    if std::env::var_os("FERROCE_TEST_ROLE").is_some() {
        return run_program();
    }
    isolated(NAME, || {
        use nix::sys::signal::{Signal, kill as signal};
        let mut running = Program::start(NAME);
        let mut stopped = Program::start(NAME);
        let pid = nix::unistd::Pid::from_raw(stopped.child.id() as i32);
        signal(pid, Signal::SIGSTOP).unwrap();
        kill(brokers()[0]);
        running.line_starting("Reconnected");
        // It cannot report its slot, so nobody gets it.
        let start = Instant::now();
        let newcomer = Program::start(NAME);
        assert_eq!(newcomer.slot, 3);
        std::thread::sleep(Duration::from_secs(6).saturating_sub(start.elapsed()));
        let later = Program::start(NAME);
        assert_eq!(later.slot, 4, "nor later");
        signal(pid, Signal::SIGCONT).unwrap();
        stopped.line_starting("Reconnected");
        let mut traffic = Traffic { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), sent: BTreeMap::new() };
        traffic.send(&[1, 2, 3, 4], 100);
        for mut program in [running, stopped, newcomer, later] {
            eventually("every datagram is there", || program.counts() == (100, 0));
            program.leave();
        }
    });
}

#[test]
fn who_has_no_lease_follows_as_well() {
    isolated("who_has_no_lease_follows_as_well", || {
        let client = connect();
        kill(brokers()[0]);
        let done = Arc::new(AtomicBool::new(false));
        let deadline = Instant::now() + Duration::from_secs(5);
        while !done.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "not reconnected");
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&client.event_fd(), PollFlags::IN)], Some(&limit)).unwrap();
            for event in client.process() {
                if matches!(event, BrokerEvent::Reconnected) {
                    done.store(true, Ordering::Relaxed);
                }
            }
        }
        assert_eq!(client.devices().unwrap().len(), 1);
        // And a request needs no events: it waits for the next broker itself.
        kill(brokers()[0]);
        let lease = client.lease(1).unwrap();
        assert_eq!(lease.members(), [1]);
        let _: Vec<OwnedFd> = lease.addresses.into_iter().map(|address| address.fd).collect();
    });
}
