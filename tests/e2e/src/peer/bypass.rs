//! The kernel's rxe with ferroce's end past the kernel: on AF_XDP at the guest's tap, and on a device of DPDK.

use anyhow::{Context, Result};

use super::matrix::{self, Case};
use super::{Interop, Side};
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::{self, Dist};
use ferroce_harness::report::Checks;

/// The interface that a link on a device of DPDK has in the kernel.
const DPDK_NETDEV: &str = "dpdk0";
/// IPv4 and IPv6 of our end, as the guest's script gives them to the tap.
const ADDRESSES: [&str; 2] = ["10.77.0.1/24", "fd77::1/64 nodad"];

/// The stage.
pub fn check(checks: &mut Checks, dist: &Dist, programs: &Programs, all: bool) -> Result<()> {
    let Some(interop) = Interop::start(checks, dist, programs, false)? else { return Ok(()) };
    interop.bypass(checks, all)?;
    interop.after(checks)
}

impl Interop<'_> {
    /// On each of the two ways: the cases of the quick part for IPv4, or with `all` those of both families in full.
    fn bypass(&self, checks: &mut Checks, all: bool) -> Result<()> {
        self.guest.mtu(1500, false)?;
        self.ferroce("link add fx0 type rxe netdev peer0 datapath xdp --no-persist")?;
        let shown = self.ferroce("-d link show fx0/1")?;
        if shown.contains("xdp (") {
            self.exchanges(checks, all, "AF_XDP", "fx0/1", "xdp_rcvd_pkts")?;
        } else {
            checks.skip("the kernel's rxe over AF_XDP", &format!("this kernel has none: {}", shown.trim()));
        }
        self.ferroce("link delete fx0")?;
        if !self.dist.lib().join(dist::DPDK).exists() {
            let reason = "the distribution was built without DPDK's headers (Debian: libdpdk-dev)";
            checks.skip("the kernel's rxe over DPDK", reason);
            return Ok(());
        }
        self.move_addresses()?;
        self.netdev.set(DPDK_NETDEV);
        self.exchanges(checks, all, "DPDK", "d0/1", "rcvd_pkts")?;
        self.ferroce("link delete d0").map(drop)
    }

    /// The tap belongs to DPDK now: its addresses move to the link's own interface, and the kernel takes no packet of the tap.
    ///
    /// The guest has to complete its checksums: a packet socket, which the driver `net_af_packet` is, receives those of TCP incomplete otherwise.
    fn move_addresses(&self) -> Result<()> {
        self.guest.inside("ethtool -K eth0 tx off")?;
        self.guest.in_netns(&["ip", "addr", "flush", "dev", "peer0"])?;
        let quiet = "echo 1 >/proc/sys/net/ipv6/conf/peer0/disable_ipv6; echo 1 >/proc/sys/net/ipv4/conf/peer0/rp_filter";
        self.guest.in_netns(&["sh", "-c", quiet])?;
        self.ferroce("link add d0 type rxe netdev dpdk:net_af_packet0,iface=peer0 --no-persist")?;
        for address in ADDRESSES {
            let words = format!("ip addr add {address} dev {DPDK_NETDEV}");
            self.guest.in_netns(&words.split(' ').collect::<Vec<_>>())?;
        }
        // The index of a GID is that of the tap: IPv4's is 1, IPv6's is 2.
        ferroce_harness::netns::until("the GIDs of the addresses", || {
            self.ferroce("gid show d0").is_ok_and(|text| text.matches("index").count() >= 3)
        })
    }

    /// The exchanges in both directions, each with `counter` of our link: packets that came by this way.
    fn exchanges(&self, checks: &mut Checks, all: bool, way: &str, link: &str, counter: &str) -> Result<()> {
        self.errors_before.set(None);
        for (server, client) in [(Side::Kernel, Side::Ours), (Side::Ours, Side::Kernel)] {
            for case in cases(all) {
                let before = self.counted(link, counter)?;
                checks.twice(&self.repeats, |checks| self.one(checks, &case, server, client))?;
                let more = self.counted(link, counter)? - before;
                let name = format!("{} server: {} over {way}", server.name(), case.name());
                if more == 0 && gets_nothing(&case.name(), client) {
                    checks.pass();
                    continue;
                }
                let reason = || Err(format!("{counter} of {link} moved by {more}"));
                checks.check(&name, if more > 0 { Ok(()) } else { reason() });
            }
        }
        Ok(())
    }

    fn counted(&self, link: &str, counter: &str) -> Result<u64> {
        let text = self.ferroce(&format!("-j -d statistic show link {link}"))?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        rows[0][counter].as_u64().with_context(|| format!("no {counter} in {text}"))
    }

    /// The output of a command of the program `ferroce` at our end.
    fn ferroce(&self, line: &str) -> Result<String> {
        let program = self.dist.bin("ferroce");
        let program = program.to_str().context("a path that is not UTF-8")?;
        let words: Vec<&str> = [program].into_iter().chain(line.split(' ')).collect();
        self.guest.in_netns(&words)
    }
}

/// Whether our end gets no packet: as the client of UC and UD, of which nothing comes back, and of `retry_exc`, where nothing does on
/// purpose. At both ends a misaligned atomic is refused when it is posted.
fn gets_nothing(case: &str, client: Side) -> bool {
    let probes: &[&str] = match client {
        Side::Ours => &["bad_atomic", "retry_exc", "uc_send", "uc_write", "ud_send"],
        _ => &["bad_atomic"],
    };
    probes.iter().any(|probe| case.starts_with(&format!("vprobe {probe} ")))
}

/// All of the matrix, or one program of each transport and a probe of each operation.
fn cases(all: bool) -> Vec<Case> {
    const SAMPLE: [&str; 6] = [
        "ibv_rc_pingpong -n 50 -s 65536 -c -e",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong",
        "ib_write_lat -n",
        "vprobe read",
        "vprobe atomic",
    ];
    let full = matrix::cases(all, false, 1024).into_iter();
    if all {
        return full.chain(matrix::cases(all, true, 1024)).collect();
    }
    full.filter(|case| SAMPLE.iter().any(|name| case.name().starts_with(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_all_transports_and_operations() {
        let names: Vec<String> = cases(false).iter().map(Case::name).collect();
        for wanted in ["ibv_rc", "ibv_uc", "ibv_ud", "ib_write_lat", "vprobe read", "vprobe atomic"] {
            assert!(names.iter().any(|name| name.starts_with(wanted)), "{wanted}: {names:?}");
        }
        assert!(names.len() < 12, "{names:?}");
        assert!(!names.iter().any(|name| gets_nothing(name, Side::Ours)), "{names:?}");
        assert_eq!(cases(true).iter().filter(|case| gets_nothing(&case.name(), Side::Ours)).count(), 10);
        assert!(cases(true).len() > 3 * names.len());
    }
}
