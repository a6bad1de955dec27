//! Captures of iWARP, judged by tshark and by the checker `tests/reference/iwarp.py`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use ferroce_harness::debian::Programs;
use ferroce_harness::exchange::Logs;
use ferroce_harness::job::{self, Job};
use ferroce_harness::tree;

/// The protocols that tshark guesses in the payload of short Sends, and then calls malformed.
const GUESSES: [&str; 2] = ["smb_direct", "rpcordma"];

/// The time that dumpcap needs to write out the last packets.
const TAIL: Duration = Duration::from_millis(700);

/// Mebibytes that the kernel keeps for dumpcap. With its own 2 dumpcap lost packets of lo while the machine was busy.
const BUFFER: &str = "64";
/// A capture ends with its rows, each of which has a limit of its own.
const LONGEST: Duration = Duration::from_secs(1800);
/// How often a run is captured if dumpcap loses packets.
const CAPTURES: u32 = 3;

/// Captures TCP on a network device, by commands behind `front`, while `run` runs, which it does again if dumpcap lost packets. The file,
/// or a sentence if a capture of every packet cannot be had here.
pub fn capture(
    front: &dyn Fn() -> Command,
    programs: &Programs,
    logs: &Logs,
    name: &str,
    netdev: &str,
    run: &mut dyn FnMut() -> Result<()>,
) -> Result<Result<PathBuf, String>> {
    let mut why = String::new();
    for _ in 0..CAPTURES {
        let capture = match Capture::start(front(), programs, logs, name, netdev)? {
            Ok(capture) => capture,
            Err(why) => return Ok(Err(why)),
        };
        run()?;
        match capture.end()? {
            Ok(file) => return Ok(Ok(file)),
            Err(lost) => why = lost,
        }
    }
    Ok(Err(format!("{why}, as in every of {CAPTURES} captures")))
}

/// A capture under way.
struct Capture {
    job: Job,
    file: PathBuf,
}

impl Capture {
    /// Captures TCP on a network device behind the front of a command; a sentence if that cannot be had here.
    fn start(
        mut front: Command,
        programs: &Programs,
        logs: &Logs,
        name: &str,
        netdev: &str,
    ) -> Result<Result<Self, String>> {
        let Some(dumpcap) = programs.find("dumpcap") else {
            return Ok(Err("dumpcap is not here".to_owned()));
        };
        std::fs::create_dir_all(&logs.0)?;
        let file = logs.0.join(name).with_extension("pcap");
        std::fs::remove_file(&file).ok();
        front.arg(dumpcap).args(["-q", "-P", "-B", BUFFER, "-i", netdev, "-f", "tcp", "-w"]).arg(&file);
        let mut job = Job::start(front, &logs.path(&format!("dumpcap {name}")), LONGEST)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        // The file's header is written when the capture runs.
        while std::fs::metadata(&file).map_or(0, |m| m.len()) < 24 {
            if job.ended() || Instant::now() > deadline {
                return Ok(Err(format!("no capture here: {}", job.output().trim())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Ok(Self { job, file }))
    }

    /// Ends it; the file, or a sentence if dumpcap lost packets: their absence would look like holes in the connections.
    fn end(self) -> Result<Result<PathBuf, String>> {
        std::thread::sleep(TAIL);
        self.job.signal(Signal::SIGINT);
        let ended = self.job.wait()?;
        let dropped = dropped(&ended.output)
            .with_context(|| format!("dumpcap does not tell what it lost: {}", ended.describe()))?;
        Ok(if dropped == 0 { Ok(self.file) } else { Err(format!("dumpcap lost {dropped} packets")) })
    }
}

/// The packets that dumpcap says it lost: `Packets received/dropped on interface 'lo': 301/0 (pcap:0/…) (100.0%)`.
fn dropped(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("received/dropped on interface"))?;
    let (_, counts) = line.rsplit_once("': ")?;
    counts.split(' ').next()?.split_once('/')?.1.parse().ok()
}

/// The connections that a capture must show.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Connections, at least.
    pub connections: usize,
    /// Whether each of them uses the CRC.
    pub crc: bool,
}

/// Judges a capture without loss; words for a note.
pub fn judge(programs: &Programs, file: &Path, wanted: Wanted) -> Result<String> {
    let bad = tshark(programs, file, "_ws.malformed || _ws.expert.severity >= \"Error\"", &[])?;
    ensure!(bad.is_empty(), "tshark finds malformed:\n{bad}");
    let replies = tshark(
        programs,
        file,
        "iwarp_mpa.rep",
        &["-T", "fields", "-e", "iwarp_mpa.crc_flag", "-e", "iwarp_mpa.rev", "-e", "iwarp_mpa.marker_flag"],
    )?;
    let count = replies.lines().count();
    ensure!(count >= wanted.connections, "{count} MPA replies, wanted {} at least", wanted.connections);
    for reply in replies.lines() {
        // Older versions of tshark print flags as 0 and 1, newer ones as False and True.
        let flags: Vec<bool> = reply.split('\t').map(|flag| matches!(flag, "1" | "True")).collect();
        ensure!(flags.first() == Some(&wanted.crc), "CRC, revision, markers of a reply: {reply}");
        ensure!(flags.last() == Some(&false), "a reply asks for markers: {reply}");
    }
    let messages = tshark(programs, file, "iwarp_ddp", &[])?;
    ensure!(!messages.is_empty(), "tshark sees no DDP segment");
    let second = checker(programs, &tree::reference("iwarp.py"), file)?;
    let field = if wanted.crc { "crc_ok=" } else { "crc_zero=" };
    ensure!(second.contains(field), "no {field} in {second}");
    Ok(second)
}

/// The packets that a display filter leaves.
pub fn tshark(programs: &Programs, file: &Path, filter: &str, options: &[&str]) -> Result<String> {
    let mut command = Command::new(programs.find("tshark").context("tshark is missing")?);
    command.args(GUESSES.iter().flat_map(|guess| ["--disable-protocol", *guess]));
    // A veth between two processors may overtake; tshark would take the late segment for one that overlaps.
    command.args(["-o", "tcp.reassemble_out_of_order:TRUE"]);
    command.arg("-r").arg(file).args(["-Y", filter]).args(options);
    if let Some(dirs) = programs.libraries() {
        command.env("LD_LIBRARY_PATH", dirs);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The second decoder: numbers, offsets, answers of Reads, CRC.
fn checker(programs: &Programs, script: &Path, file: &Path) -> Result<String> {
    let mut command = Command::new(programs.find("python3").context("python3 is missing")?);
    command.arg(script).arg(file);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {text}", job::line(&command));
    Ok(text.split(" req[").next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_packets_are_told_from_holes() {
        let line = |counts| format!("File: x\nPackets received/dropped on interface 'lo': {counts}\n");
        let whole = line("301/0 (pcap:0/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)");
        assert_eq!(dropped(&whole), Some(0));
        assert_eq!(dropped(&line("2/40 (pcap:40/dumpcap:0/flushed:0/ps_ifdrop:0) (4.8%)")), Some(40));
        assert_eq!(dropped("Packets captured: 301\n"), None);
        assert_eq!(dropped(&line("?")), None);
    }

    #[test]
    fn the_captures_of_siw_are_judged_good_and_have_no_crc() {
        let file = tree::reference("siw_rping.pcap");
        let programs = Programs::default();
        if programs.find("tshark").is_none() || programs.find("python3").is_none() {
            eprintln!("skipped: no tshark or no python3");
            return;
        }
        let good = judge(&programs, &file, Wanted { connections: 1, crc: false }).unwrap();
        assert!(good.contains(": ok ") && good.contains("crc_zero="), "{good}");
        assert!(judge(&programs, &file, Wanted { connections: 1, crc: true }).is_err());
        assert!(judge(&programs, &file, Wanted { connections: 2, crc: false }).is_err());
    }
}
