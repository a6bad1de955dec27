//! Links on devices of DPDK between two network namespaces: the driver `net_af_packet` on the ends of a veth, `ferroced --system` at each
//! end, and programs of a user without privileges.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::copy::{Broker, PublicCopy};
use super::pyverbs::{self, Elsewhere, NOBODY, has_nobody};
use super::{Bed, gid_index};
use ferroce_harness::dist;
use ferroce_harness::exchange::{Exchange, Meeting};
use ferroce_harness::job::{self, Ended};
use ferroce_harness::netns;
use ferroce_harness::place::Place;
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(90);
const SERVER: &str = "10.84.0.2";
const CLIENT: &str = "10.84.0.1";
/// Messages of an exchange; the kernel may see far fewer packets.
const MESSAGES: u64 = 1000;
const LOOPBACK: &str = "lo";

/// All of it.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if !has_nobody() || !nix::unistd::geteuid().is_root() {
        checks.skip("dpdk", "needs root: packet sockets, taps, and a process that may become another user");
        return Ok(());
    }
    netns::end_broker();
    let copy = PublicCopy::new(bed, "ferroce-dpdk")?;
    let place = match Place::cut(&bed.programs) {
        Ok(place) => place,
        Err(why) => {
            checks.skip("dpdk", &format!("no second namespace behind a veth here: {why:#}"));
            return Ok(());
        }
    };
    let mut ends = Ends { bed, copy: &copy, place, brokers: [None, None] };
    let library = ends.copy.lib().join(dist::DPDK);
    let has_library = library.exists();
    std::fs::remove_file(&library).ok();
    ends.start(false)?;
    checks.check("without the library a sentence says what to install", ends.no_library());
    ends.stop(false);
    if !has_library {
        checks.skip("dpdk", "the distribution was built without DPDK's headers (Debian: libdpdk-dev)");
        return Ok(());
    }
    std::fs::copy(bed.dist.lib().join(dist::DPDK), &library)?;
    for server in [true, false] {
        ends.make_quiet(server)?;
        ends.start(server)?;
        ends.ferroce(server, &format!("link add d0 type rxe netdev {}", ends.devargs(server)))?;
        ends.address(server)?;
    }
    checks.check("the link is on the tap", ends.shown());
    checks.check("refusals say why", ends.refusals());
    ends.exchanges("v2", checks)?;
    ends.perftest(checks)?;
    if bed.all {
        ends.pyverbs(checks)?;
    }
    for server in [true, false] {
        ends.ferroce(server, "link set d0 roce-mode both")?;
        ends.ferroce(server, "link set d0 cm-mode v1")?;
    }
    ends.exchanges("v1", checks)?;
    checks.check("the tap keeps its addresses when the broker dies", ends.dies());
    ends.exchanges("v2", checks)?;
    checks.check("without the link there is no tap, and the device is free", ends.deleted());
    Ok(())
}

struct Ends<'a> {
    bed: &'a Bed,
    copy: &'a PublicCopy<'a>,
    place: Place,
    /// Of the client and of the server.
    brokers: [Option<Broker>; 2],
}

impl Ends<'_> {
    fn netdev(&self, server: bool) -> &'static str {
        self.place.netdev(server).unwrap_or("lo")
    }

    fn devargs(&self, server: bool) -> String {
        format!("dpdk:net_af_packet0,iface={}", self.netdev(server))
    }

    fn runtime(&self, server: bool) -> Result<PathBuf> {
        self.copy.runtime(if server { "run-server" } else { "run-client" }, 0)
    }

    /// Runs a command of root's at one of the ends.
    fn run(&self, server: bool, program: &str, words: &str) -> Result<Ended> {
        let mut command = self.place.command(server);
        command
            .arg(self.copy.find(program)?)
            .args(words.split_whitespace())
            .env("FERROCE_RUNTIME_DIR", self.runtime(server)?);
        command.env("FERROCE_BROKER", "none");
        job::run(command, &self.bed.logs.path(&format!("dpdk {server} {program} {words}")), LIMIT)
    }

    fn good(&self, server: bool, program: &str, words: &str) -> Result<String> {
        let ended = self.run(server, program, words)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    fn ferroce(&self, server: bool, words: &str) -> Result<String> {
        self.good(server, "ferroce", words)
    }

    /// The kernel does not use the end of the veth itself: its addresses move to the tap.
    fn make_quiet(&self, server: bool) -> Result<()> {
        let netdev = self.netdev(server);
        self.good(server, "ip", &format!("addr flush dev {netdev}"))?;
        for setting in [format!("ipv6/conf/{netdev}/disable_ipv6"), format!("ipv4/conf/{netdev}/rp_filter")] {
            // /proc/sys/net shows the namespace of the process that opens it.
            self.good(server, "sh", &format!("-c echo${{IFS}}1>/proc/sys/net/{setting}"))?;
        }
        Ok(())
    }

    fn start(&mut self, server: bool) -> Result<()> {
        let log = self.bed.logs.path(&format!("dpdk {server} ferroced"));
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = self.place.command(server);
        command.arg(self.copy.bin("ferroced")).args(["--system", "--mode", "0666"]);
        command.env("FERROCE_RUNTIME_DIR", self.runtime(server)?).env_remove("FERROCE_DPDK_LIB");
        let broker = Broker::start(command, log, || Ok(self.run(server, "ferroce", "status")?.output))?;
        if let Some(place) = self.brokers.get_mut(usize::from(server)) {
            *place = Some(broker);
        }
        Ok(())
    }

    /// By SIGKILL.
    fn stop(&mut self, server: bool) {
        if let Some(place) = self.brokers.get_mut(usize::from(server)) {
            *place = None;
        }
    }

    fn address(&self, server: bool) -> Result<()> {
        let address = if server { SERVER } else { CLIENT };
        self.good(server, "ip", &format!("addr add {address}/24 dev dpdk0"))?;
        self.gid(server, "v2").map(drop)
    }

    /// The index of the end's address in the table of GIDs.
    fn gid(&self, server: bool, version: &str) -> Result<u32> {
        let address = if server { SERVER } else { CLIENT };
        let mut index = None;
        netns::until("the address has a GID", || {
            let text = self.ferroce(server, "gid show d0").unwrap_or_default();
            index = gid_index(&text, address, version);
            index.is_some()
        })?;
        index.context("no index")
    }

    /// A program of nobody's at one of the ends.
    fn nobody(&self, server: bool, program: &str, words: &str) -> Result<Command> {
        let mut command = self.copy.as_user(self.place.command(server), NOBODY, &[], program)?;
        command.args(words.split_whitespace());
        command.env("FERROCE_RUNTIME_DIR", self.copy.root.join("run-nobody"));
        Ok(command)
    }

    /// Packets that the kernel received by the tap of the client's end.
    fn received_by_kernel(&self) -> Result<u64> {
        self.received_by("dpdk0")
    }

    fn received_by(&self, netdev: &str) -> Result<u64> {
        let text = self.good(false, "ip", &format!("-s -j link show dev {netdev}"))?;
        let rows: serde_json::Value = serde_json::from_str(&text)?;
        rows.pointer("/0/stats64/rx/packets")
            .and_then(serde_json::Value::as_u64)
            .context("no count of packets")
    }

    fn exchanges(&self, version: &str, checks: &mut Checks) -> Result<()> {
        let (there, here) = (self.gid(true, version)?, self.gid(false, version)?);
        for (program, words) in [
            ("ibv_rc_pingpong", format!("-n {MESSAGES} -c")),
            ("ibv_rc_pingpong", format!("-n {} -c -e -s 100000", MESSAGES / 10)),
            ("ibv_uc_pingpong", format!("-n {} -c -e -s 1024", MESSAGES / 5)),
            ("ibv_ud_pingpong", format!("-n {} -c -s 1024", MESSAGES / 5)),
        ] {
            let port = self.bed.port();
            let before = self.received_by_kernel()?;
            let exchange = Exchange {
                name: format!("{program} {words} over DPDK, {version}"),
                server: self.nobody(true, program, &format!("-d d0 -g {there} -p {port} {words}"))?,
                client: self.nobody(
                    false,
                    program,
                    &format!("-d d0 -g {here} -p {port} {words} {SERVER}"),
                )?,
                ready: Box::new(self.place.listener(port)),
                limit: LIMIT,
            };
            exchange.run(&self.bed.logs, checks)?;
            let kernel = self.received_by_kernel()? - before;
            checks.check(
                &format!("{program} {words}, {version}: packets do not pass through the kernel"),
                if kernel < MESSAGES / 10 { Ok(()) } else { Err(format!("{kernel} packets of the tap")) },
            );
        }
        let port = self.bed.port();
        let words = format!("-C 20 -S 2000 -V -a {SERVER} -p {port}");
        let meeting = Meeting {
            name: format!("rping over DPDK, {version}"),
            server: self.nobody(true, "rping", &format!("-s {words}"))?,
            client: self.nobody(false, "rping", &format!("-c {words}"))?,
            patience: None,
            judge: &|_, _| Ok(()),
            endless: false,
            limit: LIMIT,
        };
        meeting.run(&self.bed.logs, checks)?;
        match self.bed.programs.find("ping") {
            Some(_) => {
                let pinged = self.good(false, "ping", &format!("-c 3 -W 5 {SERVER}"));
                let pinged = pinged.and_then(|text| {
                    ensure!(text.contains("3 received") && !text.contains("DUP"), "{text}");
                    Ok(())
                });
                checks.check("ping by the tap", pinged);
            }
            None => checks.skip("ping by the tap", "there is no ping (Debian: iputils-ping)"),
        }
        Ok(())
    }

    /// perftest between the two ends, the kernel's packets counted.
    fn perftest(&self, checks: &mut Checks) -> Result<()> {
        let (there, here) = (self.gid(true, "v2")?, self.gid(false, "v2")?);
        ensure!(there == here, "the ends have the indices {here} and {there}");
        let mut rows = vec![
            ("ib_write_bw", "-s 65536 -n 200"),
            ("ib_read_lat", "-s 8 -n 200"),
            ("ib_send_bw", "-s 2000 -n 1000"),
        ];
        if self.bed.all {
            rows.extend([
                ("ib_send_lat", "-s 8 -n 1000"),
                ("ib_read_bw", "-s 65536 -n 200"),
                ("ib_write_lat", "-s 8 -n 500"),
                ("ib_send_lat", "-c UD -s 1000 -n 500"),
                // One at a time: nobody repeats a message of UC that finds a full ring, and perftest waits for all of them.
                ("ib_send_lat", "-c UC -s 1000 -n 500"),
                ("ib_atomic_lat", "-n 200"),
            ]);
        }
        for (program, words) in rows {
            let port = self.bed.port();
            let line = format!("-d d0 -F -x {here} -p {port} {words}");
            let before = self.received_by_kernel()?;
            let exchange = Exchange {
                name: format!("{program} {words} over DPDK"),
                server: self.nobody(true, program, &line)?,
                client: self.nobody(false, program, &format!("{line} {SERVER}"))?,
                ready: Box::new(self.place.listener(port)),
                limit: LIMIT,
            };
            exchange.run(&self.bed.logs, checks)?;
            let kernel = self.received_by_kernel()? - before;
            let few = if kernel < 100 { Ok(()) } else { Err(format!("{kernel} packets of the tap")) };
            checks.check(&format!("{program} {words}: packets do not pass through the kernel"), few);
        }
        Ok(())
    }

    /// rdma-core's Python tests. Both ends of their queue pairs are in one process, which would use shared memory; with
    /// `FERROCE_DATAPATH=packet` the thread of the port passes their packets from ring to ring.
    fn pyverbs(&self, checks: &mut Checks) -> Result<()> {
        let before = self.received_by(LOOPBACK)?;
        let counted = self.sent()?;
        let mut front = self.place.command(false);
        let folder = self.copy.runtime("run-pyverbs", NOBODY)?;
        front.env("FERROCE_RUNTIME_DIR", &folder).env("FERROCE_DATAPATH", "packet");
        let (gid, netdev) = (self.gid(false, "v2")?, "dpdk0");
        let at = Elsewhere { title: "pyverbs over DPDK", device: "d0", gid, netdev, folder: &folder };
        pyverbs::elsewhere(self.bed, self.copy, front, &at, checks)?;
        let kernel = self.received_by(LOOPBACK)? - before;
        let [all, by_pipe] = self.sent()?;
        let [all, by_pipe] = [all - counted[0], by_pipe - counted[1]];
        let by_ring = all - by_pipe;
        let way = if by_ring > 1000 && kernel < by_ring / 10 {
            Ok(())
        } else {
            Err(format!("{by_ring} packets by rings, {by_pipe} by shared memory, {kernel} by lo"))
        };
        checks.check("pyverbs over DPDK: the way of the packets", way);
        checks.note(format!("pyverbs over DPDK: {by_ring} packets by rings, {by_pipe} by shared memory"));
        checks
            .note(format!("pyverbs over DPDK: {kernel} packets by lo, of groups and connection management"));
        Ok(())
    }

    /// Packets that programs of the client's end sent since its broker began: all, and those by shared memory.
    fn sent(&self) -> Result<[u64; 2]> {
        let text = self.ferroce(false, "-j -d statistic show link d0/1")?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let count = |name: &str| rows[0][name].as_u64().with_context(|| format!("no {name} in {text}"));
        Ok([count("sent_pkts")?, count("pipe_sent_pkts")?])
    }

    fn no_library(&self) -> Result<()> {
        let ended = self.run(false, "ferroce", "link add d0 type rxe netdev dpdk:net_null0")?;
        let says = ["libferroce-dpdk.so cannot be loaded", "install DPDK"];
        let told = says.iter().all(|part| ended.output.contains(part));
        ensure!(!ended.ok() && told, "{}", ended.describe());
        let text = self.ferroce(false, "link show")?;
        ensure!(!text.contains("d0"), "{text}");
        Ok(())
    }

    fn shown(&self) -> Result<()> {
        let text = self.ferroce(false, "link show d0")?;
        ensure!(text.contains("netdev dpdk0") && text.contains("state ACTIVE"), "{text}");
        Ok(())
    }

    fn refusals(&self) -> Result<()> {
        for (words, says) in [
            (format!("link add d1 type rxe netdev {}", self.devargs(false)), "has a link already"),
            ("link add d0 type rxe netdev dpdk:net_null0".to_owned(), "exists already"),
            ("link add d1 type rxe netdev dpdk:net_af_packet1,iface=nothing".to_owned(), "No such device"),
            ("link add d1 type rxe netdev dpdk:net_null0,mtu=70000".to_owned(), "from 576 to 9600"),
            ("link add d1 type siw netdev dpdk:net_null0".to_owned(), "iWARP link stands on the tap"),
            ("link add d1 type rxe netdev dpdk0".to_owned(), "d0 already"),
        ] {
            let ended = self.run(false, "ferroce", &words)?;
            ensure!(!ended.ok() && ended.output.contains(says), "{}", ended.describe());
        }
        let text = self.good(false, "ip", "link show")?;
        ensure!(!text.contains("dpdk1"), "a tap is left: {text}");
        Ok(())
    }

    /// kill -9 of the client's broker; the next one drives the port again.
    fn dies(&mut self) -> Result<()> {
        let index = |text: &str| text.split(':').next().map(str::to_owned);
        let before = self.good(false, "ip", "addr show dev dpdk0")?;
        self.stop(false);
        let during = self.good(false, "ip", "addr show dev dpdk0")?;
        ensure!(during.contains(CLIENT), "{during}");
        netns::until("the tap has no carrier", || {
            self.good(false, "ip", "link show dev dpdk0").is_ok_and(|text| text.contains("NO-CARRIER"))
        })?;
        self.start(false)?;
        let after = self.good(false, "ip", "addr show dev dpdk0")?;
        ensure!(after.contains(CLIENT) && index(&before) == index(&after), "{before}\n{after}");
        netns::until("the link is active", || {
            self.ferroce(false, "link show d0").is_ok_and(|text| text.contains("state ACTIVE"))
        })
    }

    fn deleted(&self) -> Result<()> {
        for server in [true, false] {
            self.ferroce(server, "link del d0")?;
            let text = self.good(server, "ip", "link show")?;
            ensure!(!text.contains("dpdk0"), "{text}");
        }
        self.ferroce(false, &format!("link add d0 type rxe netdev {} --no-persist", self.devargs(false)))?;
        self.ferroce(false, "link show d0")?;
        if let Some(Some(broker)) = self.brokers.first() {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(broker.pid().try_into()?), Signal::SIGKILL)?;
        }
        netns::until("the tap of a link that is not kept is gone", || {
            self.good(false, "ip", "link show").is_ok_and(|text| !text.contains("dpdk0"))
        })
    }
}
