//! `ferroce run --capture` and `ferroce capture`: packets of programs in one file for Wireshark.
//!
//! Each process writes the packets of its queue pairs to files in a folder, by the act `capture` of its plan
//! of faults. At the end they become one file, in order of time.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ferroce_fault::pcapng::Captured;
use ferroce_fault::{Plan, pcapng};
use ferroce_ipc::{FaultOrder, LeaseEntry};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::args::CaptureArgs;
use crate::broker::Observer;
use crate::fault;
use crate::usage::Usage;

/// Time between two looks whether the captured programs still run.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two looks for children that ended.
const STEP: Duration = Duration::from_millis(20);

/// A capture under way. Its folder goes with it, unless the packets could not be written to the file.
pub struct Capture {
    file: PathBuf,
    folder: PathBuf,
    /// The part of a plan that captures.
    pub rules: String,
}

impl Drop for Capture {
    fn drop(&mut self) {
        let has_packets = |entry: fs::DirEntry| entry.metadata().is_ok_and(|of_file| of_file.len() > 0);
        if fs::read_dir(&self.folder)
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(has_packets)))
        {
            eprintln!("ferroce: the packets of each process are in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Capture {
    /// Makes a private folder beside `file`, and `file` itself, empty.
    pub fn begin(file: &Path, filter: Option<&str>, ring: u32) -> Result<Self> {
        let file = std::path::absolute(file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let folder = file.with_file_name(format!(".{name}.{}", std::process::id()));
        let place = folder.to_str().filter(|place| !place.contains([';', '\n', '#']));
        let place =
            place.context("a capture beside this file needs a path in UTF-8 without ; # and line ends")?;
        let terms = filter.map_or_else(String::new, |terms| format!(" if {terms}"));
        let rules = format!("capture={place},{ring}m\ncapture{terms}");
        let plan: Plan =
            rules.parse().map_err(|error| Usage(format!("the filter of the capture: {error}")))?;
        let wanted = "a filter is a list of terms for packets of queue pairs, such as qp=0,dir=rx";
        let right = !terms.contains([';', '\n', '#']) && plan.for_mads().is_none();
        ensure!(right, Usage(wanted.to_owned()));
        File::create(&file).with_context(|| file.display().to_string())?;
        DirBuilder::new().mode(0o700).create(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { file, folder, rules })
    }

    /// Writes the file.
    fn finish(&self) -> Result<()> {
        let mut sources = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let mut source = Source::new(File::open(entry?.path())?);
            if source.advance()? {
                sources.push(source);
            }
        }
        let merged = create(&self.file).and_then(|mut out| merge(sources, &mut out));
        let count = merged.with_context(|| self.file.display().to_string())?;
        fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        eprintln!("ferroce: {count} packets in {}", self.file.display());
        Ok(())
    }

    /// Runs a program, waits for it and those that it started, and writes the file. The exit status is that
    /// of the program.
    pub fn run(&self, command: Command) -> ExitCode {
        let name = command.get_program().to_string_lossy().into_owned();
        let status = to_the_end(command).unwrap_or_else(|error| {
            eprintln!("ferroce: {name}: {error}");
            if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
        });
        match self.finish() {
            Ok(()) => ExitCode::from(status),
            Err(error) => {
                eprintln!("ferroce: {error:#}");
                ExitCode::from(if status == 0 { 1 } else { status })
            }
        }
    }
}

/// Receives the signals by which a user ends a program, from now on.
fn signals() -> Result<Receiver<Signal>, Errno> {
    let (sender, signals) = mpsc::channel();
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP]);
    ends.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = ends.wait()
            && sender.send(signal).is_ok()
        {}
    });
    Ok(signals)
}

/// Runs the program until it and the processes that it started have ended; its exit status. A signal after
/// the end of the program ends the wait for the others.
fn to_the_end(mut command: Command) -> io::Result<u8> {
    prctl::set_child_subreaper(true)?;
    // The program starts with the signals unblocked.
    let child = Pid::from_raw(command.spawn()?.id() as i32);
    let signals = signals()?;
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => ended = Some(code as u8),
            // As shells have it.
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => ended = Some(128 + signal as u8),
            Ok(WaitStatus::StillAlive) => match (signals.recv_timeout(STEP), ended) {
                (Ok(_), Some(status)) => return Ok(status),
                // The terminal sends the others to the program as well.
                (Ok(signal @ (Signal::SIGTERM | Signal::SIGHUP)), None) => _ = kill(child, signal),
                _ => {}
            },
            Ok(_) => {}
            Err(_) => return ended.ok_or_else(|| ErrorKind::Interrupted.into()),
        }
    }
}

/// `ferroce capture`: captures programs that run, until they end, the time is over or a signal comes.
pub fn run(args: &CaptureArgs) -> Result<()> {
    let mut broker = Observer::without_view()?;
    let (programs, unknown) = fault::chosen(broker.status()?.programs, &args.pid);
    if let Some(sentence) = unknown.into_iter().next() {
        bail!(sentence);
    }
    ensure!(!programs.is_empty(), "no program of this user has a device open: use `ferroce run --capture`");
    for (program, answer) in programs.iter().zip(broker.order(&programs, &FaultOrder::Show)?) {
        let (pid, has_rules) = (program.pid, answer.is_ok_and(|report| !report.rules.is_empty()));
        ensure!(
            !has_rules,
            "process {pid} has rules of faults or another capture: end them by `ferroce fault clear --pid {pid}`"
        );
    }
    let capture = Capture::begin(&args.file, args.filter.as_deref(), args.ring)?;
    let signals = signals()?;
    let order = FaultOrder::Apply { rules: capture.rules.clone(), seed: None };
    let (mut captured, mut refused) = (Vec::new(), None);
    // Some may capture already if the order fails.
    let answers = broker.order(&programs, &order).inspect_err(|_| {
        let _ = Observer::without_view().and_then(|mut other| other.order(&programs, &FaultOrder::Clear));
    })?;
    for (program, answer) in programs.into_iter().zip(answers) {
        match answer {
            Ok(_) => captured.push(program),
            Err(refusal) => refused = Some(refusal.sentence),
        }
    }
    let refused = refused.filter(|_| captured.is_empty() || !args.pid.is_empty());
    let done = match refused {
        Some(sentence) => Err(anyhow!(sentence)),
        None => until_the_end(&mut broker, &captured, args.seconds, &signals),
    };
    // Programs that ended take no order.
    let cleared = broker.order(&captured, &FaultOrder::Clear);
    capture.finish()?;
    done.and(cleared.map(drop))
}

fn until_the_end(
    broker: &mut Observer,
    captured: &[LeaseEntry],
    seconds: Option<Duration>,
    signals: &Receiver<Signal>,
) -> Result<()> {
    let pids: Vec<String> = captured.iter().map(|program| program.pid.to_string()).collect();
    eprintln!("ferroce: capturing {}; Ctrl-C ends it", pids.join(", "));
    let end = seconds.map(|seconds| Instant::now() + seconds);
    loop {
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()).min(LOOK));
        let over = left.is_zero() || signals.recv_timeout(left).is_ok();
        let programs = broker.status()?.programs;
        if over || !captured.iter().any(|one| programs.iter().any(|program| program.pid == one.pid)) {
            return Ok(());
        }
    }
}

/// Creates or replaces a file, and writes its head.
pub fn create(file: &Path) -> io::Result<BufWriter<File>> {
    let system = rustix::system::uname();
    let system = [system.sysname(), system.release()].map(|text| text.to_string_lossy().into_owned());
    let mut out = BufWriter::new(File::create(file)?);
    out.write_all(&pcapng::head(concat!("ferroce ", env!("CARGO_PKG_VERSION")), &system.join(" ")))?;
    Ok(out)
}

/// A file of a process, or a whole capture, with its next packet.
pub struct Source<R> {
    from: BufReader<R>,
    block: Vec<u8>,
    nanos: u64,
}

impl<R: Read> Source<R> {
    pub fn new(from: R) -> Self {
        Self { from: BufReader::new(from), block: Vec::new(), nanos: 0 }
    }

    /// Reads the head of a capture; `false` if ferroce did not write it.
    pub fn is_ours(&mut self) -> io::Result<bool> {
        Ok(self.next_block()? && self.block.windows(8).any(|part| part == b"ferroce "))
    }

    /// The packet that was read.
    pub fn packet(&self) -> Option<Captured<'_>> {
        pcapng::packet(&self.block)
    }

    /// Reads the next packet; `false` at the end.
    pub fn advance(&mut self) -> io::Result<bool> {
        while self.next_block()? {
            if let Some(Captured { nanos, .. }) = self.packet() {
                self.nanos = nanos;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the next block. One that its process could not finish is the end.
    fn next_block(&mut self) -> io::Result<bool> {
        let mut start = [0; 8];
        let mut fill = |part: &mut [u8]| match self.from.read_exact(part) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true),
        };
        if !fill(&mut start)? {
            return Ok(false);
        }
        let Some(len) = pcapng::block_len(&start) else { return Ok(false) };
        self.block.resize(len, 0);
        self.block[..8].copy_from_slice(&start);
        fill(&mut self.block[8..])
    }
}

/// Writes the packets of all sources in order of time. Returns their number.
fn merge<R: Read>(mut sources: Vec<Source<R>>, out: &mut impl Write) -> io::Result<u64> {
    let mut count = 0;
    while let Some((index, source)) = sources.iter_mut().enumerate().min_by_key(|(_, source)| source.nanos) {
        out.write_all(&source.block)?;
        count += 1;
        if !source.advance()? {
            sources.swap_remove(index);
        }
    }
    out.flush()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use ferroce_fault::Dir;
    use ferroce_fault::pcapng::Link;

    use super::*;

    fn blocks(times: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for nanos in times {
            let (link, octets) = (Link::Ip, &[1, 2, 3][..]);
            pcapng::put(
                &mut out,
                &Captured { nanos: *nanos, link, dir: Some(Dir::Rx), octets, comment: b"c" },
            );
        }
        out
    }

    #[test]
    fn packets_of_all_files_are_in_order_and_a_cut_one_is_left_out() {
        let (one, mut other) = (blocks(&[10, 30, 50]), blocks(&[20, 40, 60]));
        other.truncate(other.len() - 1);
        let mut sources: Vec<_> = [&one[..], &other, &[]].into_iter().map(Source::new).collect();
        sources.retain_mut(|source| source.advance().unwrap());
        let mut out = Vec::new();
        assert_eq!(merge(sources, &mut out).unwrap(), 5);
        let (mut times, mut rest) = (Vec::new(), &out[..]);
        while let Some(start) = rest.first_chunk() {
            let (block, behind) = rest.split_at(pcapng::block_len(start).unwrap());
            times.extend(pcapng::packet(block).map(|packet| packet.nanos));
            rest = behind;
        }
        assert_eq!(times, [10, 20, 30, 40, 50]);
    }

    #[test]
    fn a_filter_is_a_list_of_terms_and_nothing_else() {
        let file = std::env::temp_dir().join(format!("ferroce-capture-{}.pcapng", std::process::id()));
        let begin = |filter: Option<&str>| Capture::begin(&file, filter, 8);
        for wrong in ["qp=0; drop", "colour=red", "op=req", "qp=0\nlog=x", ""] {
            assert!(begin(Some(wrong)).err().unwrap().is::<Usage>(), "{wrong}");
            assert!(!file.exists(), "{wrong}");
        }
        let capture = begin(Some("qp=0,op=send|write")).unwrap();
        let folder = capture.folder.clone();
        assert!(folder.is_dir() && capture.rules.parse::<Plan>().unwrap().only_captures());
        drop(capture);
        assert!(!folder.exists() && file.exists());
        fs::remove_file(file).unwrap();
    }
}
