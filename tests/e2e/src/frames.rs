//! RoCE v1 between two network namespaces: Debian's programs over Ethernet frames, judged by tshark and by an ICRC that is
//! written down here once more.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use super::observe::capture;
use super::{Bed, gid_index};
use ferroce_harness::cc;
use ferroce_harness::exchange::{Exchange, Meeting};
use ferroce_harness::job::{self, Job};
use ferroce_harness::netns;
use ferroce_harness::place::Place;
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(60);
const SERVER: &str = "10.80.0.2";
/// The message of a pingpong whose packets are not answered in time.
const TOO_LATE: &str = "transport retry counter exceeded";

/// Everything over frames.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let place = match Place::cut(&bed.programs) {
        Ok(place) => place,
        Err(why) => {
            checks.skip("RoCE v1", &format!("no second namespace behind a veth here: {why:#}"));
            return Ok(());
        }
    };
    let wire = Wire { bed, place };
    for server in [true, false] {
        wire.ferroce(server, &format!("link add fr1 type roce netdev {} --no-persist", wire.netdev(server)))?;
        wire.ferroce(server, "link set fr1 roce-mode both --no-persist")?;
    }
    let gids = Gids::of(&wire)?;
    let seen = captured(&wire, &gids, checks);
    checks.check("RoCE v1 on the wire", seen);
    exchanges(&wire, &gids, checks)?;
    match wire.bed.programs.find("tshark") {
        Some(_) => checks.check("run --capture of RoCE v1", recorded(&wire, &gids)),
        None => checks.skip("run --capture of RoCE v1", "tshark is not here"),
    }
    v2_by_frames(&wire, &gids, checks)?;
    group_on_one_host(&wire, &gids, checks)?;
    let seen = marked(&wire, &gids, checks);
    checks.check("traffic class and hop limit", seen);
    checks.check("a v1 end and a v2 end", strangers(&wire, &gids));
    checks.check("frames that were dropped are counted", forged(&wire));
    let died = broker_dies(&wire, &gids);
    if let Ok(went_on) = &died {
        let what = if *went_on { "went on" } else { "was given up" };
        checks.note(format!("the connection {what} when the broker died"));
    }
    checks.check("the broker dies under RoCE v1", died.map(drop));
    for server in [true, false] {
        wire.ferroce(server, "link del fr1 --no-persist")?;
    }
    Ok(())
}

struct Wire<'a> {
    bed: &'a Bed,
    place: Place,
}

impl Wire<'_> {
    fn netdev(&self, server: bool) -> &'static str {
        self.place.netdev(server).unwrap_or("lo")
    }

    /// A command at one of the ends.
    fn at(&self, server: bool, command: &Command) -> Command {
        let mut there = self.place.command(server);
        there.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            there.env(key, value.unwrap_or_default());
        }
        there
    }

    fn ferroce(&self, server: bool, words: &str) -> Result<String> {
        let mut command = Command::new(self.bed.dist.bin("ferroce"));
        command.args(words.split(' '));
        let log = self.bed.logs.path(&format!("frames {server} {words}"));
        let ended = job::run(self.at(server, &command), &log, Duration::from_secs(20))?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// Index of an IPv6 address of RoCE v2; link-local ones would name the peer's otherwise.
    fn v6_index(&self) -> Result<u32> {
        for (server, address) in [(true, "fd80::2/64"), (false, "fd80::1/64")] {
            let mut ip = Command::new(self.bed.programs.find("ip").context("ip is missing")?);
            ip.args(["-6", "addr", "add", address, "nodad", "dev", self.netdev(server)]);
            let output = self.at(server, &ip).output()?;
            ensure!(output.status.success(), "ip: {}", String::from_utf8_lossy(&output.stderr));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let index = |server: bool, address: &str| -> Result<Option<u32>> {
                let text = self.ferroce(server, "gid show fr1")?;
                Ok(gid_index(&text, address, "v2"))
            };
            match (index(true, "fd80::2")?, index(false, "fd80::1")?) {
                (Some(there), Some(here)) if there == here => return Ok(here),
                found => ensure!(Instant::now() < deadline, "no common index of IPv6 addresses: {found:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ours(&self, server: bool, program: &str, words: &str) -> Command {
        let mut command = self.bed.ours(program);
        command.args(words.split_whitespace());
        self.at(server, &command)
    }

    /// A pingpong; the two may have different arguments.
    fn exchange(&self, program: &str, server: &str, client: &str) -> Exchange<'static> {
        let port = self.bed.port();
        let end = |is_server: bool, words: &str| {
            self.ours(is_server, program, &format!("-d fr1 -p {port} {words}"))
        };
        Exchange {
            name: format!("{program} {client} by frames"),
            server: end(true, server),
            client: end(false, &format!("{client} {SERVER}")),
            ready: Box::new(self.place.listener(port)),
            limit: LIMIT,
        }
    }
}

/// Indices of the address's entries; both ends have the same.
struct Gids {
    v1: u32,
    v2: u32,
}

impl Gids {
    fn of(wire: &Wire<'_>) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = wire.ferroce(false, "gid show fr1")?;
            let index = |version| gid_index(&text, "10.80.0.1", version);
            match (index("v1"), index("v2")) {
                (Some(v1), Some(v2)) => return Ok(Self { v1, v2 }),
                _ => ensure!(Instant::now() < deadline, "no GIDs of both versions in\n{text}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The capture of one program has the frames of both directions.
fn recorded(wire: &Wire<'_>, gids: &Gids) -> Result<()> {
    let file = wire.bed.logs.0.join("frames recorded.pcapng");
    let words = format!("-g {} -n 50 -s 4000 -m 1024 -c", gids.v1);
    let mut exchange = wire.exchange("ibv_rc_pingpong", &words, &words);
    let mut client = capture::capturing(wire.bed, &file, &[], "ibv_rc_pingpong");
    client.args(exchange.server.get_args().skip_while(|word| *word != "-d")).arg(SERVER);
    exchange.client = wire.at(false, &client);
    let running = exchange.start(&wire.bed.logs)?;
    let client = running.client.context("the server did not listen")?.wait()?;
    ensure!(client.ok() && running.server.wait()?.ok(), "{}", client.describe());
    let packets = capture::seen(wire.bed, &file)?;
    for dir in ["dir tx", "dir rx"] {
        // 50 messages of four packets, and an ACK at least.
        ensure!(packets.iter().filter(|one| one.comment.contains(dir)).count() > 200, "{dir}: {packets:?}");
    }
    let frames = crate::wire::tshark_with(wire.bed, &file, "eth.type == 0x8915 && infiniband.grh", &[])?;
    ensure!(frames.lines().count() == packets.len(), "{frames}");
    Ok(())
}

fn exchanges(wire: &Wire<'_>, gids: &Gids, checks: &mut Checks) -> Result<()> {
    let many = if wire.bed.all { 5000 } else { 500 };
    for (program, words) in [
        ("ibv_rc_pingpong", format!("-n {many} -c -e")),
        ("ibv_rc_pingpong", format!("-n {many} -s 1 -e")),
        ("ibv_rc_pingpong", format!("-n {} -s 65536 -m 4096 -c -e", many / 10)),
        ("ibv_uc_pingpong", format!("-n {} -s 1024 -c -e", many / 5)),
        ("ibv_ud_pingpong", format!("-n {} -s 1024 -c -e", many / 5)),
        ("ibv_srq_pingpong", format!("-n {} -c -e", many / 5)),
    ] {
        let words = format!("-g {} {words}", gids.v1);
        wire.exchange(program, &words, &words).run(&wire.bed.logs, checks)?;
    }
    for server in [true, false] {
        wire.ferroce(server, "link set fr1 cm-mode v1 --no-persist")?;
    }
    let port = wire.bed.port();
    let meeting = Meeting {
        name: "rping by frames".to_owned(),
        server: wire.ours(true, "rping", &format!("-s -C 20 -S 2000 -a {SERVER} -p {port}")),
        client: wire.ours(false, "rping", &format!("-c -V -C 20 -S 2000 -a {SERVER} -p {port}")),
        patience: None,
        judge: &|_, _| Ok(()),
        endless: false,
        limit: LIMIT,
    };
    meeting.run(&wire.bed.logs, checks)?;
    Ok(())
}

/// A capture under way.
struct Capture {
    job: Job,
    file: PathBuf,
}

impl Capture {
    /// `None`, and a skip that says why, where there can be none.
    fn start(wire: &Wire<'_>, name: &str, checks: &mut Checks) -> Result<Option<Self>> {
        let Some(dumpcap) = wire.bed.programs.find("dumpcap") else {
            checks.skip(name, "dumpcap is not here");
            return Ok(None);
        };
        let file = wire.bed.logs.0.join(name).with_extension("pcap");
        std::fs::remove_file(&file).ok();
        let mut command = Command::new(dumpcap);
        command.args(["-q", "-P", "-i", "va", "-w"]).arg(&file);
        let mut job = Job::start(command, &wire.bed.logs.path(&format!("dumpcap {name}")), LIMIT)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::metadata(&file).map_or(0, |m| m.len()) < 24 {
            if job.ended() || Instant::now() > deadline {
                checks.skip(name, &format!("no capture here: {}", job.output().trim()));
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(Self { job, file }))
    }

    /// Waits until tshark finds so many packets that match each filter, and ends.
    fn end(self, wire: &Wire<'_>, wants: &[(&str, usize)]) -> Result<PathBuf> {
        let deadline = Instant::now() + Duration::from_secs(15);
        let found = loop {
            let count = |(filter, want): &(&str, usize)| -> Result<Option<String>> {
                // The last packet may be written in part.
                let found = tshark(wire.bed, &self.file, filter).map_or(0, |text| text.lines().count());
                Ok((found < *want).then(|| format!("{filter}: {found}, wanted {want}")))
            };
            let missing: Vec<String> =
                wants.iter().map(count).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            if missing.is_empty() || Instant::now() > deadline {
                break missing;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        self.job.signal(Signal::SIGINT);
        self.job.wait()?;
        ensure!(found.is_empty(), "{found:?}");
        Ok(self.file)
    }
}

/// The settings of the device appear on the wire, whichever datapath sends the packets.
fn marked(wire: &Wire<'_>, gids: &Gids, checks: &mut Checks) -> Result<()> {
    wire.ferroce(false, "link set fr1 tclass 96 ttl 7 --no-persist")?;
    let Some(capture) = Capture::start(wire, "frames-marked", checks)? else { return Ok(()) };
    for (gid, datapath) in [(gids.v1, "udp"), (gids.v2, "udp"), (gids.v2, "packet")] {
        let words = format!("-g {gid} -n 10 -s 1024 -e");
        let mut exchange = wire.exchange("ibv_rc_pingpong", &words, &words);
        exchange.client.env("FERROCE_DATAPATH", datapath);
        exchange.name = format!("{} {datapath}", exchange.name);
        exchange.run(&wire.bed.logs, checks)?;
    }
    wire.ferroce(false, "link set fr1 tclass -1 ttl -1 --no-persist")?;
    let file = capture.end(
        wire,
        &[
            ("eth.type == 0x8915 && infiniband.grh.tclass == 96 && infiniband.grh.hoplmt == 7", 10),
            ("udp.dstport == 4791 && ip.dsfield.dscp == 24 && ip.ttl == 7", 20),
        ],
    )?;
    let others = tshark(wire.bed, &file, "udp.dstport == 4791 && ip.src == 10.80.0.1 && ip.ttl != 7")?;
    ensure!(others.is_empty(), "{others}");
    Ok(())
}

/// A capture of RoCE v1: what tshark makes of it, and whether the ICRCs are right.
fn captured(wire: &Wire<'_>, gids: &Gids, checks: &mut Checks) -> Result<()> {
    let Some(capture) = Capture::start(wire, "frames", checks)? else { return Ok(()) };
    const MESSAGES: usize = 20;
    let words = format!("-g {} -n {MESSAGES} -s 3001 -c -e", gids.v1);
    wire.exchange("ibv_rc_pingpong", &words, &words).run(&wire.bed.logs, checks)?;
    // Both ends sent as many messages of three packets.
    let want = 2 * 3 * MESSAGES;
    let file = capture.end(wire, &[("eth.type == 0x8915", want)])?;
    let frames = frames(&file)?;
    ensure!(frames.len() >= want, "{} frames of RoCE v1, wanted {want} at least", frames.len());
    for frame in &frames {
        ensure!(icrc_holds(frame), "wrong ICRC: {frame:02x?}");
    }
    let udp = tshark(wire.bed, &file, "udp.port == 4791")?;
    ensure!(udp.is_empty(), "RoCE v2:\n{udp}");
    let bad = tshark(wire.bed, &file, "eth.type == 0x8915 && (_ws.malformed || !infiniband.bth)")?;
    ensure!(bad.is_empty(), "tshark finds malformed:\n{bad}");
    let good = tshark(
        wire.bed,
        &file,
        "eth.type == 0x8915 && infiniband.grh.ipver == 6 && infiniband.grh.nxthdr == 27 \
         && infiniband.grh.sgid == ::ffff:10.80.0.1",
    )?;
    ensure!(good.lines().count() >= want / 2, "tshark finds {} packets of ours", good.lines().count());
    checks.note(format!("{} frames of RoCE v1 captured", frames.len()));
    Ok(())
}

/// RoCE v2 with `FERROCE_DATAPATH=packet` at both ends or at one; traffic class and hop limit are exactly those asked for.
fn v2_by_frames(wire: &Wire<'_>, gids: &Gids, checks: &mut Checks) -> Result<()> {
    let v6 = wire.v6_index()?;
    let many = if wire.bed.all { 5000 } else { 500 };
    for (packet_server, packet_client) in [(true, true), (true, false), (false, true)] {
        for (program, words) in [
            ("ibv_rc_pingpong", format!("-g {} -n {many} -s 10000 -m 4096 -c -e", gids.v2)),
            ("ibv_rc_pingpong", format!("-g {v6} -n {many} -s 10000 -m 1024 -c -e")),
            ("ibv_uc_pingpong", format!("-g {} -n {} -s 1024 -c -e", gids.v2, many / 5)),
            ("ibv_ud_pingpong", format!("-g {} -n {} -s 1024 -c -e", gids.v2, many / 5)),
        ] {
            let mut exchange = wire.exchange(program, &words, &words);
            for (end, packet) in
                [(&mut exchange.server, packet_server), (&mut exchange.client, packet_client)]
            {
                if packet {
                    end.env("FERROCE_DATAPATH", "packet");
                }
            }
            let who = |packet| if packet { "packet" } else { "udp" };
            exchange.name =
                format!("{program} {words}: {} server, {} client", who(packet_server), who(packet_client));
            exchange.run(&wire.bed.logs, checks)?;
        }
    }
    Ok(())
}

/// A packet to a group reaches the members on the sender's own host as well, with `FERROCE_DATAPATH=packet`, too. A frame would not.
/// The messages are so few that all fit into the buffer of a socket: nobody repeats a lost one, and perftest waits for all.
fn group_on_one_host(wire: &Wire<'_>, gids: &Gids, checks: &mut Checks) -> Result<()> {
    let port = wire.bed.port();
    let words = format!(
        "-d fr1 -F -p {port} -c UD -x {} -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3 -s 256 -n 50",
        gids.v2
    );
    let end = |words: &str| {
        let mut end = wire.ours(true, "ib_send_bw", words);
        end.env("FERROCE_DATAPATH", "packet");
        end
    };
    let exchange = Exchange {
        name: "ib_send_bw to a group on one host, by frames".to_owned(),
        server: end(&words),
        client: end(&format!("{words} {SERVER}")),
        ready: Box::new(wire.place.listener(port)),
        limit: LIMIT,
    };
    exchange.run(&wire.bed.logs, checks)?;
    Ok(())
}

/// The frames of RoCE v1 in a capture, from the GRH on, to the length that the GRH says.
fn frames(file: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(file)?;
    let mut found = Vec::new();
    let mut rest = bytes.get(24..).unwrap_or_default();
    while let Some((head, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some((frame, after)) = after.split_at_checked(len) else { break };
        rest = after;
        if frame.get(12..14) == Some(&[0x89, 0x15]) {
            let grh = &frame[14..];
            let len = 40 + usize::from(u16::from_be_bytes([grh[4], grh[5]]));
            found.push(grh.get(..len).context("a frame is shorter than its GRH says")?.to_vec());
        }
    }
    Ok(found)
}

/// IBTA 7.8.1 with A16: the CRC of Ethernet over eight octets of ones and the packet, in which traffic class, flow label, hop
/// limit and one octet of the BTH are ones.
fn icrc_holds(packet: &[u8]) -> bool {
    let (body, icrc) = packet.split_at(packet.len() - 4);
    let mut masked = [[0xff; 8].as_slice(), body].concat();
    masked[8] |= 0x0f;
    for at in [9, 10, 11, 15, 8 + 44] {
        masked[at] = 0xff;
    }
    let crc = masked.iter().fold(u32::MAX, |crc, octet| {
        (0..8).fold(crc ^ u32::from(*octet), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    (!crc).to_le_bytes() == icrc
}

fn tshark(bed: &Bed, file: &Path, filter: &str) -> Result<String> {
    let mut command = Command::new(bed.programs.find("tshark").context("tshark is missing")?);
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(file).args(["-Y", filter]);
    if let Some(dirs) = bed.programs.libraries() {
        command.env("LD_LIBRARY_PATH", dirs);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// They exchanged their numbers, but not a packet comes through: who asks is told so, who waits goes on waiting.
fn strangers(wire: &Wire<'_>, gids: &Gids) -> Result<()> {
    for (server, client) in [(gids.v1, gids.v2), (gids.v2, gids.v1)] {
        let words = |gid: u32| format!("-g {gid} -n 10 -e");
        let exchange = wire.exchange("ibv_rc_pingpong", &words(server), &words(client));
        let running = exchange.start(&wire.bed.logs)?;
        let client = running.client.context("the server was never ready")?.wait()?;
        running.server.signal(Signal::SIGKILL);
        running.server.wait()?;
        let failed = client.status.and_then(|status| status.code()) == Some(1);
        let told = client.output.contains(TOO_LATE);
        ensure!(failed && told, "{}", client.describe());
    }
    Ok(())
}

/// Frames that somebody on the link made up are counted, where they arrive, by what is wrong with them.
fn forged(wire: &Wire<'_>) -> Result<()> {
    const COUNT: u64 = 7;
    const REASONS: [&str; 3] = ["frame_malformed", "frame_not_ours", "frame_no_qp"];
    let counted = || -> Result<Vec<u64>> {
        let text = wire.ferroce(true, "-j -d statistic show link fr1/1")?;
        let rows: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let count = |reason| rows[0][reason].as_u64().with_context(|| format!("no {reason} in {text}"));
        REASONS.into_iter().map(count).collect()
    };
    let before = counted()?;
    let mut ip = Command::new(wire.bed.programs.find("ip").context("ip is missing")?);
    ip.args(["link", "show", "dev", wire.netdev(true)]);
    let shown = wire.at(true, &ip).output()?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let mac = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
    let mac = mac.with_context(|| format!("no hardware address in {shown}"))?;
    let mut forge = Command::new(cc::ours("forge", &wire.bed.dist, &wire.bed.programs)?);
    forge.args([wire.netdev(false), mac, SERVER, &COUNT.to_string()]);
    let ended = job::run(wire.at(false, &forge), &wire.bed.logs.path("forge"), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    let deadline = Instant::now() + LIMIT;
    loop {
        let now = counted()?;
        if now.iter().zip(&before).all(|(now, before)| *now >= before + COUNT) {
            break;
        }
        ensure!(Instant::now() < deadline, "{REASONS:?}: {before:?} before, {now:?} after {COUNT} of each");
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = wire.ferroce(true, "-d stat show link fr1/1")?;
    ensure!(text.starts_with("link fr1/1 sent_pkts ") && text.contains(" frame_not_ours "), "{text}");
    Ok(())
}

/// With the broker the packets stop. A program starts the next one and goes on, or its peer gives up before: both ends
/// come to an end that says which, and neither crashes nor hangs. Whether they went on.
fn broker_dies(wire: &Wire<'_>, gids: &Gids) -> Result<bool> {
    let words = format!("-g {} -n 10000 -s 64 -e", gids.v1);
    let mut exchange = wire.exchange("ibv_rc_pingpong", &words, &words);
    // A second or two, but where others compute each message waits for its turn.
    exchange.limit = 4 * LIMIT;
    let running = exchange.start(&wire.bed.logs)?;
    let client = running.client.context("the server was never ready")?;
    let rings = |text: &str| text.lines().any(|line| line.starts_with("program ") && line.contains("qp 1"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !rings(&wire.ferroce(false, "status")?) {
        ensure!(Instant::now() < deadline, "the client has no queue pair");
        std::thread::sleep(Duration::from_millis(20));
    }
    for broker in netns::brokers() {
        kill(broker, Signal::SIGKILL)?;
    }
    let mut went_on = true;
    let (client, server) = (client.wait()?, {
        let mut server = running.server;
        // A server that only waits hears nothing of its client's end.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !server.ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        server.signal(Signal::SIGTERM);
        server.wait()?
    });
    for (name, end) in [("client", &client), ("server", &server)] {
        use std::os::unix::process::ExitStatusExt;
        let status = end.status.with_context(|| format!("the {name} hung"))?;
        let told = end.output.contains(TOO_LATE);
        let waits = name == "server" && status.signal() == Some(15) && !client.ok();
        ensure!(status.success() || told || waits, "{}", end.describe());
        went_on &= status.success();
    }
    Ok(went_on)
}
