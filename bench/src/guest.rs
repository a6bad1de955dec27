//! The guest with a distribution in it, and one of two stacks at work: the kernel's rxe, or ferroce.

use std::time::Duration;

use anyhow::Result;

use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::guest::{Guest, Image};
use ferroce_harness::job::{self, Ended};
use ferroce_harness::tree;

/// The guest's own address, on eth0: rxe0's as well.
pub const HOST: &str = "10.77.0.2";
/// Where ferroce lies in the guest.
pub const ROOT: &str = "/tmp/ferroce";

/// A running guest.
pub struct Stacks {
    guest: Guest,
    logs: Logs,
}

impl Stacks {
    /// Boots it, and copies the distribution into it. `pair`: also rxa and rxb on a wire of that MTU.
    pub fn up(dist: &Dist, pair: Option<u32>) -> Result<Self> {
        let logs = Logs(tree::target().join("xtask").join("bench"));
        let guest = Guest::up(Image::find()?, pair)?;
        guest.push_dist(dist, ROOT)?;
        guest.inside(&format!("mkdir -p {ROOT}/run && chmod 700 {ROOT}/run"))?;
        Ok(Self { guest, logs })
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Sets the MTU of eth0.
    pub fn mtu(&self, mtu: u32) -> Result<()> {
        self.guest.mtu(mtu, false)
    }

    /// Only one stack can have UDP port 4791, so the other one is taken away. The broker exits by itself after a second
    /// without programs.
    pub fn choose(&self, ours: bool) -> Result<()> {
        let line = match ours {
            true => "rdma link del rxe0 2>/dev/null; rmmod rdma_rxe 2>/dev/null; true".to_owned(),
            false => format!(
                "while {ROOT}/bin/ferroce status >/dev/null 2>&1; do sleep 2; done; modprobe rdma_rxe; \
                 [ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0"
            ),
        };
        self.guest.inside(&line).map(drop)
    }

    /// The front of a command on ferroce; `settings` are more variables.
    pub fn front(settings: &str, options: &str) -> String {
        format!(
            "env FERROCE_IDLE=1 FERROCE_RUNTIME_DIR={ROOT}/run {settings} {ROOT}/bin/ferroce run {options} -- "
        )
    }

    /// Runs a line of shell in the guest.
    pub fn run(&self, name: &str, line: &str, limit: Duration) -> Result<Ended> {
        let words = ["bash", "-c", line].map(str::to_owned);
        job::run(self.guest.command(limit, &words), &self.logs.path(name), limit)
    }
}
