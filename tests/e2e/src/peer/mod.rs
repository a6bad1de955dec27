//! Interop with the Linux kernel's own rdma_rxe, which runs in a QEMU guest.
//!
//! Our programs run on the host inside the guest's network namespace; the wire between them is a tap device.
//! The guest is emulated, so counts are small and time limits long.

pub mod bypass;
mod connections;
mod matrix;
mod multicast;
mod session;
pub mod siw;
mod uppers;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::geteuid;

use crate::probe;
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::{Exchange, Logs, has_listener};
use ferroce_harness::guest::{Errors, Guest, Image};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;
use matrix::{Case, Tool};

/// Which implementation an end of an exchange is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// ferroce, on the host's end of the wire.
    Ours,
    /// The kernel's rxe at the guest's end of the wire.
    Kernel,
    /// Two more devices of the guest, joined by a veth pair: to try this harness without ferroce.
    GuestA,
    /// The other one.
    GuestB,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ferroce",
            Self::Kernel => "rxe",
            Self::GuestA => "rxa",
            Self::GuestB => "rxb",
        }
    }

    /// The device's name; ours is the first (and only) one that the program sees.
    fn device(self) -> Option<&'static str> {
        match self {
            Self::Ours => None,
            Self::Kernel => Some("rxe0"),
            Self::GuestA => Some("rxa"),
            Self::GuestB => Some("rxb"),
        }
    }

    /// Where the TCP exchange that precedes the RDMA one goes; which GID is used is another question.
    fn address(self) -> &'static str {
        match self {
            Self::Ours => "10.77.0.1",
            Self::Kernel => "10.77.0.2",
            Self::GuestA => "10.79.0.1",
            Self::GuestB => "10.79.0.2",
        }
    }
}

/// The wire's MTUs and the path MTU that each gives.
const MTUS: [(u32, u32); 2] = [(1500, 1024), (4200, 4096)];

struct Interop<'a> {
    guest: Guest,
    dist: &'a Dist,
    programs: &'a Programs,
    vprobe: PathBuf,
    logs: Logs,
    next_port: Cell<u16>,
    /// Exchanges that may fail once, in a run: the guest is emulated, and rxe loses something now and then.
    repeats: Cell<u32>,
    /// The guest's counters behind the last exchange of [`Self::one`].
    errors_before: Cell<Option<Errors>>,
    /// The interface whose device our programs see.
    netdev: Cell<&'static str>,
}

/// See [`Interop::repeats`]. More of them are no accident.
const REPEATS: u32 = 3;

/// The stage. `harness` tries the harness itself, kernel against kernel.
pub fn check(checks: &mut Checks, dist: &Dist, programs: &Programs, all: bool, harness: bool) -> Result<()> {
    let Some(interop) = Interop::start(checks, dist, programs, harness)? else { return Ok(()) };
    let pairs = match harness {
        true => [(Side::GuestB, Side::GuestA), (Side::GuestA, Side::GuestB)],
        false => [(Side::Kernel, Side::Ours), (Side::Ours, Side::Kernel)],
    };
    for (netdev_mtu, path_mtu) in MTUS {
        interop.guest.mtu(netdev_mtu, harness)?;
        for ipv6 in [false, true] {
            for (server, client) in pairs {
                let forth = (server, client) == pairs[0];
                for case in matrix::cases(all, ipv6, path_mtu) {
                    if !all && !case.is_quick(forth) {
                        continue;
                    }
                    checks.twice(&interop.repeats, |checks| interop.one(checks, &case, server, client))?;
                }
            }
        }
    }
    if !harness {
        checks.check("an administrator's session inside the guest", interop.session());
        interop.multicast(checks)?;
        interop.connections(checks, all)?;
        interop.uppers(checks)?;
    }
    interop.after(checks)
}

impl<'a> Interop<'a> {
    /// Boots the guest; `None`, and a skipped check, where that cannot be.
    fn start(
        checks: &mut Checks,
        dist: &'a Dist,
        programs: &'a Programs,
        harness: bool,
    ) -> Result<Option<Self>> {
        let Some(image) = Image::find_or_skip(checks, "peer") else { return Ok(None) };
        if !geteuid().is_root() {
            checks.skip("peer", "the guest's tap device and network namespace need root");
            return Ok(None);
        }
        let vprobe = match harness {
            true => PathBuf::new(),
            false => probe::build(dist, programs)?,
        };
        let guest = Guest::up(image, if harness { Some(1500) } else { None })?;
        Ok(Some(Self {
            guest,
            dist,
            programs,
            vprobe,
            logs: Logs(tree::target().join("xtask").join("peer")),
            next_port: Cell::new(21_000),
            repeats: Cell::new(REPEATS),
            errors_before: Cell::new(None),
            netdev: Cell::new("peer0"),
        }))
    }

    fn one(&self, checks: &mut Checks, case: &Case, server: Side, client: Side) -> Result<()> {
        let port = self.next_port.replace(self.next_port.get() + 1);
        let before = self.errors_before.take().map_or_else(|| self.guest.errors(), Ok)?;
        let exchange = Exchange {
            name: format!("{} server, {} client: {}", server.name(), client.name(), case.name()),
            server: self.end(case, server, port, None),
            client: self.end(case, client, port, Some(server.address())),
            ready: Box::new(move || self.listens(server, port)),
            limit: case.limit,
        };
        let good = exchange.run(&self.logs, checks)?.is_some();
        let after = self.guest.errors()?;
        // An exchange that ended badly may leave errors that are counted later.
        self.errors_before.set((good && !case.error).then_some(after));
        if good && !case.error && after.retry_exceeded > before.retry_exceeded {
            checks.fail(&case.name(), "the guest's retry_exceeded_err moved although both ends were content");
        }
        Ok(())
    }

    fn listens(&self, side: Side, port: u16) -> bool {
        let text = match side {
            Side::Ours => self.guest.in_netns(&["cat", "/proc/net/tcp", "/proc/net/tcp6"]),
            _ => self.guest.inside("cat /proc/net/tcp /proc/net/tcp6"),
        };
        has_listener(&text.unwrap_or_default(), port)
    }

    fn end(&self, case: &Case, side: Side, port: u16, server: Option<&str>) -> Command {
        let words = case.words(side.device(), port, server);
        let ours = (case.tool == Tool::Vprobe).then_some(&*self.vprobe);
        self.command(side, &words, ours, case.limit)
    }

    /// A program at one end; `ours` is its file on the host if it is none of Debian's.
    fn command(&self, side: Side, words: &[String], ours: Option<&Path>, limit: Duration) -> Command {
        match side {
            Side::Ours => {
                let debians = || self.programs.find(&words[0]).unwrap_or_else(|| PathBuf::from(&words[0]));
                let program = ours.map_or_else(debians, Path::to_owned);
                let mut command = self.guest.netns_command();
                command.arg(self.dist.bin("ferroce")).args(["run", "--netdev", self.netdev.get(), "--"]);
                command.arg(program).args(&words[1..]);
                if let Some(dirs) = self.programs.libraries() {
                    command.env("LD_LIBRARY_PATH", dirs);
                }
                command
            }
            Side::Kernel | Side::GuestA | Side::GuestB => self.guest.command(limit, words),
        }
    }

    /// Checks the guest's kernel log at the end.
    fn after(&self, checks: &mut Checks) -> Result<()> {
        let log = self.guest.inside("dmesg")?;
        let bad: Vec<&str> = log.lines().filter(|l| is_trouble(l)).collect();
        if bad.is_empty() {
            checks.pass();
        } else {
            checks.fail("the guest's kernel log", &bad.join("\n"));
        }
        checks.note(format!("guest's counters: {}", self.guest.counters()?));
        checks.note(self.guest.inside("uname -r")?.trim().to_owned());
        Ok(())
    }
}

/// Lines of a kernel log that must not be there: the kernel's own faults, and frames of ours that it found bad.
fn is_trouble(line: &str) -> bool {
    ["WARNING", "WARN_ON", "BUG", "Oops", "Call Trace", "refcount_t", "general protection", "bad ICRC"]
        .iter()
        .any(|bad| line.contains(bad))
}

/// A time limit for one emulated end.
const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
