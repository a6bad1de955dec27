//! Both ends on this machine, in the two namespaces of `tests/guest/lossy-veth.sh`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::grid::{Cell, Condition, SECONDS, Stack};
use super::programs::Impairments;
use super::setting::Setting;
use crate::pairs::paths::Lossy;
use ferroce_harness::exchange::has_listener;
use ferroce_harness::job::{self, Job};

const SERVER: &str = "10.66.0.2";
/// For one end of a measure.
const LIMIT: Duration = Duration::from_secs(30);

pub struct Veth<'a> {
    setting: &'a Setting,
    lossy: Lossy,
    impairments: Impairments,
    condition: Option<Condition>,
    runtime: PathBuf,
    port: u16,
}

impl<'a> Veth<'a> {
    pub fn new(setting: &'a Setting) -> Result<Self> {
        let impairments = Impairments::compile(setting.logs.0.join("impair"), &setting.programs)?;
        let runtime = setting.runtime()?;
        let lossy = Lossy::up(0)?;
        let bed = Self { setting, lossy, impairments, condition: None, runtime, port: 24_000 };
        for server in [false, true] {
            let (end, netdev) = (u32::from(server) + 1, netdev(server));
            // A returned packet has its checksum only if the sender's stack wrote it.
            bed.run(server, &format!("ethtool -K {netdev} tx off"))?;
            bed.run(server, &format!("ip link set {netdev} address 02:00:00:00:00:0{end}"))?;
        }
        for server in [false, true] {
            bed.ferroce(server, &format!("link add bench0 type rxe netdev {} --no-persist", netdev(server)))?;
        }
        Ok(bed)
    }

    /// Runs a line at one end, word by word.
    fn run(&self, server: bool, line: &str) -> Result<()> {
        ferroce_harness::iwarp::net::output(self.lossy.front(server), line).map(drop)
    }

    fn ferroce(&self, server: bool, line: &str) -> Result<String> {
        let mut command = self.lossy.front(server);
        command.env("FERROCE_RUNTIME_DIR", &self.runtime);
        command.arg(self.setting.dist.bin("ferroce")).args(line.split(' '));
        let log = self.setting.logs.path(&format!("veth {server} {line}"));
        let ended = job::run(command, &log, LIMIT)?;
        ensure!(ended.ok(), "ferroce {line}: {}", ended.describe());
        Ok(ended.output)
    }

    fn impair(&mut self, condition: Condition) -> Result<()> {
        if self.condition == Some(condition) {
            return Ok(());
        }
        self.condition = Some(condition);
        for server in [false, true] {
            let (netdev, file) = (netdev(server), self.impairments.file(condition, server));
            self.run(server, &format!("ip link set dev {netdev} xdp off"))?;
            self.run(server, &format!("ip link set dev {netdev} xdp obj {} sec xdp", file.display()))?;
        }
        Ok(())
    }

    /// Octets a second; the inner error is the reason for which a run gave none.
    pub fn measure(&mut self, cell: &Cell) -> Result<Result<f64, String>> {
        self.impair(cell.condition)?;
        self.port = if self.port < 29_000 { self.port + 1 } else { 24_000 };
        let end = |server: bool| {
            let role = if server { "server" } else { "client" };
            let log = self.setting.logs.path(&format!("{} {role}", cell.name()));
            Job::start(self.command(cell, server), &log, LIMIT)
        };
        let mut server = end(true)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.listens(cell.stack)? && !server.ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = end(false)?.wait()?;
        if !client.ok() {
            // A server without a client may wait for ever.
            server.signal(Signal::SIGTERM);
        }
        let server = server.wait()?;
        Ok(cell
            .rate(&client.output)
            .filter(|_| client.ok() && server.ok())
            .ok_or_else(|| format!("client: {}\nserver: {}", client.describe(), server.describe())))
    }

    /// Whether the server listens, by librdmacm or by TCP.
    fn listens(&self, stack: Stack) -> Result<bool> {
        if stack.is_tcp() {
            let output = self.lossy.front(true).args(["cat", "/proc/net/tcp"]).output()?;
            return Ok(has_listener(&String::from_utf8_lossy(&output.stdout), self.port));
        }
        let found = format!(":{} ", self.port);
        Ok(self.ferroce(true, "resource show cm_id")?.lines().any(|line| line.contains(&found)))
    }

    fn command(&self, cell: &Cell, server: bool) -> Command {
        let mut command = self.lossy.front(server);
        let (size, port) = (cell.size.to_string(), self.port.to_string());
        if cell.stack.is_tcp() {
            let role = if server { "--listen" } else { "--connect" };
            let seconds = SECONDS.to_string();
            command.arg(&self.setting.me).args(["bench-end", "tcp", &size, "0", "--seconds", &seconds]);
            command.args((cell.stack == Stack::Cubic).then_some("--congestion=cubic"));
            command.args([role, &format!("{SERVER}:{port}")]);
            return command;
        }
        let agreed = if cell.stack == Stack::Selective { "cm" } else { "off" };
        command.env("FERROCE_RUNTIME_DIR", &self.runtime).env("FERROCE_SELECTIVE_REPEAT", agreed);
        if let Some(dirs) = self.setting.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        let program = cell.operation.program();
        let file = self.setting.programs.find(program).unwrap_or_else(|| PathBuf::from(program));
        command.arg(self.setting.dist.bin("ferroce")).args(["run", "--"]).arg(file);
        command.args(["-R", "-d", "bench0", "-F", "-s", &size, "-D", &SECONDS.to_string(), "-p", &port]);
        command.args((!server).then_some(SERVER));
        command
    }
}

fn netdev(server: bool) -> &'static str {
    if server { "v1" } else { "v0" }
}
