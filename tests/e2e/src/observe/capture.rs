//! `ferroce run --capture`, `ferroce capture` and `ferroce top --html`: what tshark and a browser make of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::parts::{PATIENCE, ferroce, rping, wait};
use crate::{Bed, wire};
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Arguments of a pingpong: 50 messages of four packets from each end.
const PINGPONG: &str = "-s 4000 -m 1024 -n 50 -c";
const PACKETS: usize = 200;
/// Opcode of an acknowledgement; those below are of SEND.
const ACK: u32 = 17;

/// Captures by tshark; the page by Chromium.
pub(super) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if bed.programs.find("tshark").is_none() {
        checks.skip("captures", "tshark is not here");
        return Ok(());
    }
    for (name, gid, environment) in [
        ("shared memory", 0, &[][..]),
        ("shared memory, IPv6", 1, &[]),
        ("udp", 0, &[("FERROCE_DATAPATH", "udp")]),
        ("udp, IPv6", 1, &[("FERROCE_DATAPATH", "udp")]),
    ] {
        checks.check(&format!("run --capture, {name}"), both_ends(bed, name, gid, environment));
    }
    match wire::capture(bed, "capture beside")? {
        Ok(beside) => checks.check("run --capture beside dumpcap", on_the_wire(bed, beside)),
        Err(why) => checks.skip("run --capture beside dumpcap", &why),
    }
    checks.check("run --capture-ring", ring(bed));
    checks.check("run --capture-filter and --fault", with_faults(bed));
    checks.check("run --capture of a program that is killed", killed(bed));
    if bed.programs.find("rping").is_some() {
        checks.check("ferroce capture of running programs", running(bed));
    } else {
        checks.skip("ferroce capture of running programs", "rping is not here");
    }
    checks.check("top --html", page(bed));
    let browser =
        ["chromium", "chromium-browser", "google-chrome"].iter().find_map(|name| bed.programs.find(name));
    match browser {
        Some(browser) => checks.check("top --html in a browser", shown(bed, &browser)),
        None => checks.skip("top --html in a browser", "Chromium is not here"),
    }
    Ok(())
}

/// A packet, as tshark reads it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Seen {
    pub comment: String,
    opcode: u32,
    psn: u32,
    /// From BTH to ICRC; empty for RoCE v1.
    octets: String,
}

impl Seen {
    fn is(&self, dir: &str) -> bool {
        self.comment.contains(&format!(" dir {dir}"))
    }
}

/// The packets of a capture, none of which is malformed or no RoCE.
pub(crate) fn seen(bed: &Bed, file: &Path) -> Result<Vec<Seen>> {
    let bad = wire::tshark_with(bed, file, "_ws.malformed || _ws.expert.severity >= \"Note\"", &["-V"])?;
    ensure!(bad.is_empty(), "{}: {bad}", file.display());
    let mut options = vec!["-T", "fields"];
    for field in ["frame.comment", "infiniband.bth.opcode", "infiniband.bth.psn", "udp.payload"] {
        options.extend(["-e", field]);
    }
    let text = wire::tshark_with(bed, file, "frame", &options)?;
    let row = |line: &str| {
        let [comment, opcode, psn, octets] = line.split('\t').collect::<Vec<_>>()[..] else { return None };
        let (comment, octets) = (comment.to_owned(), octets.to_owned());
        Some(Seen { comment, opcode: opcode.parse().ok()?, psn: psn.parse().ok()?, octets })
    };
    text.lines().map(|line| row(line).with_context(|| format!("{}: {line}", file.display()))).collect()
}

fn file_of(bed: &Bed, name: &str) -> PathBuf {
    let file = bed.logs.0.join(format!("capture {name}.pcapng"));
    fs::remove_file(&file).ok();
    file
}

/// `ferroce run --capture FILE OPTIONS -- PROGRAM ARGS`
pub(crate) fn capturing(bed: &Bed, file: &Path, options: &[&str], program: &str) -> Command {
    let ours = bed.ours(program);
    let mut command = Command::new(ours.get_program());
    command.args(["run", "--capture"]).arg(file).args(options).args(ours.get_args().skip(1));
    for (key, value) in ours.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    command
}

/// Two ends of a pingpong with a capture each, that end so.
fn pingpong(
    bed: &Bed,
    name: &str,
    args: &str,
    options: &[&str],
    environment: &[(&str, &str)],
) -> Result<[Ended; 2]> {
    let port = bed.port();
    let end = |end: &str, host: &[&str]| {
        let mut command = capturing(bed, &file_of(bed, &format!("{name} {end}")), options, "ibv_rc_pingpong");
        command.args(["-d", "fr0", "-p", &port.to_string()]).args(args.split(' ')).args(host);
        command.envs(environment.iter().copied());
        command
    };
    let (server, client) = (end("server", &[]), end("client", &["127.0.0.1"]));
    let ready = Box::new(move || listening(port));
    let exchange = Exchange { name: format!("captured {name}"), server, client, ready, limit: PATIENCE };
    let running = exchange.start(&bed.logs)?;
    let client = running.client.context("the server did not listen")?;
    Ok([client.wait()?, running.server.wait()?])
}

fn captures(bed: &Bed, name: &str) -> Result<[Vec<Seen>; 2]> {
    let file = |end: &str| bed.logs.0.join(format!("capture {name} {end}.pcapng"));
    Ok([seen(bed, &file("client"))?, seen(bed, &file("server"))?])
}

/// Each end has all packets of both, as the other has them.
fn both_ends(bed: &Bed, name: &str, gid: u32, environment: &[(&str, &str)]) -> Result<()> {
    for ended in pingpong(bed, name, &format!("-g {gid} {PINGPONG}"), &[], environment)? {
        ensure!(ended.ok(), "{}", ended.describe());
    }
    let ends = captures(bed, name)?;
    for (here, there) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        let octets = |end: &[Seen], dir: &str| -> BTreeSet<String> {
            let sends = end.iter().filter(|one| one.is(dir) && one.opcode < ACK);
            sends.map(|one| one.octets.clone()).collect()
        };
        ensure!(octets(here, "tx") == octets(there, "rx"), "one end sent what the other did not receive");
        let sends: Vec<_> = here.iter().filter(|one| one.is("tx") && one.opcode < ACK).collect();
        let first = sends.first().context("no SEND")?.psn;
        let psns: BTreeSet<u32> = sends.iter().map(|one| one.psn.wrapping_sub(first) & 0xff_ffff).collect();
        ensure!(psns.iter().copied().eq(0..PACKETS as u32), "PSNs from {first}: {psns:?}");
        for packet in here {
            // Number of the program's send work requests.
            let known = packet.comment.ends_with(" wr_id 2");
            let of_send = packet.is("tx") == (packet.opcode < ACK);
            ensure!(packet.comment.starts_with("ibv_rc_pingpong (PID "), "{packet:?}");
            // An ACK that comes twice may find its work request completed.
            ensure!(if packet.opcode < ACK { known == of_send } else { of_send || !known }, "{packet:?}");
        }
    }
    for end in ["client", "server"] {
        let mut command = Command::new(bed.programs.find("python3").context("python3 is missing")?);
        command.arg(tree::reference("icrc.py")).arg(bed.logs.0.join(format!("capture {name} {end}.pcapng")));
        let ended = job::run(command, &bed.logs.path("capture icrc"), PATIENCE)?;
        ensure!(ended.ok() && ended.output.contains("icrc_bad=0"), "{}", ended.describe());
    }
    Ok(())
}

/// Both captures have the same octets.
fn on_the_wire(bed: &Bed, (file, beside): (PathBuf, Job)) -> Result<()> {
    let by_udp = [("FERROCE_DATAPATH", "udp"), ("FERROCE_GSO", "off")];
    for ended in pingpong(bed, "beside", &format!("-g 0 {PINGPONG}"), &[], &by_udp)? {
        ensure!(ended.ok(), "{}", ended.describe());
    }
    let sent = captures(bed, "beside")?.into_iter().flatten().filter(|one| one.is("tx"));
    let mut ours: Vec<_> = sent.map(|one| one.octets).collect();
    ours.sort();
    let mut theirs = Vec::new();
    let found = wait("all packets in the file of dumpcap", || {
        let text = wire::tshark_with(bed, &file, "infiniband", &["-T", "fields", "-e", "udp.payload"]);
        // The last packet of a killed program may be cut off.
        theirs = text.unwrap_or_default().lines().map(str::to_owned).collect();
        Ok(theirs.len() >= ours.len())
    });
    beside.signal(Signal::SIGINT);
    beside.wait()?;
    found?;
    theirs.sort();
    ensure!(ours == theirs, "{} packets here, {} by dumpcap", ours.len(), theirs.len());
    Ok(())
}

/// The file has the last packets and no more than permitted.
fn ring(bed: &Bed) -> Result<()> {
    const MIB: u64 = 1 << 20;
    for ended in pingpong(bed, "ring", "-g 0 -s 4000 -m 1024 -n 2000 -c", &["--capture-ring", "1"], &[])? {
        ensure!(ended.ok(), "{}", ended.describe());
    }
    for (end, packets) in ["client", "server"].iter().zip(captures(bed, "ring")?) {
        let len = fs::metadata(bed.logs.0.join(format!("capture ring {end}.pcapng")))?.len();
        ensure!((MIB / 2 - 4096..MIB + 4096).contains(&len), "{len} octets");
        let sent: Vec<_> = packets.iter().filter(|one| one.is("tx") && one.opcode < ACK).collect();
        let last = sent.last().context("no SEND")?;
        // Opcode 2: the last packet of a message, here of the last one, for which no successor is there.
        let ends = packets.iter().all(|one| !one.is("tx") || one.psn.wrapping_sub(last.psn) & 0xff_ffff != 1);
        ensure!(last.opcode == 2 && ends, "{last:?}");
    }
    Ok(())
}

/// The filter holds, and the faults act.
fn with_faults(bed: &Bed) -> Result<()> {
    let options = ["--fault", "drop if dir=rx,op=send,psn=5,count=1", "--capture-filter", "dir=rx,op=send"];
    for ended in pingpong(bed, "filter", &format!("-g 0 {PINGPONG}"), &options, &[])? {
        ensure!(ended.ok() && ended.output.contains("1 hits, 1 matched"), "{}", ended.describe());
    }
    for packets in captures(bed, "filter")? {
        ensure!(packets.iter().all(|one| one.is("rx") && one.opcode < ACK), "{packets:?}");
        let lost = packets.iter().filter(|one| one.psn.wrapping_sub(packets[0].psn) & 0xff_ffff == 5).count();
        ensure!(lost >= 2, "the packet that was lost, and its repetition: {lost} of {}", packets.len());
    }
    Ok(())
}

/// The packets until then are there.
fn killed(bed: &Bed) -> Result<()> {
    let options = ["--fault", "kill=self if at=completion,nth=20"];
    for ended in pingpong(bed, "killed", &format!("-g 0 {PINGPONG}"), &options, &[])? {
        ensure!(!ended.ok(), "{}", ended.describe());
    }
    let [client, server] = captures(bed, "killed")?;
    let most = client.len().max(server.len());
    ensure!((40..1000).contains(&most), "{} and {} packets", client.len(), server.len());
    Ok(())
}

/// Both ends of rping go on, and no rule stays.
fn running(bed: &Bed) -> Result<()> {
    let (server, client) = rping(bed)?;
    wait("two programs", || Ok(ferroce(bed, "fault show")?.output.matches("faults none").count() == 2))?;
    let file = file_of(bed, "running");
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.arg("capture").arg(&file).args(["--ring", "1"]);
    let capture = Job::start(command, &bed.logs.path("ferroce capture"), PATIENCE)?;
    wait("packets of both programs", || {
        let shown = ferroce(bed, "fault show")?.output;
        Ok(shown.matches("matched: capture").count() == 2 && !shown.contains("never hit"))
    })?;
    let again = ferroce(bed, "capture other.pcapng")?;
    ensure!(!again.ok() && again.output.contains("another capture"), "{}", again.describe());
    capture.signal(Signal::SIGINT);
    let ended = capture.wait()?;
    ensure!(ended.ok(), "{}", ended.describe());
    let shown = ferroce(bed, "fault show")?.output;
    ensure!(shown.matches("faults none").count() == 2, "{shown}");
    let packets = seen(bed, &file)?;
    let processes: BTreeSet<&str> =
        packets.iter().filter_map(|one| one.comment.split(" qp ").next()).collect();
    ensure!(processes.len() == 2, "{processes:?}");
    let left = fs::read_dir(&bed.logs.0)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".capture running"));
    ensure!(left.count() == 0, "the folder of the capture is still there");
    drop((server, client));
    Ok(())
}

fn page_of(bed: &Bed) -> Result<PathBuf> {
    let page = bed.logs.0.join("capture.html");
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.args(["top", "--html"]).arg(&page).arg(bed.logs.0.join("capture filter client.pcapng"));
    let ended = job::run(command, &bed.logs.path("top --html"), PATIENCE)?;
    ensure!(ended.ok(), "{}", ended.describe());
    Ok(page)
}

/// The page has the packets with those that came twice; what is no capture is refused.
fn page(bed: &Bed) -> Result<()> {
    let text = fs::read_to_string(page_of(bed)?)?;
    let (_, data) = text.split_once("id=\"data\">").context("no data")?;
    let (data, _) = data.split_once("</script>").context("no end of the data")?;
    let data: serde_json::Value = serde_json::from_str(data)?;
    let packets = data["packets"].as_array().context("no packets")?;
    let psns: BTreeSet<Option<u64>> = packets.iter().map(|packet| packet[4].as_u64()).collect();
    ensure!(psns.len() == PACKETS && packets.len() > PACKETS, "{} of {} packets", psns.len(), packets.len());
    ensure!(packets.iter().all(|packet| packet[1] == 1 && packet[2] == "send"), "{data}");
    let refused = ferroce(bed, "top --html page.html /etc/hostname")?;
    ensure!(
        !refused.ok() && refused.output.contains("not a file of `ferroce capture`"),
        "{}",
        refused.describe()
    );
    Ok(())
}

/// The page's script runs to its end: the table has a row for the queue pair.
fn shown(bed: &Bed, browser: &Path) -> Result<()> {
    let page = page_of(bed)?;
    let profile = bed.logs.0.join("browser");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(format!("file://{}", page.display()));
    let ended = job::run(command, &bed.logs.path("browser"), Duration::from_secs(120));
    fs::remove_dir_all(&profile).ok();
    let ended = ended?;
    let row = ended.output.contains("<tr><td>ibv_rc_pingpong (PID ");
    ensure!(row && ended.output.contains(&format!("<td>{PACKETS}</td>")), "{}", ended.describe());
    Ok(())
}
