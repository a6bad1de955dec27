//! Descriptors of another user whose `close(2)` waits: neither the broker nor a program waits with it. Needs
//! root, to be somebody else.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{chain, eventually};
use ferroce_engine::broker::{BrokerClient, BrokerMode};
use ferroce_ipc::{BROKER_NAME, Client, ClientError, Connection, Listener, Message, RefusalCode, packet};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NOBODY: &str = "65534";
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test.
const LINGER: Duration = Duration::from_secs(100_000);
/// More than are taken from one user before the first is closed.
const MANY: usize = 600;

/// A socket whose last owner waits when it closes it, and the peer that reads nothing.
fn trap() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut trap = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    trap.set_nonblocking(true).unwrap();
    while trap.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&trap, Some(LINGER)).unwrap();
    (trap.into(), peer)
}

/// Gives a trap away: whoever closes it last waits, and here that is a thread that nobody waits for.
fn let_go(trap: OwnedFd) {
    std::thread::spawn(move || drop(trap));
}

fn as_nobody(name: &str, role: &str) -> Child {
    Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FERROCE_TEST_ROLE", role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a program of this test has done what it is for.
fn done(program: &mut Child) {
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("done") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the program ended before it had done its part");
    }
}

/// Tells so, and stays until the other side ends, so that the peers of its sockets stay.
fn stay(kept: Vec<TcpStream>) -> ! {
    println!("\ndone");
    let _ = std::io::stdin().read(&mut [0]);
    drop(kept);
    std::process::exit(0);
}

/// A network namespace with two users in it.
fn outside(name: &str) {
    let mut probe = Command::new("unshare");
    probe.args(["-n", "setpriv", "--reuid", NOBODY, "--clear-groups"]);
    probe.arg(std::env::current_exe().unwrap()).arg("--list").stdout(Stdio::null()).stderr(Stdio::null());
    if !nix::unistd::geteuid().is_root() || !probe.status().is_ok_and(|status| status.success()) {
        println!("skipped {name}: needs root, unshare, setpriv, and a build that user {NOBODY} can read");
        return;
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()));
    let status = Command::new("unshare")
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FERROCE_TEST_ROLE", "inside")
        .env("FERROCE_RUNTIME_DIR", &runtime)
        .env("FERROCE_DAEMON", env!("CARGO_BIN_EXE_ferroced"))
        .env_remove("FERROCE_NETDEV")
        .env_remove("FERROCE_BROKER")
        .status()
        .unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

fn broker(arguments: &[&str]) -> (Child, Client) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroced"));
    let child = command.args(arguments).env("FERROCE_LOG", "warn").spawn().unwrap();
    let mut own = None;
    eventually("the broker answers", || {
        own = Client::connect(BROKER_NAME, "", PATIENCE).ok();
        own.is_some()
    });
    (child, own.unwrap())
}

/// The broker answers, and ends when it is told to.
fn serves_and_ends((mut broker, mut own): (Child, Client)) {
    own.request(&Message::ListDevices, PATIENCE).unwrap();
    Client::connect(BROKER_NAME, "", PATIENCE).unwrap().request(&Message::ListDevices, PATIENCE).unwrap();
    kill(Pid::from_raw(broker.id() as i32), Signal::SIGTERM).unwrap();
    broker.wait().unwrap();
}

#[test]
fn a_broker_does_not_wait_for_what_strangers_sent() {
    const NAME: &str = "a_broker_does_not_wait_for_what_strangers_sent";
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok(_) => {
            let mut kept = Vec::new();
            for _ in 0..3 {
                let (trap, peer) = trap();
                kept.push(peer);
                let connection = Connection::connect(BROKER_NAME).unwrap();
                // The kernel may refuse it.
                let _ = packet::send(connection.as_fd(), b"nonsense", &[trap.as_fd()]);
                let_go(trap);
            }
            stay(kept)
        }
        Err(_) => return outside(NAME),
    }
    let served = broker(&[]);
    let mut stranger = as_nobody(NAME, "stranger");
    done(&mut stranger);
    serves_and_ends(served);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_broker_of_all_users_does_not_wait_for_what_they_gave() {
    const NAME: &str = "a_broker_of_all_users_does_not_wait_for_what_they_gave";
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok(_) => given_traps(),
        Err(_) => return outside(NAME),
    }
    let served = broker(&["--system", "--mode", "0666"]);
    let descriptors = format!("/proc/{}/fd", served.0.id());
    let mut program = as_nobody(NAME, "program");
    done(&mut program);
    let open = std::fs::read_dir(descriptors).unwrap().count();
    assert!(open < MANY, "{open} descriptors are kept open for one user");
    serves_and_ends(served);
    program.kill().unwrap();
    program.wait().unwrap();
}

/// A program that is served gives traps in place of whatever a message asks for.
fn given_traps() -> ! {
    let mut kept = Vec::new();
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    client.request(&Message::Lease(1), PATIENCE).unwrap();
    // A UDP socket with an error in its queue is ready for ever.
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    nix::sys::socket::setsockopt(&udp, nix::sys::socket::sockopt::Ipv4RecvErr, &true).unwrap();
    let open = Message::OpenRings { v2: true };
    let (bell, peer) = trap();
    kept.push(peer);
    for bell in [udp.as_fd(), bell.as_fd()] {
        match client.request_with(&open, &[bell], PATIENCE) {
            Err(ClientError::Refused(refusal)) => {
                assert_eq!(refusal.code, RefusalCode::BadRequest, "{refusal}")
            }
            other => panic!("a doorbell that is none: {other:?}"),
        }
    }
    let_go(bell);
    for message in [open, Message::Ledger, Message::OfferPipes { direct: false }] {
        for _ in 0..3 {
            let (trap, peer) = trap();
            kept.push(peer);
            client.send(&message, &[trap.as_fd()]).unwrap();
            let_go(trap);
        }
    }
    drop(client);
    // The broker waits neither for the descriptors of a last message nor for far too many of them.
    let null = std::fs::File::open("/dev/null").unwrap();
    for round in 0..MANY / 100 {
        let connection = Connection::connect(BROKER_NAME).unwrap();
        let _ = rustix::event::poll(
            &mut [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 }),
        );
        let (trap, peer) = trap();
        kept.push(peer);
        let mut all = vec![null.as_fd(); 100];
        all[0] = trap.as_fd();
        if let Err(e) = packet::send(connection.as_fd(), b"nonsense", &all) {
            println!("round {round}: {e}");
        }
        let_go(trap);
    }
    stay(kept)
}

#[test]
fn a_program_does_not_wait_for_what_the_holder_of_the_name_sent() {
    const NAME: &str = "a_program_does_not_wait_for_what_the_holder_of_the_name_sent";
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok(_) => {
            let listener = Listener::bind(BROKER_NAME).unwrap();
            println!("\ndone");
            let mut kept = Vec::new();
            loop {
                let _ = rustix::event::poll(
                    &mut [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)],
                    None,
                );
                let Ok(connection) = listener.accept() else { continue };
                let (trap, peer) = trap();
                let leaving = Message::Refused(ferroce_ipc::Refusal {
                    code: RefusalCode::Leaving,
                    sentence: "soon, says a stranger".to_owned(),
                });
                let _ = packet::send(connection.as_fd(), &leaving.encode(0).unwrap(), &[trap.as_fd()]);
                let_go(trap);
                kept.push((peer, connection));
            }
        }
        Err(_) => return outside(NAME),
    }
    // Raises lo.
    let (mut own, client) = broker(&[]);
    drop(client);
    own.kill().unwrap();
    own.wait().unwrap();
    let mut squatter = as_nobody(NAME, "squatter");
    done(&mut squatter);
    let error = BrokerClient::connect(BrokerMode::Auto).unwrap_err();
    assert!(chain(&error).contains("is held by process"), "{}", chain(&error));
    squatter.kill().unwrap();
    squatter.wait().unwrap();
}

/// Whatever the main thread waits for, a signal ends the broker: here a debugger holds that thread.
#[test]
fn a_broker_whose_main_thread_is_stuck_ends() {
    const NAME: &str = "a_broker_whose_main_thread_is_stuck_ends";
    common::isolated(NAME, || {
        let (mut broker, own) = broker(&[]);
        let pid = Pid::from_raw(broker.id() as i32);
        match nix::sys::ptrace::attach(pid) {
            Ok(()) => {}
            Err(e) => {
                broker.kill().unwrap();
                return println!("skipped {NAME}: this system refuses to trace a child: {e}");
            }
        }
        nix::sys::wait::waitpid(pid, None).unwrap();
        kill(pid, Signal::SIGTERM).unwrap();
        broker.wait().unwrap();
        drop(own);
    });
}
