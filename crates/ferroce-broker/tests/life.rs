//! The broker as a neighbour: what it takes along from who started it, whom it serves, when it ends.

mod common;

use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, brokers, chain, connect, eventually, isolated, kill, program};
use ferroce_client::{BrokerClient, BrokerEvent, BrokerMode};
use ferroce_ipc::{BROKER_NAME, Client, Connection, Listener, Message, packet};

fn in_role() -> bool {
    std::env::var_os("FERROCE_TEST_ROLE").is_some()
}

#[test]
fn a_shell_does_not_wait_for_the_broker() {
    const NAME: &str = "a_shell_does_not_wait_for_the_broker";
    if in_role() {
        drop(connect());
        return;
    }
    isolated(NAME, || {
        // Standard output and error are pipes, and descriptor 9 is one that somebody forgot to mark close-on-exec.
        let start = Instant::now();
        let mut shell = Command::new("sh")
            .args(["-c", "exec 9>&1; exec \"$0\" \"$@\" 2>&1"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("FERROCE_TEST_ROLE", "program")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        shell.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(shell.wait().unwrap().success(), "{said}");
        assert!(start.elapsed() < Duration::from_secs(50), "out=$(program) took {:?}", start.elapsed());
        assert_eq!(brokers().len(), 1, "and the broker lives");
    });
}

#[test]
fn the_broker_is_a_stranger_to_who_started_it() {
    isolated("the_broker_is_a_stranger_to_who_started_it", || {
        use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).unwrap();
        let client = connect();
        let broker = brokers()[0];
        let link = |name: &str| std::fs::read_link(format!("/proc/{broker}/{name}")).unwrap();
        assert_eq!(link("cwd").to_str(), Some("/"));
        assert_eq!(link("fd/0").to_str(), Some("/dev/null"));
        assert_eq!(link("fd/1").to_str(), Some("/dev/null"));
        assert!(link("fd/2").ends_with("ferroced.log"));
        let ours: Vec<_> =
            ["fd/0", "fd/1", "fd/2"].map(|fd| std::fs::read_link(format!("/proc/self/{fd}")).unwrap()).into();
        for entry in std::fs::read_dir(format!("/proc/{broker}/fd")).unwrap().flatten() {
            let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
            let target = std::fs::read_link(entry.path()).unwrap();
            let kind = target.to_str().unwrap();
            let own = kind.starts_with("socket:") || kind.starts_with("anon_inode:");
            assert!(number < 3 || own, "descriptor {number} is {kind}");
            assert!(number < 3 || !ours.contains(&target), "descriptor {number} is ours");
        }
        // Fields after the name: state, parent, group, session, terminal.
        let stat = std::fs::read_to_string(format!("/proc/{broker}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // Its parent is gone: it fell to process 1, which in this pid namespace is us.
        assert_eq!(fields[1], "1");
        assert_ne!(fields[3], nix::unistd::getsid(None).unwrap().to_string(), "not of our session");
        assert_ne!(fields[3], broker.to_string(), "nor the leader of its own, which could get a terminal");
        assert_eq!(fields[4], "0", "no terminal");
        let status = std::fs::read_to_string(format!("/proc/{broker}/status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        assert_eq!(blocked & !(1 << 14 | 1 << 1), 0, "a thread waits for SIGTERM and SIGINT: {status}");
        drop(client);
    });
}

/// A program may limit itself, not the service of all programs.
#[test]
fn the_broker_has_limits_of_its_own() {
    isolated("the_broker_has_limits_of_its_own", || {
        use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let this = nix::unistd::Pid::from_raw(0);
        let before = sched_getaffinity(this).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu) == Ok(true)).unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        sched_setaffinity(this, &one).unwrap();
        let limits = [
            (Resource::RLIMIT_CPU, "Max cpu time", 3000),
            (Resource::RLIMIT_AS, "Max address space", 1 << 40),
            (Resource::RLIMIT_DATA, "Max data size", 1 << 40),
            (Resource::RLIMIT_FSIZE, "Max file size", 1 << 40),
        ];
        for (resource, _, soft) in limits {
            let (_, hard) = getrlimit(resource).unwrap();
            setrlimit(resource, soft, hard).unwrap();
        }
        drop(connect());
        sched_setaffinity(this, &before).unwrap();
        let broker = brokers()[0];
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{broker}/{name}")).unwrap();
        for (_, name, soft) in limits {
            let found = read("limits");
            let line = found.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(!line.split_whitespace().any(|word| word == soft.to_string()), "{line}");
        }
        let status = read("status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let count = field("Cpus_allowed:")
            .chars()
            .filter_map(|hex| hex.to_digit(16))
            .map(u32::count_ones)
            .sum::<u32>();
        let all = (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu) == Ok(true)).count();
        assert!(count as usize >= all, "{status}");
        let ignored = u64::from_str_radix(field("SigIgn:"), 16).unwrap();
        assert_eq!(ignored >> 24 & 1, 1, "SIGXFSZ: {status}");
    });
}

/// A script may ignore signals, and have a small stack.
#[test]
fn what_a_script_does_to_itself_is_not_passed_on() {
    isolated("what_a_script_does_to_itself_is_not_passed_on", || {
        let script = "trap '' TERM INT HUP; ulimit -S -s 256; exec \"$0\" --detach";
        let status =
            Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_ferroced")]).status().unwrap();
        assert!(status.success());
        let broker = brokers()[0];
        let limits = std::fs::read_to_string(format!("/proc/{broker}/limits")).unwrap();
        let stack = limits.lines().find(|line| line.starts_with("Max stack size")).unwrap();
        assert!(!stack.contains(&(256 << 10).to_string()), "{stack}");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(broker), nix::sys::signal::Signal::SIGTERM)
            .unwrap();
        eventually("it ends", || brokers().is_empty());
    });
}

#[test]
fn a_hard_limit_that_stays_is_told() {
    isolated("a_hard_limit_that_stays_is_told", || {
        use nix::sys::resource::{Resource, setrlimit};
        setrlimit(Resource::RLIMIT_CPU, 3000, 3000).unwrap();
        drop(connect());
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", brokers()[0])).unwrap();
        let stays = limits.lines().any(|line| line.starts_with("Max cpu time") && line.contains("3000"));
        let dir = std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap());
        let log = std::fs::read_to_string(dir.join("ferroced.log")).unwrap();
        assert_eq!(stays, log.contains("limits it to 3000 seconds of processor time"), "{limits}{log}");
    });
}

/// A full file system, and a pipe that is full and that nobody reads.
#[test]
fn a_broker_whose_log_cannot_be_written_serves() {
    isolated("a_broker_whose_log_cannot_be_written_serves", || {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (reader, pipe) = std::io::pipe().unwrap();
        ferroce_host::output::write(pipe.as_fd(), &[b'x'; 1 << 20]);
        for errors in [Stdio::from(full), Stdio::from(pipe)] {
            let mut broker = Command::new(env!("CARGO_BIN_EXE_ferroced"))
                .args(["--serve", "--idle", "0"])
                .stdout(Stdio::piped())
                .stderr(errors)
                .spawn()
                .unwrap();
            let mut said = String::new();
            broker.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, "ready\n");
            for _ in 0..3 {
                // Each greeting is a line (FERROCE_LOG=debug).
                assert_eq!(connect().lease(1).unwrap().members(), [1]);
            }
            assert!(broker.try_wait().unwrap().is_none(), "and goes on");
            kill(broker.id() as i32);
            broker.wait().unwrap();
        }
        drop(reader);
    });
}

#[test]
fn an_idle_broker_ends_and_the_next_program_starts_another() {
    const NAME: &str = "an_idle_broker_ends_and_the_next_program_starts_another";
    isolated(NAME, || {
        let status =
            Command::new(env!("CARGO_BIN_EXE_ferroced")).args(["--detach", "--idle", "1"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&status.stdout), "ready\n");
        let first = brokers();
        let client = connect();
        let lease = client.lease(1).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(brokers(), first, "not while a program holds a slot");
        drop((client, lease));
        let start = Instant::now();
        eventually("it ends", || brokers().is_empty());
        assert!(start.elapsed() > Duration::from_millis(800));
        assert_eq!(connect().lease(1).unwrap().members(), [1]);
    });
}

/// Network interfaces of the namespace that belong to pairs for AF_XDP.
fn pairs() -> usize {
    let shown = Command::new("ip").args(["-o", "link", "show", "type", "veth"]).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).lines().filter(|line| line.contains("ferroce")).count()
}

#[test]
fn a_broker_removes_veth_pairs_of_an_earlier_one_and_no_others() {
    isolated("a_broker_removes_veth_pairs_of_an_earlier_one_and_no_others", || {
        let ip = |line: &str| {
            let status = Command::new("ip").args(line.split_whitespace()).status();
            assert!(status.is_ok_and(|status| status.success()), "ip {line}");
        };
        for number in [0, 7] {
            ip(&format!("link add ferroce{number} type veth peer name ferroce{number}p"));
        }
        for end in ["ferroce7", "ferroce7p"] {
            ip(&format!("link set {end} alias ferroce"));
        }
        assert_eq!(pairs(), 4);
        let client = connect();
        eventually("the pair with the alias is removed", || pairs() == 2);
        // The program of a user who called an interface like ours keeps it.
        drop(client);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(pairs(), 2);
    });
}

#[test]
fn a_signal_ends_the_broker_in_order() {
    use nix::sys::signal::Signal;
    isolated("a_signal_ends_the_broker_in_order", || {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let mut broker = Command::new(env!("CARGO_BIN_EXE_ferroced"));
            // A test that runs in the background of a script may have it ignored, and passes that on.
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
            if u64::from_str_radix(ignored, 16).unwrap() >> (signal as u32 - 1) & 1 == 1 {
                println!("skipped {signal}: this process ignores it, and so does the broker");
                continue;
            }
            let mut broker = broker.stderr(Stdio::null()).spawn().unwrap();
            eventually("it serves", || Connection::connect(BROKER_NAME).is_ok());
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(broker.id() as i32), signal).unwrap();
            let mut ended = None;
            eventually("it ends", || {
                ended = broker.try_wait().unwrap();
                ended.is_some()
            });
            assert_eq!(ended.unwrap().code(), Some(0), "{signal}");
        }
    });
}

#[test]
fn starting_twice_is_no_failure_and_neither_is_a_race() {
    isolated("starting_twice_is_no_failure_and_neither_is_a_race", || {
        let start = || {
            Command::new(env!("CARGO_BIN_EXE_ferroced"))
                .arg("--detach")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let started: Vec<_> = (0..8).map(|_| start()).collect();
        for child in started {
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n");
        }
        eventually("one is left", || brokers().len() == 1);
        let again = Command::new(env!("CARGO_BIN_EXE_ferroced")).output().unwrap();
        assert!(!again.status.success());
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(said.contains(&format!("ferroced runs already, as process {}", brokers()[0])), "{said}");
    });
}

#[test]
fn wrong_arguments_are_told() {
    for (arguments, status, text) in [
        (vec!["--nonsense"], 2, "unknown argument \"--nonsense\"; try --help"),
        (vec!["--idle"], 2, "--idle needs a number of seconds"),
        (vec!["--idle", "soon"], 2, "\"soon\" is no number of seconds"),
        (vec!["--help"], 0, "Usage: ferroced"),
        (vec!["--version"], 0, "ferroced "),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferroced")).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let said = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&said).contains(text), "{arguments:?}");
    }
}

#[test]
fn a_forked_child_does_not_hide_its_parents_death() {
    const NAME: &str = "a_forked_child_does_not_hide_its_parents_death";
    if in_role() {
        let client = connect();
        let lease = client.lease(1).unwrap();
        assert_eq!(lease.members(), [1]);
        // A child that runs no handler of ours, the worst there is: it keeps the connection and the sockets, which are
        // marked to survive its exec.
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            if std::fs::read_link(entry.path())
                .is_ok_and(|link| link.to_str().unwrap().starts_with("socket:"))
            {
                // SAFETY: it was just listed, and nobody closes any meanwhile.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
            }
        }
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        println!("\nchild {}", child.id());
        child.wait().unwrap();
        return;
    }
    isolated(NAME, || {
        let mut parent = program(NAME, "parent");
        let mut output = std::io::BufReader::new(parent.stdout.take().unwrap());
        let child: i32 = loop {
            let mut line = String::new();
            assert_ne!(std::io::BufRead::read_line(&mut output, &mut line).unwrap(), 0);
            if let Some(pid) = line.trim().strip_prefix("child ") {
                break pid.parse().unwrap();
            }
        };
        let sockets = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten();
        let is_socket =
            |link: std::path::PathBuf| link.to_str().is_some_and(|link| link.starts_with("socket:"));
        let sockets = sockets.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_socket));
        assert!(sockets.count() >= 3, "the child holds the connection and the sockets");
        let client = connect();
        assert_eq!(client.lease(1).unwrap().members(), [2]);
        kill(parent.id() as i32);
        parent.wait().unwrap();
        eventually("the parent's slot is free", || {
            let status = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
            holders(status).iter().all(|slots| slots[0] != 16)
        });
        assert_eq!(client.lease(1).unwrap().members(), [1]);
        kill(child);
    });
}

/// The slots of each program that holds some.
fn holders(mut client: Client) -> Vec<Vec<u16>> {
    match client.request(&Message::GetStatus, PATIENCE).unwrap() {
        (Message::Status(status), _) => status.programs.into_iter().map(|program| program.slots).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostile_clients_lose_their_own_connections() {
    isolated("hostile_clients_lose_their_own_connections", || {
        let good = connect();
        let lease = good.lease(1).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let hello = || Message::Hello(ferroce_ipc::Hello::ours("")).encode(0).unwrap();
        let mut shots: Vec<(&str, Vec<Vec<u8>>, usize)> = vec![
            ("noise", vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()], 0),
            ("one byte", vec![vec![1]], 0),
            ("nothing", vec![vec![]], 0),
            ("all a packet takes", vec![vec![0xff; 65_536]], 0),
            ("more than a packet takes", vec![vec![0; 100_000]], 0),
            ("253 descriptors", vec![hello()], 253),
            ("a lease before the greeting", vec![Message::Lease(1).encode(1).unwrap()], 0),
            (
                "a resume with /dev/null for parked descriptors",
                vec![hello(), Message::Resume(vec![16]).encode(1).unwrap()],
                1,
            ),
            (
                "what brokers say",
                vec![hello(), Message::GetStatus.encode(1).unwrap(), Message::Done.encode(1).unwrap()],
                0,
            ),
        ];
        for kind in 0..=20_u8 {
            let mut message = vec![0, 0, 1, 0, 0, 0, 11, 0, 0, 0, kind];
            shots.push(("an empty message", vec![hello(), message.clone()], 0));
            message.extend_from_slice(&[0xff; 200]);
            message[6] = 211;
            shots.push(("a message of ones", vec![hello(), message], 0));
        }
        for (what, packets, descriptors) in &shots {
            let hostile = Connection::connect(BROKER_NAME).unwrap();
            let last = packets.len() - 1;
            for (number, packet) in packets.iter().enumerate() {
                let count = if number == last { *descriptors } else { 0 };
                let sent = packet::send(hostile.as_fd(), packet, &vec![null.as_fd(); count]);
                // A kernel that knows SO_PASSRIGHTS (Linux 6.16) refuses descriptors until the broker has greeted.
                let refused = count > 0
                    && sent.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
                assert!(sent.is_ok() || refused, "{what}: {sent:?}");
            }
            // A slow reader as well: never reads, and goes.
        }
        // A client that sends requests and never reads: the broker closes its connection when too many answers wait.
        let greedy = Connection::connect(BROKER_NAME).unwrap();
        packet::send(greedy.as_fd(), &hello(), &[]).unwrap();
        let ask = Message::ListDevices.encode(1).unwrap();
        for _ in 0..20_000 {
            match packet::send(greedy.as_fd(), &ask, &[]) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(_) => break,
                Ok(()) => {}
            }
        }
        // The good one never noticed.
        assert!(good.process().iter().all(|event| !matches!(event, BrokerEvent::Disconnected)));
        assert_eq!(good.devices().unwrap().len(), 1);
        assert_eq!(good.lease(1).unwrap().members(), [2]);
        assert_eq!(brokers().len(), 1);
        drop(lease);
    });
}

#[test]
fn whoever_holds_the_port_is_named() {
    isolated("whoever_holds_the_port_is_named", || {
        let client = connect();
        let holders = ["0.0.0.0:4791", "[::1]:4791"].map(|address| UdpSocket::bind(address).unwrap());
        let start = Instant::now();
        let error = client.lease(1).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(30));
        let want = format!("is held by process {} (", std::process::id());
        let text = chain(&error);
        assert!(text.contains(&want) && text.contains("ferroce run --private-net"), "{text}");
        drop(holders);
        assert_eq!(client.lease(1).unwrap().members(), [1], "at once when it is free");
    });
}

#[test]
fn whoever_holds_the_name_is_named() {
    isolated("whoever_holds_the_name_is_named", || {
        let us = std::process::id();
        let mute = Listener::bind(BROKER_NAME).unwrap();
        let start = Instant::now();
        let error = BrokerClient::connect(BrokerMode::Auto).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(180), "{:?}", start.elapsed());
        assert!(
            chain(&error)
                .contains(&format!("process {us}, which holds the name of ferroced, does not answer"))
        );
        drop(mute);
        // Bound and not listening, so that nobody can even be asked.
        let address = rustix::net::SocketAddrUnix::new_abstract_name(BROKER_NAME.as_bytes()).unwrap();
        let family = rustix::net::AddressFamily::UNIX;
        let silent = rustix::net::socket(family, rustix::net::SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&silent, &address).unwrap();
        let error = BrokerClient::connect(BrokerMode::Auto).unwrap_err();
        let want = format!("@ferroce.4791 is held by process {us} (");
        assert!(chain(&error).contains(&want), "{}", chain(&error));
        drop(silent);
        connect();
    });
}

#[test]
fn a_low_limit_of_open_files_is_raised() {
    isolated("a_low_limit_of_open_files_is_raised", || {
        use nix::sys::resource::{Resource, setrlimit};
        setrlimit(Resource::RLIMIT_NOFILE, 64, 4096).unwrap();
        let clients: Vec<_> = (0..8).map(|_| connect()).collect();
        setrlimit(Resource::RLIMIT_NOFILE, 1024, 4096).unwrap();
        let leases: Vec<_> = clients.iter().map(|client| client.lease(16).unwrap()).collect();
        assert_eq!(leases.last().unwrap().members().last(), Some(&128));
    });
}

/// The broker keeps links where the `ferroce` that made them did: in the directory that the environment names.
#[test]
fn the_environment_that_names_directories_reaches_the_broker() {
    const NAME: &str = "the_environment_that_names_directories_reaches_the_broker";
    if in_role() {
        println!("\n{}", chain(&BrokerClient::connect(BrokerMode::Auto).unwrap_err()));
        return;
    }
    isolated(NAME, || {
        // In place of the daemon: it says what it was given, and serves nobody.
        let dir = std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap());
        std::fs::create_dir_all(&dir).unwrap();
        let daemon = dir.join("ferroced");
        let script = "#!/bin/sh\necho \"$XDG_RUNTIME_DIR $XDG_STATE_HOME $HOME $XDG_DATA_HOME.\"\n";
        std::fs::write(&daemon, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&daemon, mode).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("FERROCE_TEST_ROLE", "program")
            .env("FERROCE_DAEMON", &daemon)
            .envs(
                ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME", "XDG_DATA_HOME"]
                    .map(|name| (name, format!("/{name}"))),
            )
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("/XDG_RUNTIME_DIR /XDG_STATE_HOME /HOME ."), "{said}");
    });
}

/// A broker inherits the limits of the program that starts it.
#[test]
fn a_broker_that_may_open_too_few_files_refuses_to_start() {
    isolated("a_broker_that_may_open_too_few_files_refuses_to_start", || {
        for (limit, starts) in [(16, false), (255, false), (256, true)] {
            let output = Command::new("sh")
                .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" --detach")])
                .arg(env!("CARGO_BIN_EXE_ferroced"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said == "ready\n", starts, "{limit}: {said}");
            assert!(starts || said.contains("ferroced needs 256 open files"), "{limit}: {said}");
        }
        match connect().lease(1) {
            // The kernel counts the descriptors in flight of a user over all network namespaces.
            Err(error) if chain(&error).contains("ulimit -Hn") => {
                println!(
                    "skipped the rest: other brokers of this user have more descriptors in flight than this limit"
                );
            }
            lease => assert_eq!(lease.unwrap().members(), [1]),
        }
    });
}

/// The request of `ferroce stop`.
#[test]
fn a_broker_ends_when_told_to() {
    isolated("a_broker_ends_when_told_to", || {
        let stop = |force| {
            let mut asker = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
            let answer = asker.request(&Message::Stop { force }, PATIENCE)?.0;
            let end = asker.more(Duration::from_secs(5)).unwrap_err();
            assert!(end.is_leaving(), "{end}");
            Ok::<_, ferroce_ipc::ClientError>(answer)
        };
        let program = connect();
        let lease = program.lease(1).unwrap();
        let first = brokers();
        let refused = stop(false).unwrap_err().to_string();
        assert!(refused.contains(&format!("in use by process {} (", std::process::id())), "{refused}");
        // The program goes on with the next one, and with its slot.
        assert_eq!(stop(true).unwrap(), Message::Done);
        assert_eq!(program.lease(1).unwrap().members(), [2]);
        eventually("one other broker, and not the process that started it any more", || {
            let next = brokers();
            next.len() == 1 && next != first
        });
        drop((program, lease));
        eventually("nobody uses it", || stop(false).is_ok());
        eventually("it ends", || brokers().is_empty());
    });
}

#[test]
fn the_log_is_bounded_while_the_broker_runs() {
    isolated("the_log_is_bounded_while_the_broker_runs", || {
        let dir = std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap());
        let (log, old) = (dir.join("ferroced.log"), dir.join("ferroced.log.old"));
        let size = |path: &std::path::Path| path.metadata().map_or(0, |file| file.len());
        drop(connect());
        for round in 0..3 {
            let file = std::fs::File::options().write(true).open(&log).unwrap();
            file.set_len(size(&log) + (1 << 20)).unwrap();
            // Each greeting is a line (FERROCE_LOG=debug).
            drop(connect());
            eventually("a new log", || size(&log) > 0 && size(&log) < 1 << 20);
            assert!(size(&old) > 1 << 20, "round {round}: {}", size(&old));
        }
        // Where no file can be made the log begins anew in place.
        std::fs::remove_file(&old).unwrap();
        std::fs::create_dir(&old).unwrap();
        std::fs::File::options().write(true).open(&log).unwrap().set_len(3 << 20).unwrap();
        drop(connect());
        eventually("it is short again", || size(&log) > 0 && size(&log) < 1 << 20);
        assert_eq!(brokers().len(), 1);
    });
}

/// A link keeps the broker, and with it the network namespace, only while somebody can come to the namespace.
#[test]
fn a_broker_with_a_link_ends_with_its_namespace() {
    const NAME: &str = "a_broker_with_a_link_ends_with_its_namespace";
    if in_role() {
        let started =
            Command::new(env!("CARGO_BIN_EXE_ferroced")).args(["--detach", "--idle", "1"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&started.stdout), "ready\n");
        ip("link add va type veth peer name vb");
        let mut admin = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let link = Message::LinkAdd {
            name: "fr1".to_owned(),
            kind: ferroce_ipc::LinkKind::Rxe,
            netdev: "va".to_owned(),
            transient: true,
        };
        eventually("the broker sees va", || matches!(admin.request(&link, PATIENCE), Ok((Message::Done, _))));
        return;
    }
    isolated(NAME, || {
        if !ip("link show lo") {
            return;
        }
        let name =
            std::path::PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").unwrap()).with_extension("net");
        std::fs::write(&name, "").unwrap();
        let run = |first: &str| {
            let output = Command::new("unshare")
                .args(["-n", "sh", "-c", &format!("{first}; exec \"$@\""), "sh"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
                .env("FERROCE_TEST_ROLE", "admin")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
            said
        };
        run(&format!("mount --bind /proc/self/ns/net {}", name.display()));
        let said = run("sleep 60 </dev/null >/dev/null 2>&1 & echo child $!");
        let child = said.lines().find_map(|line| line.strip_prefix("child ")).unwrap().parse().unwrap();
        // They look once a second.
        std::thread::sleep(Duration::from_millis(3500));
        assert_eq!(brokers().len(), 2, "one namespace has a name, the other a process");
        kill(child);
        eventually("nobody can come to the second one any more", || brokers().len() == 1);
        let unmounted = Command::new("umount").arg(&name).status().unwrap();
        assert!(unmounted.success());
        eventually("nor to the first", || brokers().is_empty());
        std::fs::remove_file(&name).unwrap();
    });
}

/// The `ip` program; without it the test says so and passes.
fn ip(arguments: &str) -> bool {
    match Command::new("ip").args(arguments.split(' ')).status() {
        Ok(status) => {
            assert!(status.success(), "ip {arguments}");
            true
        }
        Err(_) => {
            println!("skipped the rest: there is no program ip (package iproute2)");
            false
        }
    }
}

#[test]
fn interfaces_are_followed() {
    isolated("interfaces_are_followed", || {
        let client = connect();
        let lease = client.lease(1).unwrap();
        assert_eq!(lease.addresses.len(), 2);
        if !ip("addr add 10.1.2.3/32 dev lo") {
            return;
        }
        let mut events = Vec::new();
        eventually("the address is there with its socket", || {
            events.extend(client.process());
            let added = |e: &BrokerEvent| matches!(e, BrokerEvent::AddressAdded(a) if a.ip.to_string() == "10.1.2.3" && a.member == 1);
            events.iter().any(added) && events.iter().any(|e| matches!(e, BrokerEvent::GidsChanged(_)))
        });
        ip("addr del 10.1.2.3/32 dev lo");
        ip("link add va type veth peer name vb");
        ip("addr add 192.0.2.1/24 dev va");
        ip("link set va up");
        ip("link set vb up");
        ip("link set lo down");
        let mut events = Vec::new();
        eventually("the port is down", || {
            events.extend(client.process());
            events.iter().any(|e| matches!(e, BrokerEvent::PortDown(_)))
        });
        ip("link set lo up");

        // A device on an interface, for everybody and for one.
        let mut admin = Client::connect(BROKER_NAME, "va", PATIENCE).unwrap();
        let of = |client: &mut Client| match client.request(&Message::ListDevices, PATIENCE).unwrap() {
            (Message::Devices(devices), _) => devices,
            other => panic!("{other:?}"),
        };
        let mut shown = Vec::new();
        eventually("the addresses of va work", || {
            shown = of(&mut admin);
            shown[0].gids.len() == 2
        });
        assert_eq!((shown[0].name.as_str(), shown[1].name.as_str()), ("fr1", "fr0"));
        assert_eq!(shown[0].mtu, 1500);
        assert!(shown[0].port_active);
        let gids: Vec<_> = shown[0].gids.iter().map(|e| (e.index, e.gid.to_ip())).collect();
        assert!(gids[0].1.is_ipv6() && gids[0].0 == 0, "the link-local one: {gids:?}");
        assert_eq!(gids[1], (1, "192.0.2.1".parse().unwrap()));
        let link = Message::LinkAdd {
            name: "rxe0".to_owned(),
            kind: ferroce_ipc::LinkKind::Rxe,
            netdev: "va".to_owned(),
            transient: true,
        };
        assert_eq!(admin.request(&link, PATIENCE).unwrap().0, Message::Done);
        let mut events = Vec::new();
        eventually("every program sees the link, with sockets", || {
            events.extend(client.process());
            let sockets = events.iter().filter(|e| matches!(e, BrokerEvent::AddressAdded(_))).count();
            sockets == 2 && events.iter().any(|e| matches!(e, BrokerEvent::DeviceAdded(_)))
        });
        assert_eq!(client.devices().unwrap()[0].name, "rxe0");
        ip("link del va");
        let mut events = Vec::new();
        eventually("the link goes with its interface", || {
            events.extend(client.process());
            events.iter().any(|e| matches!(e, BrokerEvent::DeviceRemoved(_)))
        });
    });
}

/// systemd ends a service whose main thread is silent for longer than `WatchdogSec=`.
#[test]
fn a_service_with_a_watchdog_is_heard() {
    isolated("a_service_with_a_watchdog_is_heard", || {
        let manager = std::env::temp_dir().join(format!("ferroce-watchdog-{}", std::process::id()));
        let _ = std::fs::remove_file(&manager);
        let socket = std::os::unix::net::UnixDatagram::bind(&manager).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut broker = Command::new(env!("CARGO_BIN_EXE_ferroced"))
            .envs([("NOTIFY_SOCKET", manager.to_str().unwrap()), ("WATCHDOG_USEC", "300000")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for _ in 0..3 {
            let mut word = [0; 64];
            let length = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..length], b"WATCHDOG=1");
        }
        broker.kill().unwrap();
        broker.wait().unwrap();
        std::fs::remove_file(&manager).unwrap();
    });
}
