//! iWARP with ferroce at both ends: on lo, over a veth pair between two network namespaces, and through a NAT.

mod terminate;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::Bed;
use crate::iwarp_wire as wire;
use ferroce_harness::cc;
use ferroce_harness::exchange::{Logs, has_listener};
use ferroce_harness::iwarp::drive::{self, Ends, PROBE};
use ferroce_harness::iwarp::net::{self, Namespace};
use ferroce_harness::iwarp::programs::{self, Row};
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;

const LINK: &str = "iw0";
const FAMILIES: [bool; 2] = [false, true];

/// The wires, one after another. A wire on which the device cannot be made fails once, and its rows do not run.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let probe = cc::debians("cmprobe", &bed.programs)?;
    let wires: [fn(&Bed) -> Result<Net>; 3] = [Net::loopback, Net::veth, Net::nat];
    for (name, make) in ["lo", "veth", "NAT"].into_iter().zip(wires) {
        let net = match make(bed) {
            Ok(net) => net,
            Err(why) => {
                checks.skip(&format!("iWARP over {name}"), &format!("{why:#}"));
                continue;
            }
        };
        let pair = Pair { bed, net, probe: probe.clone(), variables: Cell::default() };
        match pair.links(true) {
            Ok(()) => pair.all(checks)?,
            Err(why) => checks.fail(&format!("iWARP over {name}: the device"), &format!("{why:#}")),
        }
        // A device that was not made needs no removal, and its failure is told already.
        pair.links(false).ok();
    }
    Ok(())
}

/// The places of two ends, and the wire between them.
struct Net {
    name: &'static str,
    /// None: this namespace.
    server: Option<Namespace>,
    client: Option<Namespace>,
    /// The network device of the server's end, and of the client's.
    netdevs: [&'static str; 2],
    /// The server's address that its programs bind to, IPv4 and IPv6.
    bound: [&'static str; 2],
    /// The address that the client connects to.
    host: [&'static str; 2],
}

impl Net {
    fn loopback(_: &Bed) -> Result<Self> {
        let addresses = ["127.0.0.1", "::1"];
        let netdevs = ["lo", "lo"];
        Ok(Self { name: "lo", server: None, client: None, netdevs, bound: addresses, host: addresses })
    }

    /// The server in a namespace of its own.
    fn veth(bed: &Bed) -> Result<Self> {
        let server = Namespace::new(&bed.programs)?;
        here(&format!("ip link add name w0 type veth peer name w1 netns {}", server.pid()))?;
        raise(&|line| here(line), "w0", &["10.83.0.1/24", "fd83::1/64"])?;
        raise(&|line| server.run(line), "w1", &["10.83.0.2/24", "fd83::2/64"])?;
        let addresses = ["10.83.0.2", "fd83::2"];
        Ok(Self {
            name: "veth",
            server: Some(server),
            client: None,
            netdevs: ["w1", "w0"],
            bound: addresses,
            host: addresses,
        })
    }

    /// Both ends in namespaces of their own, and this namespace as the router between them. The server has no route to the
    /// client, so a packet that the router does not translate finds no way back.
    fn nat(bed: &Bed) -> Result<Self> {
        let nft =
            bed.programs.find("nft").context("nft (Debian: nftables) is not here")?.display().to_string();
        let (server, client) = (Namespace::new(&bed.programs)?, Namespace::new(&bed.programs)?);
        here(&format!("ip link add name r0 type veth peer name n1 netns {}", client.pid()))?;
        here(&format!("ip link add name r1 type veth peer name n2 netns {}", server.pid()))?;
        raise(&|line| here(line), "r0", &["10.84.1.1/24"])?;
        raise(&|line| here(line), "r1", &["10.84.2.1/24"])?;
        raise(&|line| client.run(line), "n1", &["10.84.1.2/24"])?;
        raise(&|line| server.run(line), "n2", &["10.84.2.2/24"])?;
        client.run("ip route add default via 10.84.1.1")?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("ip_forward")?;
        for rule in [
            "add table ip nat",
            "add chain ip nat post { type nat hook postrouting priority 100 ; }",
            "add rule ip nat post oifname r1 masquerade",
        ] {
            here(&format!("{nft} {rule}"))?;
        }
        let addresses = ["10.84.2.2", ""];
        Ok(Self {
            name: "NAT",
            server: Some(server),
            client: Some(client),
            netdevs: ["n2", "n1"],
            bound: addresses,
            host: addresses,
        })
    }

    fn front(&self, server: bool) -> Command {
        let namespace = if server { &self.server } else { &self.client };
        match namespace {
            Some(namespace) => namespace.command(),
            None => {
                let mut command = Command::new("env");
                command.arg("--");
                command
            }
        }
    }

    /// IPv6 is not translated.
    fn families(&self) -> &'static [bool] {
        if self.name == "NAT" { &FAMILIES[..1] } else { &FAMILIES }
    }
}

/// Runs a line in this namespace.
fn here(line: &str) -> Result<String> {
    let mut front = Command::new("env");
    front.arg("--");
    net::output(front, line)
}

/// Gives a network device its addresses, and raises it.
fn raise(run: &dyn Fn(&str) -> Result<String>, netdev: &str, addresses: &[&str]) -> Result<()> {
    for address in addresses {
        // Without duplicate detection an address of IPv6 is usable at once.
        let nodad = if address.contains(':') { "nodad" } else { "" };
        run(&format!("ip addr add {address} dev {netdev} {nodad}"))?;
    }
    run(&format!("ip link set {netdev} up")).map(drop)
}

/// Two ends of ferroce.
struct Pair<'a> {
    bed: &'a Bed,
    net: Net,
    probe: PathBuf,
    /// Variables of the next commands, as `NAME=VALUE`.
    variables: Cell<&'static [String]>,
}

impl Pair<'_> {
    fn all(&self, checks: &mut Checks) -> Result<()> {
        if !drive::connects(self, checks)? {
            return Ok(());
        }
        for crc in [false, true] {
            self.crc(crc)?;
            for ipv6 in self.net.families() {
                self.family(checks, crc, *ipv6)?;
            }
            let captured = self.captured(checks, crc);
            self.judged(checks, crc, captured);
        }
        self.crc(false)?;
        for ipv6 in self.net.families() {
            self.ends(checks, *ipv6);
        }
        match self.net.name {
            "lo" => self.on_lo(checks),
            "NAT" => self.forwarded(checks),
            _ => Ok(()),
        }
    }

    /// All rows with one setting of the CRC on lo, and a part of them elsewhere.
    fn family(&self, checks: &mut Checks, crc: bool, ipv6: bool) -> Result<()> {
        let all = self.bed.all;
        let list = match (self.net.name, crc) {
            ("lo", false) => [programs::rows(true, ipv6), programs::pairs(true, ipv6)].concat(),
            ("veth", false) => [programs::rows(all, ipv6), programs::pairs(all, ipv6)].concat(),
            _ if all => programs::rows(true, ipv6),
            _ => programs::sample(ipv6),
        };
        self.rows(checks, &list, ipv6)?;
        if !crc {
            drive::endings(self, ipv6, checks);
        }
        Ok(())
    }

    fn rows(&self, checks: &mut Checks, list: &[Row], ipv6: bool) -> Result<()> {
        list.iter().try_for_each(|row| drive::row(self, row, ipv6, checks))
    }

    /// Either end is killed.
    fn ends(&self, checks: &mut Checks, ipv6: bool) {
        for server in [true, false] {
            let victim = if server { "server" } else { "client" };
            let name = format!("{}: kill -9 of the {victim} {}", self.net.name, drive::family(ipv6));
            checks.check(&name, drive::killed_idle(self, server, ipv6));
            checks.check(&format!("{name}, under way"), drive::killed_busy(self, server, ipv6));
        }
    }

    /// Rows that need no second wire.
    fn on_lo(&self, checks: &mut Checks) -> Result<()> {
        for crc in [true, false] {
            self.crc(crc)?;
            terminate::check(self, crc, checks)?;
        }
        for row in programs::one_sided() {
            match drive::row_or_refusal(self, &row, programs::NO_SEND_QUEUE) {
                Ok(note) => {
                    checks.pass();
                    checks.note(note);
                }
                Err(why) => checks.fail(&row.name, &format!("{why:#}")),
            }
        }
        let library = format!("/usr/lib/{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH);
        let Some(library) = self.bed.programs.find(&library) else {
            checks.skip("librspreload", "librspreload.so (Debian: librdmacm1) is not here");
            return Ok(());
        };
        for ipv6 in FAMILIES {
            self.preloaded(checks, &library, ipv6)?;
        }
        Ok(())
    }

    /// rstream with ordinary sockets, which librspreload makes rsockets.
    fn preloaded(&self, checks: &mut Checks, library: &Path, ipv6: bool) -> Result<()> {
        let list = programs::rows(true, ipv6).into_iter().filter(|row| row.name == "rstream -T b -T v");
        for mut row in list {
            row.name = "rstream -T s, librspreload".to_owned();
            for end in [&mut row.dialogue.server, &mut row.dialogue.client] {
                end.1 = format!("{} -T s", end.1.replace("-T b -T v", ""));
            }
            // A run of the stage makes two such lists, so that the leak is of no account.
            let variables = vec![format!("LD_PRELOAD={}", library.display())];
            self.variables.set(Vec::leak(variables));
            let run = drive::row(self, &row, ipv6, checks);
            self.variables.take();
            run?;
        }
        Ok(())
    }

    /// The server behind the router's own address, which forwards one port.
    fn forwarded(&self, checks: &mut Checks) -> Result<()> {
        let port = self.port();
        let nft = self.bed.programs.find("nft").context("nft")?.display().to_string();
        here(&format!("{nft} add chain ip nat pre {{ type nat hook prerouting priority -100 ; }}"))?;
        here(&format!("{nft} add rule ip nat pre tcp dport {port} dnat to 10.84.2.2"))?;
        let forwarded = Forwarded { pair: self, port };
        for row in programs::sample(false).into_iter().filter(|row| row.name.starts_with("rping")) {
            drive::row(&forwarded, &row, false, checks)?;
        }
        Ok(())
    }

    /// The sample of rows while dumpcap runs at the server's end.
    fn captured(&self, checks: &mut Checks, crc: bool) -> Result<Option<PathBuf>> {
        let name = format!("iwarp-{}-crc-{crc}", self.net.name);
        let [netdev, _] = self.net.netdevs;
        let front = || self.net.front(true);
        let captured = wire::capture(&front, &self.bed.programs, &self.bed.logs, &name, netdev, &mut || {
            self.rows(checks, &programs::sample(false), false)
        });
        match captured? {
            Ok(file) => Ok(Some(file)),
            Err(why) => {
                checks.skip(&name, &why);
                Ok(None)
            }
        }
    }

    fn judged(&self, checks: &mut Checks, crc: bool, file: Result<Option<PathBuf>>) {
        let name = format!("packets over {}, CRC {crc}", self.net.name);
        // ucmatose makes four connections, rping and rstream one each, perftest two.
        let wanted = wire::Wanted { connections: 8, crc };
        let judged = file.and_then(|file| {
            let Some(file) = file else { return Ok(None) };
            let note = wire::judge(&self.bed.programs, &file, wanted)?;
            if self.net.name == "NAT" {
                let translated = "iwarp_mpa.req && ip.src != 10.84.2.1";
                let others = wire::tshark(&self.bed.programs, &file, translated, &[])?;
                ensure!(others.is_empty(), "requests that the router did not translate:\n{others}");
            }
            Ok(Some(note))
        });
        match judged {
            Ok(None) => {}
            Ok(Some(note)) => {
                checks.pass();
                checks.note(note);
            }
            Err(why) => checks.fail(&name, &format!("{why:#}")),
        }
    }

    /// Makes or removes the device of each end.
    fn links(&self, make: bool) -> Result<()> {
        for (server, netdev) in [true, false].into_iter().zip(self.net.netdevs) {
            // On lo both ends have one device.
            if self.net.name == "lo" && !server {
                break;
            }
            let line = match make {
                true => format!("link add {LINK} type siw netdev {netdev} --no-persist"),
                false => format!("link del {LINK} --no-persist"),
            };
            self.ferroce(server, &line)?;
        }
        Ok(())
    }

    fn crc(&self, on: bool) -> Result<()> {
        let line = format!("link set {LINK} crc {} --no-persist", if on { "on" } else { "off" });
        self.ferroce(true, &line)?;
        self.ferroce(false, &line)
    }

    fn ferroce(&self, server: bool, line: &str) -> Result<()> {
        let mut command = self.net.front(server);
        command.arg(self.bed.dist.bin("ferroce")).args(line.split(' '));
        let log = self.bed.logs.path(&format!("{} {server} {line}", self.net.name));
        let ended = job::run(command, &log, Duration::from_secs(20))?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(())
    }
}

impl Ends for Pair<'_> {
    fn name(&self) -> String {
        format!("iWARP over {}", self.net.name)
    }

    fn bound(&self, ipv6: bool) -> String {
        self.net.bound[usize::from(ipv6)].to_owned()
    }

    fn host(&self, ipv6: bool) -> String {
        self.net.host[usize::from(ipv6)].to_owned()
    }

    fn command(&self, server: bool, words: &[String]) -> Result<Command> {
        let (program, rest) = words.split_first().context("a command without a program")?;
        let file = match program == PROBE {
            true => self.probe.clone(),
            false => self.bed.programs.find(program).with_context(|| format!("{program} is missing"))?,
        };
        let mut command = self.net.front(server);
        command.arg(self.bed.dist.bin("ferroce")).args(["run", "--"]);
        if !self.variables.get().is_empty() {
            // Behind `ferroce run`, so that the program alone has them.
            command.arg("env").args(self.variables.get());
        }
        command.arg(file).args(rest);
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        Ok(command)
    }

    fn listens(&self, port: u16) -> bool {
        match &self.net.server {
            Some(namespace) => namespace.listens(port),
            None => ["/proc/net/tcp", "/proc/net/tcp6"]
                .iter()
                .any(|table| has_listener(&std::fs::read_to_string(table).unwrap_or_default(), port)),
        }
    }

    fn kill(&self, _: bool, job: &Job, _: &str) -> Result<()> {
        job.signal(Signal::SIGKILL);
        Ok(())
    }

    fn port(&self) -> u16 {
        self.bed.port()
    }

    fn logs(&self) -> &Logs {
        &self.bed.logs
    }
}

/// The same ends when the client connects to the router.
struct Forwarded<'a> {
    pair: &'a Pair<'a>,
    port: u16,
}

impl Ends for Forwarded<'_> {
    fn name(&self) -> String {
        "iWARP through a forwarded port".to_owned()
    }

    fn bound(&self, ipv6: bool) -> String {
        self.pair.bound(ipv6)
    }

    fn host(&self, _: bool) -> String {
        "10.84.1.1".to_owned()
    }

    fn command(&self, server: bool, words: &[String]) -> Result<Command> {
        self.pair.command(server, words)
    }

    fn listens(&self, port: u16) -> bool {
        self.pair.listens(port)
    }

    fn kill(&self, server: bool, job: &Job, line: &str) -> Result<()> {
        self.pair.kill(server, job, line)
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn logs(&self) -> &Logs {
        self.pair.logs()
    }
}
