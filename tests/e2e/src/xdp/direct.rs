//! Ports at the interface itself, which programs with CAP_NET_RAW get: beside pairs of others, and after the end of their program.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{NONE, Wire};
use ferroce_harness::report::Checks;

const BOTH: [bool; 2] = [true; 2];

impl Wire<'_> {
    /// Programs with the capability, against such and against others.
    pub(super) fn direct(&self, checks: &mut Checks) -> Result<()> {
        let many = if self.bed.all { 10_000 } else { 1000 };
        for (client, server) in super::CLIENT.iter().zip(super::SERVER) {
            let (here, there) = (self.gid(false, client, "v2")?, self.gid(true, server, "v2")?);
            ensure!(here == there, "{client} has index {here}, {server} index {there}");
            for raw in [BOTH, [true, false], [false, true]] {
                let words = format!("-g {here} -n {many} -s 4096 -c");
                self.exchange_as(checks, raw, "ibv_rc_pingpong", &words, many)?;
            }
            let words = format!("-g {here} -n {} -s 1024 -c", many * 20);
            self.exchange_as(checks, BOTH, "ibv_ud_pingpong", &words, many)?;
        }
        let index = self.gid(false, super::CLIENT[0], "v2")?;
        for (program, words, least) in [
            ("ib_write_bw", "-s 65536 -n 500", 500),
            ("ib_read_bw", "-s 65536 -n 500", 200),
            ("ib_send_bw", "-s 2000 -n 2000 -q 4", 100),
        ] {
            self.exchange_as(checks, BOTH, program, &format!("-F -x {index} {words}"), least)?;
        }
        checks.check("a direct port beside a pair, by link show and doctor", self.shown([true, false]));
        checks.check("pairs alone, by link show and doctor", self.shown(NONE));
        checks.check("a direct port after that of a program that was killed", self.program_dies());
        checks.check("no direct port with xdp-ports pairs, nor by a setting of nobody's", self.setting());
        checks.check("a pair of veth interfaces ends beside direct ports", self.pairs_end());
        Ok(())
    }

    /// The ports of an end: direct ones, and those at pairs.
    fn ports(&self, server: bool) -> Result<[u64; 2]> {
        let text = self.ferroce(server, "-j -d link show fx0/1")?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let ports = &rows[0]["xdp_ports"];
        let [direct, pairs] = ["direct", "pairs"].map(|key| ports[key].as_u64());
        Ok([direct.with_context(|| text.clone())?, pairs.with_context(|| text.clone())?])
    }

    /// Waits until an end has these ports.
    fn has_ports(&self, server: bool, want: [u64; 2]) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let found = self.ports(server)?;
            if found == want {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "ports {found:?} in place of {want:?}, server {server}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// While a program at each end has a port, the tools tell of which kind it is.
    fn shown(&self, raw: [bool; 2]) -> Result<()> {
        let ports = |raw: bool| if raw { [1, 0] } else { [0, 1] };
        self.under_way("xdp direct shown", raw, || {
            for (server, raw) in [false, true].into_iter().zip(raw) {
                self.has_ports(server, ports(raw))?;
                let [direct, pairs] = ports(raw);
                let said = self.ferroce_any(server, "doctor")?;
                let line = said.lines().find(|line| line.contains("ports of programs:")).unwrap_or_default();
                let words = [format!("direct {direct}"), format!("pairs {pairs}")];
                ensure!(words.iter().all(|word| line.contains(word)), "{words:?} in {said}");
            }
            Ok(())
        })?;
        self.has_ports(false, [0, 0])?;
        self.has_ports(true, [0, 0])
    }

    /// The queue of a program that died is the next one's.
    fn program_dies(&self) -> Result<()> {
        let killed = self.under_way("xdp direct killed", BOTH, || {
            self.has_ports(false, [1, 0])?;
            let pid = self.direct_pid()?;
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).context("kill")
        });
        ensure!(killed.is_err(), "the client outlived SIGKILL");
        self.has_ports(false, [0, 0])?;
        self.shown(BOTH)
    }

    /// The process with the direct port at the client's end.
    fn direct_pid(&self) -> Result<nix::unistd::Pid> {
        let text = self.ferroce(false, "-j -d link show fx0/1")?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let pid = rows[0]["xdp_ports"]["pid"].as_u64().with_context(|| text.clone())?;
        Ok(nix::unistd::Pid::from_raw(i32::try_from(pid)?))
    }

    fn setting(&self) -> Result<()> {
        let refused = self.ferroce(false, "link set fx0 xdp-ports direct");
        let said = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(said.contains("needs a ferroced of root"), "{said}");
        self.ferroce(false, "link set fx0 xdp-ports pairs --no-persist")?;
        self.under_way("xdp pairs by setting", BOTH, || {
            self.has_ports(false, [0, 1])?;
            self.has_ports(true, [1, 0])
        })?;
        self.ferroce(false, "link set fx0 xdp-ports auto --no-persist").map(drop)
    }
}
