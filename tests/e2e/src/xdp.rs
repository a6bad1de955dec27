//! AF_XDP between two network namespaces: Debian's programs by nobody, each with the packets that ferroce counted on that way; the
//! fallback to UDP sockets, and its reasons. The brokers are nobody's as well, and have three capabilities, as `setcap` gives them.

mod direct;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::geteuid;

use super::copy::{Broker, PublicCopy};
use super::pyverbs::{self, Elsewhere, NOBODY, has_nobody};
use super::{Bed, gid_index};
use ferroce_harness::exchange::{Exchange, Meeting};
use ferroce_harness::iwarp::net::Namespace;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// Each packet has a frame of its own, so a loaded machine moves some 50 MB/s, and all sizes in both directions are 3 GB.
const LIMIT: Duration = Duration::from_secs(240);
const SERVER: [&str; 2] = ["10.86.0.2", "fd86::2"];
const CLIENT: [&str; 2] = ["10.86.0.1", "fd86::1"];
const NETDEVS: [&str; 2] = ["x0", "x1"];
/// Packets by AF_XDP, of one device.
const COUNTERS: [&str; 2] = ["xdp_sent_pkts", "xdp_rcvd_pkts"];

/// No end has CAP_NET_RAW.
const NONE: [bool; 2] = [false; 2];

/// The ends with CAP_NET_RAW, for a name.
fn rights([client, server]: [bool; 2]) -> &'static str {
    match (client, server) {
        (false, false) => "",
        (true, false) => ", CAP_NET_RAW at the client",
        (false, true) => ", CAP_NET_RAW at the server",
        (true, true) => ", CAP_NET_RAW at both ends",
    }
}

/// Everything over AF_XDP.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if !geteuid().is_root() || !has_nobody() {
        checks.skip("AF_XDP", "needs root: CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and a second user");
        return Ok(());
    }
    let wire = match Wire::new(bed) {
        Ok(wire) => wire,
        Err(why) => {
            checks.skip("AF_XDP", &format!("no two namespaces with a veth between them: {why:#}"));
            return Ok(());
        }
    };
    let _brokers = [wire.broker(false)?, wire.broker(true)?];
    for server in [false, true] {
        let netdev = wire.netdev(server);
        wire.ferroce(server, &format!("link add fx0 type rxe netdev {netdev} datapath xdp"))?;
    }
    let shown = wire.ferroce(false, "-d link show fx0/1")?;
    if !shown.contains("xdp (") {
        checks.skip("AF_XDP", &format!("this kernel has none: {}", shown.trim()));
        return Ok(());
    }
    checks.note(shown.lines().find(|line| line.contains("xdp (")).unwrap_or_default().trim().to_owned());
    wire.pingpongs(checks)?;
    wire.pings(checks)?;
    wire.perftest(checks)?;
    wire.managed(checks)?;
    wire.ucx(checks)?;
    if bed.all {
        wire.pyverbs(checks)?;
    }
    wire.v1(checks)?;
    checks.check("a pair of veth interfaces ends with its program", wire.pairs_end());
    checks.check("an interface that cannot have it, and the reason", wire.refusal());
    checks.check("datapath udp under traffic", wire.switched());
    wire.direct(checks)?;
    checks.check("kill -9 of the broker under traffic", wire.broker_dies(NONE));
    checks.check("kill -9 of the broker under traffic of direct ports", wire.broker_dies([true; 2]));
    Ok(())
}

/// Two namespaces, a veth between them, and a copy of the distribution that all users can read.
struct Wire<'a> {
    bed: &'a Bed,
    copy: PublicCopy<'a>,
    /// The client's, then the server's.
    ends: [Namespace; 2],
}

impl<'a> Wire<'a> {
    fn new(bed: &'a Bed) -> Result<Self> {
        let ends = [Namespace::new(&bed.programs)?, Namespace::new(&bed.programs)?];
        let [client, server] = &ends;
        let [near, far] = NETDEVS;
        client.run(&format!("ip link add name {near} type veth peer name {far} netns {}", server.pid()))?;
        for (end, netdev, addresses) in [(client, near, CLIENT), (server, far, SERVER)] {
            let [v4, v6] = addresses;
            end.run(&format!("ip addr add {v4}/24 dev {netdev}"))?;
            // Without duplicate detection the address is usable at once.
            end.run(&format!("ip addr add {v6}/64 dev {netdev} nodad"))?;
            end.run(&format!("ip link set {netdev} up"))?;
        }
        Ok(Self { bed, copy: PublicCopy::new(bed, "ferroce-xdp")?, ends })
    }

    fn end(&self, server: bool) -> &Namespace {
        let [client, there] = &self.ends;
        if server { there } else { client }
    }

    fn netdev(&self, server: bool) -> &'static str {
        NETDEVS[usize::from(server)]
    }

    /// Starts the broker of one end.
    fn broker(&self, server: bool) -> Result<Broker> {
        const CAPABILITIES: &str = "+net_admin,+net_raw,+bpf,+ipc_lock";
        let log = std::fs::File::create(self.bed.logs.path(&format!("xdp ferroced {server}")))?;
        let mut command = self.end(server).command();
        command.arg(self.bed.programs.find("setpriv").context("setpriv is missing")?);
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        command.args(["--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES, "--"]);
        command.arg(self.copy.bin("ferroced"));
        command.env("FERROCE_RUNTIME_DIR", self.runtime(server)?).current_dir("/");
        Broker::start(command, log, || self.ferroce(server, "status"))
    }

    /// A runtime folder of nobody's for each end: links that one of them keeps are not the other's.
    fn runtime(&self, server: bool) -> Result<PathBuf> {
        self.copy.runtime(&format!("run-{server}"), NOBODY)
    }

    /// A program by nobody on ferroce's libraries, without a capability, or with CAP_NET_RAW alone if `raw`.
    fn nobody(&self, server: bool, raw: bool, program: &str) -> Result<Command> {
        let words: &[&str] = match raw {
            true => &["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw"],
            false => &[],
        };
        let mut command = self.copy.as_user_with(self.end(server).command(), NOBODY, &[], words, program)?;
        // A program with no_new_privs starts a broker without capabilities, which the next one of these tests must not find.
        command.env("FERROCE_RUNTIME_DIR", self.runtime(server)?).env("FERROCE_BROKER", "none");
        Ok(command)
    }

    /// A line of `ferroce`.
    fn ferroce(&self, server: bool, line: &str) -> Result<String> {
        let ended = self.ferroce_run(server, line)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// The same of a line that may report errors of the host.
    fn ferroce_any(&self, server: bool, line: &str) -> Result<String> {
        Ok(self.ferroce_run(server, line)?.output)
    }

    fn ferroce_run(&self, server: bool, line: &str) -> Result<Ended> {
        let mut command = self.nobody(server, false, "ferroce")?;
        command.args(line.split(' '));
        let log = self.bed.logs.path(&format!("xdp {server} {line}"));
        job::run(command, &log, Duration::from_secs(20))
    }

    /// A program with arguments.
    fn ours(&self, server: bool, program: &str, words: &str) -> Result<Command> {
        self.ours_as(server, false, program, words)
    }

    /// The same, with CAP_NET_RAW if `raw`.
    fn ours_as(&self, server: bool, raw: bool, program: &str, words: &str) -> Result<Command> {
        let mut command = self.nobody(server, raw, program)?;
        command.args(words.split_whitespace());
        Ok(command)
    }

    /// The packets of an end's device by AF_XDP since its broker began: sent and received.
    fn counted(&self, server: bool) -> Result<[u64; 2]> {
        let text = self.ferroce(server, "-j -d statistic show link fx0/1")?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let [sent, received] = COUNTERS.map(|name| rows[0][name].as_u64());
        let missing = || format!("no {COUNTERS:?} in {text}");
        Ok([sent.with_context(missing)?, received.with_context(missing)?])
    }

    /// An exchange between two programs that meet by TCP, of which each end must have moved `least` packets by AF_XDP.
    fn exchange(&self, checks: &mut Checks, program: &str, words: &str, least: u64) -> Result<()> {
        self.exchange_as(checks, NONE, program, words, least)
    }

    /// The same with CAP_NET_RAW for those of `raw`, client and server.
    fn exchange_as(
        &self,
        checks: &mut Checks,
        raw: [bool; 2],
        program: &str,
        words: &str,
        least: u64,
    ) -> Result<()> {
        let port = self.bed.port();
        let line = format!("-d fx0 -p {port} {words}");
        let rights = rights(raw);
        let name = format!("{program} {words}, AF_XDP{rights}");
        let ready = || self.end(true).listens(port);
        let exchange = Exchange {
            name,
            server: self.ours_as(true, raw[1], program, &line)?,
            client: self.ours_as(false, raw[0], program, &format!("{line} {}", SERVER[0]))?,
            ready: Box::new(ready),
            limit: LIMIT,
        };
        self.judge(exchange, [least; 2], checks)
    }

    /// Runs an exchange, in which each end must send and receive at least so many packets by AF_XDP.
    fn judge(&self, exchange: Exchange<'_>, least: [u64; 2], checks: &mut Checks) -> Result<()> {
        let before = [self.counted(false)?, self.counted(true)?];
        let name = exchange.name.clone();
        if exchange.run(&self.bed.logs, checks)?.is_some() {
            checks.check(&format!("{name}: the way of the packets"), self.grew(before, least));
        }
        Ok(())
    }

    /// Both ends counted at least so many packets more, sent and received. A program's counts arrive with its end.
    fn grew(&self, before: [[u64; 2]; 2], least: [u64; 2]) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(3);
        loop {
            let now = [self.counted(false)?, self.counted(true)?];
            let grew = |(now, before): (&[u64; 2], &[u64; 2])| {
                (0..2).all(|of| now[of].saturating_sub(before[of]) >= least[of])
            };
            if now.iter().zip(&before).all(grew) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{COUNTERS:?} of client and server: {before:?} before, {now:?} after, {least:?} more were wanted of each"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The index of an address's GID for `version` of RoCE.
    fn gid(&self, server: bool, address: &str, version: &str) -> Result<u32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = self.ferroce(server, "gid show fx0")?;
            match gid_index(&text, address, version) {
                Some(index) => return Ok(index),
                None => ensure!(Instant::now() < deadline, "no GID of {address} in\n{text}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn pingpongs(&self, checks: &mut Checks) -> Result<()> {
        let many = if self.bed.all { 10_000 } else { 1000 };
        for (client, server) in CLIENT.iter().zip(SERVER) {
            let (here, there) = (self.gid(false, client, "v2")?, self.gid(true, server, "v2")?);
            ensure!(here == there, "{client} has index {here}, {server} index {there}");
            for (program, words, least) in [
                ("ibv_rc_pingpong", format!("-n {many} -s 4096 -c"), many),
                ("ibv_rc_pingpong", format!("-n {many} -s 1 -e"), many),
                ("ibv_uc_pingpong", format!("-n {} -s 1024 -c", many / 5), many / 5),
                // The first tenth of a second goes by sockets, where the kernel keeps datagrams while it looks for the neighbour.
                ("ibv_ud_pingpong", format!("-n {} -s 1024 -c", many * 20), many),
                ("ibv_srq_pingpong", format!("-n {many} -c"), many),
            ] {
                self.exchange(checks, program, &format!("-g {here} {words}"), least)?;
            }
        }
        Ok(())
    }

    fn pings(&self, checks: &mut Checks) -> Result<()> {
        for host in SERVER {
            let port = self.bed.port();
            let words = format!("-v -C 50 -S 4096 -a {host} -p {port}");
            let before = [self.counted(false)?, self.counted(true)?];
            let meeting = Meeting {
                name: format!("rping at {host}, AF_XDP"),
                server: self.ours(true, "rping", &format!("-s {words}"))?,
                client: self.ours(false, "rping", &format!("-c -V {words}"))?,
                patience: None,
                judge: &|_, _| Ok(()),
                endless: false,
                limit: LIMIT,
            };
            if meeting.run(&self.bed.logs, checks)?.is_some() {
                checks
                    .check(&format!("rping at {host}: the way of the packets"), self.grew(before, [100; 2]));
            }
        }
        Ok(())
    }

    fn perftest(&self, checks: &mut Checks) -> Result<()> {
        let index = self.gid(false, CLIENT[0], "v2")?;
        let mut rows = vec![
            ("ib_send_lat", "-s 8 -n 2000", 2000),
            ("ib_write_bw", "-s 65536 -n 500", 500),
            ("ib_read_bw", "-s 65536 -n 500", 200),
            ("ib_send_bw", "-s 2000 -n 2000 -q 4", 100),
        ];
        if self.bed.all {
            rows.extend([
                ("ib_send_lat", "-s 4096 -n 2000 -e", 2000),
                ("ib_send_bw", "-a -n 100", 1000),
                ("ib_write_bw", "-a -n 100 -b", 1000),
                ("ib_read_bw", "-a -n 100", 1000),
                ("ib_write_lat", "-a -n 200", 1000),
                ("ib_read_lat", "-a -n 200", 1000),
                // As of ibv_ud_pingpong, the first datagrams take sockets.
                ("ib_send_lat", "-c UD -s 1024 -n 20000", 2000),
                ("ib_send_lat", "-c UC -s 64 -n 2000", 2000),
            ]);
        }
        for (program, words, least) in rows {
            let words = format!("-F -x {index} {words}");
            self.exchange(checks, program, &words, least)?;
        }
        Ok(())
    }

    /// rdma-core's Python tests on a link with AF_XDP. Both ends of their queue pairs have one address, and packets to addresses of the own
    /// host keep UDP sockets, so that this row shows the device, its pair and their end, and no packet on the interface.
    fn pyverbs(&self, checks: &mut Checks) -> Result<()> {
        let mut front = self.end(false).command();
        let folder = self.runtime(false)?;
        front.env("FERROCE_RUNTIME_DIR", &folder).env("FERROCE_BROKER", "none");
        let gid = self.gid(false, CLIENT[0], "v2")?;
        let (title, device, netdev) = ("pyverbs, AF_XDP", "fx0", self.netdev(false));
        pyverbs::elsewhere(
            self.bed,
            &self.copy,
            front,
            &Elsewhere { title, device, gid, netdev, folder: &folder },
            checks,
        )
    }

    /// RoCE v1. Its frames leave by the broker and arrive by AF_XDP.
    fn v1(&self, checks: &mut Checks) -> Result<()> {
        for server in [false, true] {
            self.ferroce(server, "link set fx0 roce-mode both")?;
        }
        for (client, server) in CLIENT.iter().zip(SERVER) {
            let port = self.bed.port();
            let words = |gid: u32| format!("-d fx0 -p {port} -g {gid} -n 500 -c -e");
            let (here, there) = (self.gid(false, client, "v1")?, self.gid(true, server, "v1")?);
            let exchange = Exchange {
                name: format!("ibv_rc_pingpong at {server}, RoCE v1 on an interface with AF_XDP"),
                server: self.ours(true, "ibv_rc_pingpong", &words(there))?,
                client: self.ours(false, "ibv_rc_pingpong", &format!("{} {}", words(here), SERVER[0]))?,
                ready: Box::new(move || self.end(true).listens(port)),
                limit: LIMIT,
            };
            self.judge(exchange, [0, 500], checks)?;
        }
        for server in [false, true] {
            self.ferroce(server, "link set fx0 roce-mode v2")?;
        }
        Ok(())
    }

    /// udaddy and cmtime, which have few packets: they take sockets until the kernel knows the neighbour.
    fn managed(&self, checks: &mut Checks) -> Result<()> {
        for (here, there) in CLIENT.iter().zip(SERVER) {
            for (program, server, client) in [
                ("udaddy", format!("-b {there} -c 2 -C 20"), format!("-s {there} -b {here} -c 2 -C 20")),
                ("cmtime", format!("-b {there}"), format!("-s {there} -c 100")),
            ] {
                let meeting = Meeting {
                    name: format!("{program} at {there}, AF_XDP"),
                    server: self.ours(true, program, &server)?,
                    client: self.ours(false, program, &client)?,
                    patience: None,
                    judge: &|_, _| Ok(()),
                    endless: program == "cmtime",
                    limit: LIMIT,
                };
                meeting.run(&self.bed.logs, checks)?;
            }
        }
        Ok(())
    }

    /// UCX over reliable connections and over datagrams.
    fn ucx(&self, checks: &mut Checks) -> Result<()> {
        let Some(program) = self.bed.programs.find("ucx_perftest") else {
            checks.skip("UCX over AF_XDP", "there is no ucx_perftest (Debian: ucx-utils)");
            return Ok(());
        };
        let index = self.gid(false, CLIENT[0], "v2")?;
        // Datagrams to a new destination leave by sockets until the engine has looked up their route, so more of them are sent.
        for (transports, many) in [("rc_verbs,ud_verbs:aux", 1000), ("ud_verbs", 30_000)] {
            let port = self.bed.port();
            let end = |server: bool, words: &str| -> Result<Command> {
                // UCX reads files below /sys.
                let mut command = self.ours(server, "ferroce", "run --sysfs --")?;
                command.arg(&program).args(["-p", &port.to_string()]).args(words.split_whitespace());
                command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "fx0:1");
                command.env("UCX_IB_GID_INDEX", index.to_string());
                Ok(command)
            };
            let exchange = Exchange {
                name: format!("ucx_perftest by {transports}, AF_XDP"),
                server: end(true, "")?,
                client: end(false, &format!("-t tag_lat -s 8 -n {many} -w 100 -f {}", SERVER[0]))?,
                ready: Box::new(move || self.end(true).listens(port)),
                limit: LIMIT,
            };
            self.judge(exchange, [500; 2], checks)?;
        }
        Ok(())
    }

    /// The interfaces of an end, but for those that this stage made.
    fn pairs(&self, server: bool) -> Result<Vec<String>> {
        let text = self.end(server).run("ip -o link show")?;
        let names = text.lines().filter_map(|line| line.split_whitespace().nth(1));
        let names = names.map(|name| name.split(['@', ':']).next().unwrap_or_default().to_owned());
        Ok(names.filter(|name| name != "lo" && !NETDEVS.contains(&&**name)).collect())
    }

    fn pairs_end(&self) -> Result<()> {
        for server in [false, true] {
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                let left = self.pairs(server)?;
                if left.is_empty() {
                    break;
                }
                ensure!(Instant::now() < deadline, "{left:?} are left, and no program runs");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// An interface without a hardware address has no AF_XDP: the link says so, and works by UDP sockets.
    fn refusal(&self) -> Result<()> {
        let client = self.end(false);
        client.run("ip tuntap add dev x0v mode tun")?;
        client.run("ip link set x0v up")?;
        self.ferroce(false, "link add fx9 type rxe netdev x0v --no-persist")?;
        self.ferroce(false, "link set fx9 datapath xdp --no-persist")?;
        let shown = self.ferroce(false, "-d link show fx9/1")?;
        ensure!(shown.contains("udp (xdp needs an Ethernet interface"), "{shown}");
        self.ferroce(false, "link del fx9 --no-persist")?;
        let refused = self.ferroce_run(false, "link add fx9 type siw netdev x0v datapath xdp")?;
        ensure!(
            !refused.ok() && refused.output.contains("has no setting 'datapath'"),
            "{}",
            refused.describe()
        );
        let left = self.ferroce(false, "link show")?;
        ensure!(!left.contains("fx9"), "{left}");
        client.run("ip link del x0v").map(drop)
    }

    /// A pingpong of some seconds, during which `act` happens; both ends must end well.
    fn under_way(&self, name: &str, raw: [bool; 2], act: impl FnOnce() -> Result<()>) -> Result<[Ended; 2]> {
        let port = self.bed.port();
        let index = self.gid(false, CLIENT[0], "v2")?;
        let words = format!("-d fx0 -p {port} -g {index} -n 100000 -s 64 -c");
        let exchange = Exchange {
            name: name.to_owned(),
            server: self.ours_as(true, raw[1], "ibv_rc_pingpong", &words)?,
            client: self.ours_as(false, raw[0], "ibv_rc_pingpong", &format!("{words} {}", SERVER[0]))?,
            ready: Box::new(|| self.end(true).listens(port)),
            limit: LIMIT,
        };
        let before = self.counted(false)?;
        let running = exchange.start(&self.bed.logs)?;
        let client = running.client.context("the server was never ready")?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.counted(false)?[0] < before[0] + 100 {
            ensure!(Instant::now() < deadline, "no packet left by AF_XDP");
            std::thread::sleep(Duration::from_millis(5));
        }
        act()?;
        let client = client.wait()?;
        if !client.ok() {
            running.server.signal(Signal::SIGTERM);
        }
        let server = running.server.wait()?;
        ensure!(client.ok() && server.ok(), "client: {}\nserver: {}", client.describe(), server.describe());
        Ok([client, server])
    }

    /// Queue pairs outlive the change of their way, in both directions.
    fn switched(&self) -> Result<()> {
        self.under_way("xdp switched", NONE, || {
            for datapath in ["udp", "xdp", "udp", "xdp"] {
                self.ferroce(false, &format!("link set fx0 datapath {datapath}"))?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// Without the broker packets leave and arrive by UDP sockets, and the next broker makes new ports.
    fn broker_dies(&self, raw: [bool; 2]) -> Result<()> {
        let absent = netns::brokers_of(self.end(false).pid()).is_empty();
        let _first = absent.then(|| self.broker(false)).transpose()?;
        let mut next = None;
        self.under_way("xdp broker dies", raw, || {
            let brokers = netns::brokers_of(self.end(false).pid());
            ensure!(!brokers.is_empty(), "no broker is in the client's namespace");
            for broker in brokers {
                kill(broker, Signal::SIGKILL)?;
            }
            std::thread::sleep(Duration::from_millis(200));
            // A killed process that gets no processor keeps the broker's name, and the next one refuses to start.
            let gone = || netns::brokers_of(self.end(false).pid()).is_empty();
            netns::until("the killed broker is gone", gone)?;
            // Threads of the killed process may hold its name a moment longer than its first one.
            let deadline = Instant::now() + Duration::from_secs(60);
            next = loop {
                match self.broker(false) {
                    Ok(broker) => break Some(broker),
                    // A program that lives on has started it.
                    Err(_) if !gone() => break None,
                    Err(error) if Instant::now() > deadline => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            };
            Ok(())
        })?;
        let left = || self.pairs(false);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !left()?.is_empty() {
            ensure!(Instant::now() < deadline, "{:?} are left of the broker that died", left()?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
