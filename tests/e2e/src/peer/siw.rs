//! Interop with the Linux kernel's siw, iWARP over TCP, in the guest.
//!
//! The same rows run between ferroce and siw in both directions, and, as a control, between two siw devices of the guest that a
//! veth pair joins. A row that fails in the control says something of siw or of the machine, not of ferroce.
//!
//! A few exchanges may be repeated. A reason that was found: about once in 100,000 FPDUs the guest sends one whose payload is right and
//! whose CRC is wrong, as tshark says too, and ferroce answers with the Terminate that RFC 5044 asks for.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::{Guest, Image, is_trouble};
use crate::iwarp_wire as wire;
use ferroce_harness::cc;
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::{Logs, has_listener};
use ferroce_harness::iwarp::drive::{self, Ends, PROBE};
use ferroce_harness::iwarp::programs::{self, Row};
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// An implementation, and the end of a wire where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// ferroce, on the host's end of the wire to the guest.
    Ours,
    /// siw0, at the guest's end of it.
    Siw,
    /// Two more siw devices of the guest, for the control.
    ControlA,
    /// The other one.
    ControlB,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ferroce",
            Self::Siw => "siw",
            Self::ControlA => "siwa",
            Self::ControlB => "siwb",
        }
    }

    fn address(self, ipv6: bool) -> &'static str {
        match (self, ipv6) {
            (Self::Ours, false) => "10.77.0.1",
            (Self::Ours, true) => "fd77::1",
            (Self::Siw, false) => "10.77.0.2",
            (Self::Siw, true) => "fd77::2",
            (Self::ControlA, false) => "10.79.0.1",
            (Self::ControlA, true) => "fd79::1",
            (Self::ControlB, false) => "10.79.0.2",
            (Self::ControlB, true) => "fd79::2",
        }
    }
}

/// The server's side and the client's.
type Pair = (Side, Side);

const CONTROL: Pair = (Side::ControlB, Side::ControlA);
const DIRECTIONS: [Pair; 2] = [(Side::Siw, Side::Ours), (Side::Ours, Side::Siw)];

/// Where the probe is in the guest.
const IN_GUEST: &str = "/tmp/cmprobe";
/// Where the capture of the control is in the guest.
const CAPTURE: &str = "/tmp/control.pcap";
/// Exchanges that may fail once, in a run. siw's initiator drops a connection (CONNECT_ERROR, -EINVAL) if the responder's first
/// FPDU comes before siw has read the reply, and perftest connects twice without a look at the other end.
const REPEATS: u32 = 5;

/// Makes the control's pair: `rxe-pair` makes the veth and its routes, and then its rxe devices go.
const PAIR: &str = "rxe-pair up 1500 2>&1 && rdma link del rxa && rdma link del rxb && rmmod rdma_rxe && \
                    rdma link add siwa type siw netdev va && rdma link add siwb type siw netdev vb";

struct Interop<'a> {
    guest: Guest,
    dist: Option<&'a Dist>,
    programs: &'a Programs,
    probe: PathBuf,
    logs: Logs,
    /// FERROCE_RUNTIME_DIR of our end.
    runtime: PathBuf,
    next_port: Cell<u16>,
    repeats: Cell<u32>,
}

/// The stage. Without a distribution only the control runs.
pub fn check(checks: &mut Checks, dist: Option<&Dist>, programs: &Programs, all: bool) -> Result<()> {
    let Some(image) = Image::find_or_skip(checks, "siw") else { return Ok(()) };
    if let Some(why) = image.without_siw() {
        checks.skip("siw", why);
        return Ok(());
    }
    if !geteuid().is_root() {
        checks.skip("siw", "the guest's tap device and network namespace need root");
        return Ok(());
    }
    let logs = Logs(tree::target().join("xtask").join("siw"));
    let runtime = logs.0.join("run");
    std::fs::create_dir_all(&runtime)?;
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
    let probe = cc::debians("cmprobe", programs)?;
    let guest = Guest::up_with_siw(image)?;
    let interop = Interop {
        guest,
        dist,
        programs,
        probe,
        logs,
        runtime,
        next_port: Cell::new(23_000),
        repeats: Cell::new(REPEATS),
    };
    interop.guest.push(&interop.probe, IN_GUEST)?;
    interop.guest.inside(PAIR)?;
    match dist.map(|dist| interop.add_link(dist)) {
        None => {}
        // Every further row would fail for the same reason.
        Some(Err(why)) => checks.fail("ferroce link add iw0 type siw netdev peer0", &format!("{why:#}")),
        Some(Ok(())) => interop.ours(checks, all)?,
    }
    interop.control(checks, all)?;
    interop.after(checks)
}

impl Interop<'_> {
    /// siw at both ends.
    fn control(&self, checks: &mut Checks, all: bool) -> Result<()> {
        for ipv6 in [false, true] {
            self.rows(checks, CONTROL, &programs::rows(all, ipv6), ipv6)?;
            drive::endings(&self.ends(CONTROL), ipv6, checks);
        }
        self.kills(checks, CONTROL, all);
        let captured = self.captured_control(checks);
        self.captured("the control's packets", checks, captured, false);
        self.lossy(checks, &["va", "vb"], &[CONTROL])
    }

    /// ferroce at one end.
    fn ours(&self, checks: &mut Checks, all: bool) -> Result<()> {
        let mut pairs = Vec::new();
        for pair in DIRECTIONS {
            if checks.twice(&self.repeats, |checks| drive::connects(&self.ends(pair), checks))? {
                pairs.push(pair);
            }
        }
        if pairs.is_empty() {
            return Ok(());
        }
        for crc in [false, true] {
            self.ferroce(&format!("link set iw0 crc {} --no-persist", if crc { "on" } else { "off" }))?;
            for ipv6 in [false, true] {
                // The second setting and the second family take the same paths but for the checksum and the address.
                let whole = all || (!crc && !ipv6);
                let mut list = if whole { programs::rows(all, ipv6) } else { programs::sample(ipv6) };
                // The guest is emulated, and so slower than this end.
                list.retain(|row| row.dialogue.is_even());
                for pair in &pairs {
                    self.rows(checks, *pair, &list, ipv6)?;
                    if whole {
                        drive::endings(&self.ends(*pair), ipv6, checks);
                    }
                }
            }
            let captured = self.captured_ours(checks, &pairs, crc);
            self.captured(&format!("packets to siw, CRC {crc}"), checks, captured, crc);
        }
        self.ferroce("link set iw0 crc off --no-persist")?;
        pairs.iter().for_each(|pair| self.kills(checks, *pair, all));
        self.lossy(checks, &["eth0"], &pairs)
    }

    fn rows(&self, checks: &mut Checks, pair: Pair, list: &[Row], ipv6: bool) -> Result<()> {
        let ends = self.ends(pair);
        for row in list {
            checks.twice(&self.repeats, |checks| {
                let mut tried = Checks::default();
                drive::row(&ends, row, ipv6, &mut tried)?;
                if tried.good() {
                    checks.pass();
                    return Ok(());
                }
                checks.fail(&row.name, "as above");
                self.healthy().with_context(|| format!("after {} {}", ends.name(), row.name))
            })?;
        }
        Ok(())
    }

    /// A guest whose kernel ran into a fault of its own answers nothing any more, so that no later row tells anything.
    fn healthy(&self) -> Result<()> {
        let log = self.guest.inside("dmesg")?;
        let bad: Vec<&str> = log.lines().filter(|line| is_trouble(line)).collect();
        ensure!(bad.is_empty(), "the guest's kernel is in trouble, and the stage ends:\n{}", bad.join("\n"));
        Ok(())
    }

    fn kills(&self, checks: &mut Checks, pair: Pair, all: bool) {
        let ends = self.ends(pair);
        for ipv6 in [false, true].into_iter().take(if all { 2 } else { 1 }) {
            for server in [true, false] {
                let victim = if server { "server" } else { "client" };
                let name = format!("{}: kill -9 of the {victim} {}", ends.name(), drive::family(ipv6));
                checks.check(&name, drive::killed_idle(&ends, server, ipv6));
                let busy = drive::killed_busy(&ends, server, ipv6);
                checks.check(&format!("{name}, under way"), busy);
            }
        }
    }

    /// One packet of a hundred is lost on the way out of the guest.
    fn lossy(&self, checks: &mut Checks, netdevs: &[&str], pairs: &[Pair]) -> Result<()> {
        let line = |verb: &str, what: &str| -> String {
            let lines = netdevs.iter().map(|dev| format!("tc qdisc {verb} dev {dev} root {what}"));
            lines.collect::<Vec<_>>().join(" && ")
        };
        self.guest.inside(&line("add", "netem loss 1%"))?;
        let run = pairs.iter().try_for_each(|pair| {
            let mut list = programs::sample(false);
            list.iter_mut().for_each(|row| row.name += " under 1 % loss");
            self.rows(checks, *pair, &list, false)
        });
        self.guest.inside(&line("del", ""))?;
        run
    }

    /// The sample of rows while tcpdump runs in the guest.
    fn captured_control(&self, checks: &mut Checks) -> Result<Option<PathBuf>> {
        let limit = Duration::from_secs(120);
        let words = format!("tcpdump -U -B 65536 -i va -s 0 -w {CAPTURE} tcp")
            .split(' ')
            .map(str::to_owned)
            .collect();
        let words: Vec<String> = words;
        let dump = Job::start(self.guest.command(limit, &words), &self.logs.path("tcpdump"), limit)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        // The file's header has 24 octets.
        while self.guest.inside(&format!("test $(stat -c %s {CAPTURE}) -ge 24")).is_err() {
            ensure!(Instant::now() < deadline, "tcpdump in the guest: {}", dump.output());
            std::thread::sleep(Duration::from_millis(100));
        }
        self.rows(checks, CONTROL, &programs::sample(false), false)?;
        std::thread::sleep(Duration::from_secs(1));
        // The guest's own script ends the program when the one on the host ends.
        dump.signal(Signal::SIGTERM);
        dump.wait()?;
        let file = self.logs.0.join("control.pcap");
        self.guest.pull(CAPTURE, &file)?;
        Ok(Some(file))
    }

    /// The sample of rows in each direction while dumpcap runs on the host's end of the wire.
    fn captured_ours(&self, checks: &mut Checks, pairs: &[Pair], crc: bool) -> Result<Option<PathBuf>> {
        let name = format!("ferroce-siw-crc-{crc}");
        let front = || self.guest.netns_command();
        let captured = wire::capture(&front, self.programs, &self.logs, &name, "peer0", &mut || {
            pairs.iter().try_for_each(|pair| self.rows(checks, *pair, &programs::sample(false), false))
        });
        match captured? {
            Ok(file) => Ok(Some(file)),
            Err(why) => {
                checks.skip(&name, &why);
                Ok(None)
            }
        }
    }

    fn captured(&self, name: &str, checks: &mut Checks, file: Result<Option<PathBuf>>, crc: bool) {
        // ucmatose makes four connections, rping and rstream one each, perftest two.
        let wanted = wire::Wanted { connections: 8, crc };
        match file.and_then(|file| file.map(|file| wire::judge(self.programs, &file, wanted)).transpose()) {
            Ok(note) => {
                if let Some(note) = note {
                    checks.pass();
                    checks.note(note);
                }
            }
            Err(why) => checks.fail(name, &format!("{why:#}")),
        }
    }

    /// Makes our device.
    fn add_link(&self, dist: &Dist) -> Result<()> {
        ensure!(dist.bin("ferroce").exists(), "no program {}", dist.bin("ferroce").display());
        self.ferroce("link add iw0 type siw netdev peer0 --no-persist").map(drop)
    }

    /// A command of the program `ferroce` at our end.
    fn ferroce(&self, line: &str) -> Result<String> {
        let mut command = self.front();
        command.args(line.split(' '));
        let ended = job::run(command, &self.logs.path(line), Duration::from_secs(20))?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// The front of such a command.
    fn front(&self) -> Command {
        let mut command = self.guest.netns_command();
        let program = self.dist.map_or_else(|| PathBuf::from("ferroce"), |dist| dist.bin("ferroce"));
        command.arg(program).env("FERROCE_RUNTIME_DIR", &self.runtime);
        if let Some(dirs) = self.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }

    fn ends(&self, (server, client): Pair) -> Between<'_> {
        Between { interop: self, server, client }
    }

    /// Checks the guest's kernel log at the end.
    fn after(&self, checks: &mut Checks) -> Result<()> {
        checks.check("the guest's kernel log", self.healthy());
        checks.note(format!("exchanges that were repeated: {}", REPEATS - self.repeats.get()));
        checks.note(self.guest.inside("uname -r")?.trim().to_owned());
        Ok(())
    }
}

/// Two ends of the stage.
struct Between<'a> {
    interop: &'a Interop<'a>,
    server: Side,
    client: Side,
}

impl Between<'_> {
    fn side(&self, server: bool) -> Side {
        if server { self.server } else { self.client }
    }
}

impl Ends for Between<'_> {
    fn name(&self) -> String {
        format!("{} server, {} client", self.server.name(), self.client.name())
    }

    fn bound(&self, ipv6: bool) -> String {
        self.server.address(ipv6).to_owned()
    }

    fn command(&self, server: bool, words: &[String]) -> Result<Command> {
        let (program, rest) = (words.first().map_or("", |word| &**word), words.get(1..).unwrap_or_default());
        if self.side(server) != Side::Ours {
            let program = if program == PROBE { IN_GUEST } else { program };
            let line = [&[program.to_owned()], rest].concat();
            return Ok(self.interop.guest.command(drive::LIMIT, &line));
        }
        let file = match program == PROBE {
            true => self.interop.probe.clone(),
            false => self.interop.programs.find(program).unwrap_or_else(|| PathBuf::from(program)),
        };
        let mut command = self.interop.front();
        command.args(["run", "--"]).arg(file).args(rest);
        Ok(command)
    }

    fn listens(&self, port: u16) -> bool {
        let text = match self.server {
            Side::Ours => self.interop.guest.in_netns(&["cat", "/proc/net/tcp", "/proc/net/tcp6"]),
            _ => self.interop.guest.inside("cat /proc/net/tcp /proc/net/tcp6"),
        };
        has_listener(&text.unwrap_or_default(), port)
    }

    fn kill(&self, server: bool, job: &Job, line: &str) -> Result<()> {
        if self.side(server) == Side::Ours {
            job.signal(Signal::SIGKILL);
            return Ok(());
        }
        // The guest has no pkill; both ends of the control have the same name, but not the same arguments.
        let line = line.replace(PROBE, IN_GUEST);
        let script = format!(
            "for p in /proc/[0-9]*; do case \"$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)\" in '{line} '*) \
             kill -9 ${{p#/proc/}};; esac; done; true"
        );
        self.interop.guest.inside(&script).map(drop)
    }

    fn port(&self) -> u16 {
        self.interop.next_port.replace(self.interop.next_port.get() + 1)
    }

    fn logs(&self) -> &Logs {
        &self.interop.logs
    }
}
