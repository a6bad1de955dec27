//! Descriptors of another user whose `close(2)` waits: neither the broker nor a program waits with it. Needs
//! root, to be somebody else.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{chain, eventually};
use ferroce_client::{BrokerClient, BrokerMode};
use ferroce_ipc::ring::Rings;
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, Connection, Hello, Listener, Message, RefusalCode, doorbell, packet,
};
use ferroce_wire::{LinkLayer, RoceVersion};
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
    as_nobody_with(name, role, &[])
}

/// With a capability, perhaps.
fn as_nobody_with(name: &str, role: &str, more: &[&str]) -> Child {
    Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"])
        .args(more)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FERROCE_TEST_ROLE", role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a program of this test says that it has done what it is for, or why it cannot.
fn told(program: &mut Child) -> String {
    let mut output = BufReader::new(program.stdout.as_mut().unwrap());
    let mut line = String::new();
    while !["done", "cannot"].iter().any(|word| line.starts_with(word)) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the program ended before it had done its part");
    }
    line
}

fn done(program: &mut Child) {
    assert_eq!(told(program), "done\n");
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

/// A reader whose memory does not come makes all other readers of that end wait, so the broker reads no end that a stranger may hold.
#[test]
fn a_broker_does_not_wait_for_another_reader_of_a_doorbell() {
    const NAME: &str = "a_broker_does_not_wait_for_another_reader_of_a_doorbell";
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("inside") => {}
        Ok(_) => read_doorbell(),
        Err(_) => return outside(NAME),
    }
    let (served, mut own) = broker(&["--system", "--mode", "0666"]);
    // Programs without this capability take memory of a file system that they mounted themselves.
    let caps = ["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"];
    let mut program = as_nobody_with(NAME, "program", &caps);
    let told = told(&mut program);
    let frames = |own: &mut Client| {
        let (answer, _) = own.request(&Message::GetStatistics("fr0".to_owned()), PATIENCE).unwrap();
        let Message::Statistics(counters) = answer else { panic!("{answer:?}") };
        counters.iter().find(|(name, _)| name == "frame_malformed").map(|(_, count)| *count)
    };
    if told.starts_with("done") {
        eventually("the program's ring is read", || frames(&mut own) == Some(2));
    } else {
        println!("skipped {NAME}: {told}");
    }
    serves_and_ends((served, own));
    program.kill().unwrap();
    program.wait().unwrap();
}

/// Memory that a thread which touches it waits for without end. Returns the address, and a descriptor that is readable when a
/// thread waits.
fn memory_that_never_comes() -> std::io::Result<(usize, OwnedFd)> {
    use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
    const SIZE: usize = 4096;
    // SAFETY: the file is used for the mapping below alone.
    let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }?;
    // SAFETY: a new mapping, which nobody else uses.
    let memory = unsafe {
        mmap_anonymous(std::ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    let mut api = [0xaa_u64, 0, 0];
    let mut register = [memory as u64, SIZE as u64, 1, 0];
    for (request, argument) in [(0xc018_aa3f, api.as_mut_ptr()), (0xc020_aa00, register.as_mut_ptr())] {
        // SAFETY: `struct uffdio_api` has three words, and `struct uffdio_register` four.
        if unsafe { libc::ioctl(faults.as_raw_fd(), request, argument) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok((memory as usize, faults))
}

fn wait_readable(fd: &impl AsFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(1));
}

/// A program that reads the broker's end of its doorbell, and rings.
fn read_doorbell() -> ! {
    let mut connection = Connection::connect(BROKER_NAME).unwrap();
    connection.take_descriptors(None);
    let mut number = 0;
    let mut ask = |message: &Message, descriptors: &[std::os::fd::BorrowedFd<'_>]| {
        connection.send(number, message, descriptors).unwrap();
        number += 1;
        loop {
            wait_readable(&connection);
            let received = connection.recv(&mut Vec::new()).unwrap().unwrap();
            if let Ok((id, answer)) = received.message
                && id + 1 == number
            {
                return (answer, received.descriptors);
            }
        }
    };
    let (hello, _) = ask(&Message::Hello(Hello::ours("")), &[]);
    assert!(matches!(hello, Message::Hello(_)), "{hello:?}");
    let (leased, _) = ask(&Message::Lease(1), &[]);
    assert!(matches!(leased, Message::Leased(_)), "{leased:?}");

    let (bell, far) = packet::pair().unwrap();
    let (memory, faults) = match memory_that_never_comes() {
        Ok(memory) => memory,
        Err(e) => {
            println!("\ncannot: userfaultfd(2) fails: {e}");
            std::process::exit(0)
        }
    };
    doorbell::ring(&bell);
    let end = far.as_raw_fd();
    // SAFETY: nobody else uses the memory.
    std::thread::spawn(move || unsafe { libc::recv(end, memory as *mut libc::c_void, 8, 0) });
    wait_readable(&faults);
    let (answer, given) = ask(&Message::OpenRings { v2: true }, &[far.as_fd()]);
    assert!(matches!(answer, Message::Rings), "{answer:?}");
    let mut rings = Rings::join(&given[0]).unwrap();
    let link = LinkLayer { version: RoceVersion::V2, sl: 0, ifindex: 1 };
    for _ in 0..2 {
        rings.tx.push(link, &[0x45; 40], &[]).unwrap();
        rings.tx.publish().unwrap();
        doorbell::ring(&bell);
        doorbell::ring(&given[1]);
    }
    stay(Vec::new())
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
