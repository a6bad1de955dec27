//! The paths of the benchmarks of pairs, in network namespaces of their own.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use nix::unistd::geteuid;

use ferroce_harness::debian::Programs;
use ferroce_harness::exchange::has_listener;
use ferroce_harness::iwarp::net::Namespace;
use ferroce_harness::tree;

/// A path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Both ends on the loopback interface of one namespace.
    Loopback,
    /// A veth pair between two namespaces.
    Veth,
    /// The same with a loss in both directions: packets of a million. An XDP program drops them, and it is there even if it drops
    /// none, so that losses can be compared.
    Lossy(u32),
}

impl Kind {
    /// The name in tables and filters.
    pub fn name(self) -> String {
        match self {
            Self::Loopback => "lo".to_owned(),
            Self::Veth => "veth".to_owned(),
            Self::Lossy(per_million) => format!("veth that loses {} %", f64::from(per_million) / 1e4),
        }
    }
}

/// A path that exists until this is dropped.
pub struct Path {
    pub kind: Kind,
    places: Places,
}

enum Places {
    /// The server's end is in the first, the client's in the last.
    Own(Vec<Namespace>),
    /// Namespaces of `tests/guest/lossy-veth.sh`.
    Script(Lossy),
}

impl Path {
    /// Errors say why the path cannot be made here.
    pub fn new(kind: Kind, programs: &Programs) -> Result<Self> {
        ensure!(geteuid().is_root(), "network namespaces of its own need root");
        let places = match kind {
            Kind::Loopback => Places::Own(vec![Namespace::new(programs)?]),
            Kind::Veth => Places::Own(veth(programs)?),
            Kind::Lossy(per_million) => Places::Script(Lossy::up(per_million)?),
        };
        Ok(Self { kind, places })
    }

    /// The ends that need a device of their own: whether it is the server's.
    pub fn ends(&self) -> &'static [bool] {
        if self.kind == Kind::Loopback { &[true] } else { &[true, false] }
    }

    /// The server's address.
    pub fn address(&self) -> &'static str {
        match self.kind {
            Kind::Loopback => "127.0.0.1",
            Kind::Veth => "10.85.0.2",
            Kind::Lossy(_) => "10.66.0.2",
        }
    }

    /// The network device of an end.
    pub fn netdev(&self, server: bool) -> &'static str {
        match (self.kind, server) {
            (Kind::Loopback, _) => "lo",
            (Kind::Veth, true) => "b1",
            (Kind::Veth, false) => "b0",
            (Kind::Lossy(_), true) => "v1",
            (Kind::Lossy(_), false) => "v0",
        }
    }

    /// The front of a command at one of the ends.
    pub fn front(&self, server: bool) -> Command {
        match &self.places {
            Places::Own(namespaces) => {
                let namespace = if server { namespaces.first() } else { namespaces.last() };
                namespace.map_or_else(|| Command::new("false"), Namespace::command)
            }
            Places::Script(lossy) => lossy.front(server),
        }
    }

    /// Whether the server listens at the TCP port.
    pub fn listens(&self, port: u16) -> bool {
        let output = self.front(true).args(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).output();
        output.is_ok_and(|output| has_listener(&String::from_utf8_lossy(&output.stdout), port))
    }
}

/// Two namespaces; the interfaces have the usual MTU of 1500 and the usual offloads.
fn veth(programs: &Programs) -> Result<Vec<Namespace>> {
    let (server, client) = (Namespace::new(programs)?, Namespace::new(programs)?);
    client.run(&format!("ip link add name b0 type veth peer name b1 netns {}", server.pid()))?;
    client.run("ip addr add 10.85.0.1/24 dev b0")?;
    server.run("ip addr add 10.85.0.2/24 dev b1")?;
    client.run("ip link set b0 up")?;
    server.run("ip link set b1 up")?;
    Ok(vec![server, client])
}

/// The two namespaces of the script, removed when dropped.
pub struct Lossy {
    script: std::path::PathBuf,
    name: String,
}

impl Lossy {
    pub fn up(per_million: u32) -> Result<Self> {
        let script = tree::root().join("tests/guest/lossy-veth.sh");
        // Named after this run, so that no other run's namespaces are in the way.
        let lossy = Self { script, name: format!("ferroce-lossy-{}", std::process::id()) };
        let output = lossy.command(&["up", &per_million.to_string()]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "lossy-veth.sh: {}", said.trim().lines().last().unwrap_or_default());
        Ok(lossy)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.env("LOSSY_NAME", &self.name).stdin(Stdio::null()).args(words);
        command
    }

    /// The front of a command at one of the ends.
    pub fn front(&self, server: bool) -> Command {
        self.command(&["net", if server { "b" } else { "a" }])
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        if let Err(error) = self.command(&["down"]).output() {
            eprintln!("xtask: lossy-veth.sh down: {error}");
        }
    }
}
