//! Where a benchmark runs: on loopback, or over a wire that really cuts packets.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian::Programs;
use crate::exchange::has_listener;

/// One path between two processes.
pub struct Place {
    /// Where the server is reached.
    pub server_address: &'static str,
    /// The GID index of that address's kind.
    pub gid: &'static str,
    /// Keeps the server's network namespace; none on loopback.
    far: Option<Far>,
}

struct Far {
    holder: Child,
    nsenter: PathBuf,
}

impl Place {
    /// Both ends in this network namespace.
    pub fn loopback() -> Self {
        Self { server_address: "127.0.0.1", gid: "0", far: None }
    }

    /// The same over IPv6.
    pub fn loopback6() -> Self {
        Self { server_address: "::1", gid: "1", far: None }
    }

    /// Where programs meet over TCP before they exchange anything over the path: some know IPv4 alone.
    pub fn meeting_address(&self) -> &'static str {
        if self.server_address == "::1" { "127.0.0.1" } else { self.server_address }
    }

    /// The server in a network namespace of its own, behind a veth pair without segmentation offload: a
    /// veth hands a batch over uncut otherwise.
    pub fn cut(programs: &Programs) -> Result<Self> {
        let find = |name: &str| programs.find(name).with_context(|| format!("{name} is missing"));
        let (unshare, nsenter) = (find("unshare")?, find("nsenter")?);
        let holder = Command::new(unshare).args(["-n", "--", "cat"]).stdin(Stdio::piped()).spawn()?;
        let place = Self { server_address: "10.80.0.2", gid: "1", far: Some(Far { holder, nsenter }) };
        let pid = place.far.as_ref().map(|far| far.holder.id()).unwrap_or_default().to_string();
        // The holder has its namespace once its link differs from ours.
        let own = std::fs::read_link("/proc/self/ns/net")?;
        for _ in 0..200 {
            if std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns != own) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (ip, ethtool) = (find("ip")?, find("ethtool")?);
        let off = ["tso", "off", "gso", "off", "tx-udp-segmentation", "off"];
        let run = |mut command: Command, words: &[&str]| -> Result<()> {
            let output = command.args(words).output()?;
            ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        let here = |program: &PathBuf| Command::new(program);
        let there = |program: &PathBuf| {
            let mut command = place.command(true);
            command.arg(program);
            command
        };
        run(
            here(&ip),
            &[
                "link", "add", "va", "mtu", "4200", "type", "veth", "peer", "name", "vb", "mtu", "4200",
                "netns", &pid,
            ],
        )?;
        run(here(&ip), &["addr", "add", "10.80.0.1/24", "dev", "va"])?;
        run(there(&ip), &["addr", "add", "10.80.0.2/24", "dev", "vb"])?;
        run(here(&ip), &["link", "set", "va", "up"])?;
        run(there(&ip), &["link", "set", "lo", "up"])?;
        run(there(&ip), &["link", "set", "vb", "up"])?;
        run(here(&ethtool), &[&["-K", "va"], off.as_slice()].concat())?;
        run(there(&ethtool), &[&["-K", "vb"], off.as_slice()].concat())?;
        Ok(place)
    }

    /// The front of a command at one of the ends.
    pub fn command(&self, server: bool) -> Command {
        match &self.far {
            Some(far) if server => {
                let mut command = Command::new(&far.nsenter);
                command.args(["-t", &far.holder.id().to_string(), "-n", "--"]);
                command
            }
            _ => {
                let mut command = Command::new("env");
                command.arg("--");
                command
            }
        }
    }

    /// The network device of an end, when it is not the default one.
    pub fn netdev(&self, server: bool) -> Option<&'static str> {
        self.far.as_ref().map(|_| if server { "vb" } else { "va" })
    }

    /// Does the server listen at the TCP port?
    pub fn listening(&self, port: u16) -> bool {
        self.listener(port)()
    }

    /// Says whether the server listens at the TCP port, whenever it is asked.
    pub fn listener(&self, port: u16) -> impl Fn() -> bool + use<> {
        let pid = self.far.as_ref().map_or_else(|| "self".to_owned(), |far| far.holder.id().to_string());
        move || {
            let table =
                |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
            has_listener(&table("tcp"), port) || has_listener(&table("tcp6"), port)
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // Brokers in there are of this run alone; they end with an idle minute, and we do not wait for it.
        crate::netns::end_brokers_of(self.holder.id());
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}
