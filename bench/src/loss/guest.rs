//! The kernel's rxe beside ferroce and TCP: both ends in the guest, or one there and one on this machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::grid::{Bed, Cell, Condition, GUEST_SECONDS, Stack};
use super::programs::{Impairments, name};
use super::setting::Setting;
use crate::guest::{HOST, ROOT, Stacks};
use ferroce_harness::exchange::has_listener;
use ferroce_harness::job::{self, Ended, Job};

/// This machine's address at the guest's wire, and that of the server's end of the guest's own veth.
const MACHINE: &str = "10.77.0.1";
const PAIR_SERVER: &str = "10.79.0.2";
/// For one end of a measure.
const LIMIT: Duration = Duration::from_secs(45);
const MTU: u32 = 1500;
/// This program and those of the conditions, in the guest.
const FILES: &str = "/tmp/loss";

pub struct InGuest<'a> {
    setting: &'a Setting,
    stacks: Stacks,
    impairments: Impairments,
    condition: Option<(Bed, Condition)>,
    /// Whether ferroce has the guest's port 4791, and not rxe.
    ours: bool,
    runtime: PathBuf,
    port: u16,
}

impl<'a> InGuest<'a> {
    pub fn up(setting: &'a Setting) -> Result<Self> {
        let impairments = Impairments::compile(setting.logs.0.join("impair"), &setting.programs)?;
        let stacks = Stacks::up(&setting.dist, Some(MTU))?;
        let guest = stacks.guest();
        // One archive without symbols: the guest's emulated processor takes seconds for each file and tens of megabytes.
        let (folder, archive) = (impairments.folder(), setting.logs.0.join("guest.tar"));
        local(Command::new("strip").arg(&setting.me).arg("-o").arg(folder.join("xtask")))?;
        local(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(folder).arg("."))?;
        guest.push(&archive, "/tmp/loss.tar")?;
        guest.inside(&format!("mkdir {FILES} && tar -xf /tmp/loss.tar -C {FILES}"))?;
        guest.inside("ethtool -K eth0 tso off gso off gro off")?;
        guest.in_netns(&["ethtool", "-K", "peer0", "tso", "off", "gso", "off", "gro", "off"])?;
        let runtime = setting.runtime()?;
        let bed = Self { setting, stacks, impairments, condition: None, ours: false, runtime, port: 24_000 };
        let mut link = bed.on_machine(&[]);
        link.arg(setting.dist.bin("ferroce"));
        link.args(["link", "add", "bench0", "type", "rxe", "netdev", "peer0", "--no-persist"]);
        let ended = job::run(link, &setting.logs.path("guest link add"), LIMIT)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(bed)
    }

    /// Octets a second; the inner error is the reason for which a run gave none.
    pub fn measure(&mut self, cell: &Cell) -> Result<Result<f64, String>> {
        match cell.stack {
            Stack::Selective | Stack::GoBack => self.choose(true)?,
            Stack::Rxe | Stack::OursToRxe | Stack::RxeToOurs => self.choose(false)?,
            Stack::Tcp | Stack::Cubic => {}
        }
        self.impair(cell.bed, cell.condition)?;
        self.port = if self.port < 29_000 { self.port + 1 } else { 24_000 };
        if cell.bed == Bed::Pair { self.inside(cell) } else { self.across(cell) }
    }

    /// Gives the guest's port to ferroce or to rxe.
    fn choose(&mut self, ours: bool) -> Result<()> {
        if self.ours == ours {
            return Ok(());
        }
        let add = |name: &str, netdev: &str| {
            format!(
                "FERROCE_IDLE=3600 FERROCE_RUNTIME_DIR={ROOT}/run {ROOT}/bin/ferroce link add {name} type rxe netdev {netdev} --no-persist"
            )
        };
        let line = match ours {
            true => format!(
                "for name in rxa rxb rxe0; do rdma link del $name; done; rmmod rdma_rxe && {} && {}",
                add("fra", "va"),
                add("frb", "vb")
            ),
            false => {
                "kill $(pidof ferroced); while pidof ferroced; do sleep 0.2; done; modprobe rdma_rxe && \
                      rdma link add rxe0 type rxe netdev eth0 && rdma link add rxa type rxe netdev va && \
                      rdma link add rxb type rxe netdev vb"
                    .to_owned()
            }
        };
        self.stacks.guest().inside(&line)?;
        self.ours = ours;
        Ok(())
    }

    fn impair(&mut self, bed: Bed, condition: Condition) -> Result<()> {
        if self.condition == Some((bed, condition)) {
            return Ok(());
        }
        let attach = |netdev: &str, kind: &str, file: &str| {
            format!("ip link set dev {netdev} {kind} off; ip link set dev {netdev} {kind} obj {file} sec xdp")
        };
        let there = |server: bool| format!("{FILES}/{}", name(condition, server));
        let guest = self.stacks.guest();
        if bed == Bed::Pair {
            let lines = [attach("va", "xdp", &there(false)), attach("vb", "xdp", &there(true))];
            guest.inside(&lines.join(" && "))?;
        } else {
            guest.inside(&attach("eth0", "xdpgeneric", &there(true)))?;
            let file = self.impairments.file(condition, false);
            guest.in_netns(&["sh", "-c", &attach("peer0", "xdpgeneric", &file.display().to_string())])?;
        }
        self.condition = Some((bed, condition));
        Ok(())
    }

    /// The options of perftest at both ends.
    fn options(&self, cell: &Cell, device: &str) -> String {
        let (depth, timeout) = if cell.size < 1 << 20 { (16, 14) } else { (4, 17) };
        let (program, size, port) = (cell.operation.program(), cell.size, self.port);
        format!(
            "{program} -d {device} -x 1 -F -s {size} -D {GUEST_SECONDS} -t {depth} -u {timeout} -p {port}"
        )
    }

    fn stream(&self, cell: &Cell, program: &str, role: &str, address: &str) -> String {
        let (size, port) = (cell.size, self.port);
        format!("{program} bench-end tcp {size} 0 --seconds {GUEST_SECONDS} {role} {address}:{port}")
    }

    /// Both ends in the guest.
    fn inside(&self, cell: &Cell) -> Result<Result<f64, String>> {
        let program = format!("{FILES}/xtask");
        let ours = |server: bool| {
            let agreed = if cell.stack == Stack::Selective { "on" } else { "off" };
            let settings = format!("FERROCE_DATAPATH=udp FERROCE_SELECTIVE_REPEAT={agreed}");
            Stacks::front(&settings, "") + &self.options(cell, if server { "frb" } else { "fra" })
        };
        let (server, client) = match cell.stack {
            Stack::Tcp | Stack::Cubic => (
                self.stream(cell, &program, "--listen", PAIR_SERVER),
                self.stream(cell, &program, "--connect", PAIR_SERVER),
            ),
            Stack::Rxe => (self.options(cell, "rxb"), format!("{} {PAIR_SERVER}", self.options(cell, "rxa"))),
            _ => (ours(true), format!("{} {PAIR_SERVER}", ours(false))),
        };
        let line = format!(
            "timeout 35 {server} >/tmp/server.log 2>&1 & server=$!; {}; timeout 30 {client}; status=$?; \
             [ $status = 0 ] || kill $server; wait $server || cat /tmp/server.log; exit $status",
            self.wait()
        );
        let ended = self.stacks.run(&cell.name(), &line, LIMIT)?;
        Ok(cell.rate(&ended.output).filter(|_| ended.ok()).ok_or_else(|| ended.describe()))
    }

    /// A line of shell that waits until something listens at the port.
    fn wait(&self) -> String {
        let hex = format!("{:04X}", self.port);
        format!(
            "for i in $(seq 100); do grep -q ':{hex} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done"
        )
    }

    /// One end on this machine: the requester, or the sender of TCP, but for [`Stack::RxeToOurs`].
    fn across(&self, cell: &Cell) -> Result<Result<f64, String>> {
        let server_here = cell.stack == Stack::RxeToOurs;
        let address = if server_here { MACHINE } else { HOST };
        let end = |server: bool| -> Result<Job> {
            let (here, tcp) = (server == server_here, cell.stack.is_tcp());
            let role = if server { "--listen" } else { "--connect" };
            let program = if here { self.setting.me.display().to_string() } else { format!("{FILES}/xtask") };
            let line = match tcp {
                true => self.stream(cell, &program, role, address),
                false => {
                    let options = self.options(cell, if here { "bench0" } else { "rxe0" });
                    if server { options } else { format!("{options} {address}") }
                }
            };
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let mut command = match here {
                true => self.on_machine(&[]),
                false => self.stacks.guest().command(LIMIT, &words),
            };
            if here {
                if !tcp {
                    command.arg(self.setting.dist.bin("ferroce")).args(["run", "--"]);
                }
                command.args(words);
            }
            let role = if server { "server" } else { "client" };
            Job::start(command, &self.setting.logs.path(&format!("{} {role}", cell.name())), LIMIT)
        };
        let mut server = end(true)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        if server_here {
            while !self.listens()? && !server.ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        } else {
            self.stacks.guest().inside(&self.wait())?;
        }
        let client = end(false)?.wait()?;
        if !client.ok() {
            server.signal(Signal::SIGTERM);
        }
        let server = server.wait()?;
        let why = |client: &Ended| format!("client: {}\nserver: {}", client.describe(), server.describe());
        Ok(cell.rate(&client.output).filter(|_| client.ok() && server.ok()).ok_or_else(|| why(&client)))
    }

    /// Whether something on this machine listens at the port.
    fn listens(&self) -> Result<bool> {
        let text =
            self.stacks.guest().in_netns(&["cat", "/proc/net/tcp", "/proc/net/tcp6"]).context("netns")?;
        Ok(has_listener(&text, self.port))
    }

    /// The front of a command at this machine's end of the guest's wire.
    fn on_machine(&self, words: &[&str]) -> Command {
        let mut command = self.stacks.guest().netns_command();
        command.args(["env", &format!("FERROCE_RUNTIME_DIR={}", self.runtime.display())]);
        if let Some(dirs) = self.setting.programs.libraries() {
            command.arg(format!("LD_LIBRARY_PATH={}", dirs));
        }
        command.args(words);
        command
    }
}

/// Runs a command of this machine.
fn local(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| job::line(command))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", job::line(command), said.trim());
    Ok(())
}
