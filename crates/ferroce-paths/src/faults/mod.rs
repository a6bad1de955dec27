//! Faults on purpose: the plan in `FERROCE_FAULT`, or one that the broker brings.
//!
//! A process has one judge behind one lock, which is taken only while a plan is in force: the packet path
//! reads one flag for each batch. With a plan packets are copied, and hits are written to the log, so figures
//! of speed mean little then. Received packets are judged behind all checks of the wire, whatever way they
//! came, and sent packets behind their transport, before they leave.

mod arrive;
mod capture;
mod depart;
mod mads;
mod order;

pub use arrive::Held;
pub use capture::capture;
pub use depart::Harm;
pub use mads::{given, learn, serve};
pub use order::obey;

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};

use ferroce_client::BrokerClient;
use ferroce_fault::{
    Actions, CompletionFacts, Dir, Facts, Judge, Kind, Plan, RuleCounts, Side, Target, VerbFault,
};
use ferroce_host::thread::Uncancellable;
use ferroce_host::{PerProcess, environment, output};
use ferroce_ipc::{FaultCounts, Known};
use ferroce_wire::{Instant, Packet};
use parking_lot::Mutex;

use crate::clock;
use capture::Capture;
use mads::Mads;

pub use ferroce_fault::Segment;
pub use ferroce_fault::{Moment, Verb, VerbFacts, WcError};

/// The plan of this process from its start.
const VARIABLE: &str = "FERROCE_FAULT";

/// Some rule acts on packets. Another process after a fork has the same plan, unless it is changed there.
static PACKETS: AtomicBool = AtomicBool::new(false);
/// Some rule acts on calls, completions or moments.
static CALLS: AtomicBool = AtomicBool::new(false);
/// A call of the program is to be judged: as [`CALLS`], and until the plan of the environment was looked for.
/// The first call may come before a device is opened.
static VERBS: AtomicBool = AtomicBool::new(true);
/// Grows with each change of the plan: packets that wait by an older one go on.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static STATE: PerProcess<FaultState> = PerProcess::new();

#[derive(Default)]
struct FaultState {
    /// The next queue pair's number by order of creation.
    next_qp: AtomicU32,
    judging: Mutex<Option<Judging>>,
    from_env: OnceLock<Result<(), String>>,
    /// The broker, once this process has a slot.
    broker: OnceLock<Weak<BrokerClient>>,
}

struct Judging {
    judge: Judge,
    /// The rules for management datagrams.
    mads: Mads,
    log: Option<File>,
    capture: Option<Capture>,
}

impl Judging {
    /// Writes new hits to the log.
    #[inline(never)]
    fn write_hits(&mut self) {
        let mut lines = String::new();
        for hit in self.judge.take_hits() {
            let _ = writeln!(lines, "{hit} # {}", self.judge.title(&hit));
        }
        self.write(&lines);
    }

    /// Writes lines to the log, if there is one.
    fn write(&mut self, lines: &str) {
        if let Some(file) = &mut self.log
            && !lines.is_empty()
            && let Err(error) = output::without_signals(|| file.write_all(lines.as_bytes()))
        {
            tracing::error!(%error, "the log of faults cannot be written");
            self.log = None;
        }
    }
}

/// Whether packets are to be judged: the one look for a batch.
#[inline]
pub fn on() -> bool {
    PACKETS.load(Ordering::Relaxed)
}

/// All packets that wait are due.
pub fn release_all() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Whether calls, completions and moments are to be judged.
#[inline]
pub fn calls() -> bool {
    CALLS.load(Ordering::Relaxed)
}

/// The number of the plan in force, for [`Held`].
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A queue pair, as rules name it.
#[derive(Clone, Debug)]
pub struct QpName {
    /// Number of the queue pair in this process, from 0, by order of creation.
    pub qp: u32,
    pub dev: Arc<str>,
}

impl QpName {
    /// The name of a queue pair that is being created.
    pub fn next(dev: &Arc<str>) -> Self {
        Self { qp: STATE.get().next_qp.fetch_add(1, Ordering::Relaxed), dev: Arc::clone(dev) }
    }
}

/// Takes the plan of the environment into force, once in a process.
///
/// # Errors
/// If there is one that cannot be read, or whose log cannot be written: a run without the faults that were
/// asked for would prove nothing.
pub fn start() -> io::Result<()> {
    let state = STATE.get();
    let from_env = || {
        let Some(text) = environment::text(VARIABLE) else { return Ok(()) };
        let plan: Plan = text.parse().map_err(|error| format!("{VARIABLE}: {error}"))?;
        let without = plan.capture.is_some().then(|| Plan { capture: None, ..plan.clone() });
        let applied = apply(plan).or_else(|error| match without {
            // A program is no other one because nobody can look at it: as another user, or elsewhere.
            Some(plan) => {
                output::say(format_args!(
                    "no packets of process {} are captured: {error}",
                    std::process::id()
                ));
                apply(plan)
            }
            None => Err(error),
        });
        applied.map_err(|error| format!("{VARIABLE}: {error}"))
    };
    let begin = || {
        let begun = from_env();
        VERBS.store(CALLS.load(Ordering::SeqCst), Ordering::SeqCst);
        begun
    };
    let started = state.from_env.get_or_init(begin);
    started.clone().map_err(|message| {
        output::say(&message);
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Takes a plan into force in place of the present one. A plan without rules ends all faults.
///
/// # Errors
/// If its log or capture cannot be written.
pub fn apply(plan: Plan) -> io::Result<()> {
    static AT_EXIT: Once = Once::new();
    let log = plan.log.as_deref().map(|path| open_log(path, &plan)).transpose()?;
    let capture = plan.capture.as_ref().map(Capture::create).transpose()?;
    let packets = plan.has(Kind::Packet);
    let calls = plan.has(Kind::Verb) || plan.has(Kind::Completion) || plan.has(Kind::Moment);
    let mut judging = STATE.get().judging.lock();
    if plan.rules.is_empty() {
        *judging = None;
    } else {
        AT_EXIT.call_once(|| {
            // The last handler comes first.
            ferroce_host::process::at_exit(wait_for_report);
            ferroce_host::process::at_exit(report_at_exit);
        });
        let mads = Mads::new(&plan);
        let mut judge = Judge::new(plan);
        if log.is_some() {
            judge.record_hits();
        }
        *judging = Some(Judging { judge, mads, log, capture });
    }
    drop(judging);
    GENERATION.fetch_add(1, Ordering::SeqCst);
    PACKETS.store(packets, Ordering::SeqCst);
    CALLS.store(calls, Ordering::SeqCst);
    VERBS.store(calls, Ordering::SeqCst);
    mads::give();
    Ok(())
}

/// Opens the log, in which the plan's hits follow each other; `%p` in its path becomes the process id.
fn open_log(path: &str, plan: &Plan) -> io::Result<File> {
    let path = path.replace("%p", &std::process::id().to_string());
    let mut options = OpenOptions::new();
    // Not through a link that another user put there, and never a terminal or pipe that makes this wait.
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    options.create(true).append(true).mode(0o600).custom_flags(flags);
    let mut file =
        options.open(&path).map_err(|error| io::Error::new(error.kind(), format!("log={path}: {error}")))?;
    // A line that a full disk does not take is lost, like those that follow.
    let _ = output::without_signals(|| writeln!(file, "seed={}", plan.seed));
    Ok(file)
}

impl FaultState {
    /// Asks the judge, and writes down what it does.
    fn ask<R>(&self, question: impl FnOnce(&mut Judge, Instant) -> R) -> Option<R> {
        let mut judging = self.judging.lock();
        let judging = judging.as_mut()?;
        let answer = question(&mut judging.judge, clock::now());
        if judging.log.is_some() {
            // Writing is a cancellation point, and the caller holds locks.
            let _uncancellable = Uncancellable::new();
            judging.write_hits();
        }
        Some(answer)
    }
}

/// Judges a packet of this queue pair. Its frame is no part of the caller's, below which the packet is
/// delivered or sent: the thread's stack may have 16 KiB.
#[inline(never)]
pub fn judge(
    dir: Dir,
    of: &QpName,
    peer: IpAddr,
    traffic_class: u8,
    packet: &Packet<'_>,
    wire_len: usize,
) -> Actions {
    let side = Side { dir, dev: Some(&of.dev), qp: of.qp, peer };
    let facts = Facts::of(packet, &side, traffic_class, wire_len);
    STATE.get().ask(|judge, now| judge.decide(now, &facts)).unwrap_or_default()
}

/// Judges an FPDU that this queue pair sends.
pub fn judge_segment(of: &QpName, peer: IpAddr, segment: &Segment) -> Actions {
    let side = Side { dir: Dir::Tx, dev: Some(&of.dev), qp: of.qp, peer };
    let Some(facts) = Facts::of_segment(segment, &side) else { return Actions::default() };
    STATE.get().ask(|judge, now| judge.decide(now, &facts)).unwrap_or_default()
}

/// The queue pair begins anew.
pub fn forget(of: &QpName) {
    if on() {
        STATE.get().ask(|judge, _| judge.forget(of.qp));
    }
}

/// Whether calls are to be judged by [`verb`], as far as a look at a flag tells.
#[inline(always)]
pub fn verbs() -> bool {
    VERBS.load(Ordering::Relaxed)
}

/// Judges a call of the program. With a plan that says so it takes longer, and returns the errno with which
/// it fails. Without one it costs a look at a flag, which an empty poll can afford: `facts` are not made
/// then.
#[inline]
pub fn verb<'a>(facts: impl FnOnce() -> VerbFacts<'a>) -> Option<i32> {
    if verbs() { judge_verb(facts) } else { None }
}

#[cold]
#[inline(never)]
fn judge_verb<'a>(facts: impl FnOnce() -> VerbFacts<'a>) -> Option<i32> {
    // The log is written and a stalled call sleeps here, both of which are cancellation points.
    let _uncancellable = Uncancellable::new();
    // An error is that of the device when it is opened.
    start().ok()?;
    let VerbFault { stall, errno } = STATE.get().ask(|judge, now| judge.verb(now, &facts()))?;
    if !stall.is_zero() {
        std::thread::sleep(stall);
    }
    errno
}

/// Judges the completion of the `msg`-th send work request of a queue pair; the error that it is to have
/// instead of success.
pub fn completion(of: &QpName, msg: u64) -> Option<WcError> {
    moment(Moment::Completion, Some(of), Some(msg));
    STATE.get().ask(|judge, now| judge.completion(now, Some(&of.dev), of.qp, msg))?
}

/// librdmacm reports a connection. It does not know the queue pair of each.
pub fn established() {
    moment(Moment::Established, None, None);
}

/// Judges a moment, and kills the process that the plan names.
pub fn moment(at: Moment, of: Option<&QpName>, msg: Option<u64>) {
    if !CALLS.load(Ordering::Relaxed) {
        return;
    }
    let facts = CompletionFacts { at, dev: of.map(|of| &*of.dev), qp: of.map(|of| of.qp), msg };
    let target = STATE.get().ask(|judge, now| judge.moment(now, &facts)).flatten();
    let pid = match target {
        None => return,
        Some(Target::Myself) => {
            report();
            std::process::id() as i32
        }
        Some(Target::Broker) => i32::try_from(ferroce_client::take_process()).unwrap_or(0),
    };
    if let Some(pid) = rustix::process::Pid::from_raw(pid)
        && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL)
    {
        tracing::error!(%error, "the plan of faults cannot kill a process");
    }
}

/// The plan in force and the counts of its rules, one line each; empty without one.
pub fn summary() -> String {
    let Some(judging) = STATE.get().judging.try_lock() else { return String::new() };
    judging.as_ref().map(text_of).unwrap_or_default()
}

fn text_of(judging: &Judging) -> String {
    let judge = &judging.judge;
    if judge.plan().only_captures() {
        return String::new();
    }
    let mut text = format!("faults of process {}, seed {}\n", std::process::id(), judge.plan().seed);
    for rule in judging.counts() {
        let name = if rule.name.is_empty() { String::new() } else { format!("{}: ", rule.name) };
        let _ = writeln!(text, "  {}: {name}{}", rule.outcome(), rule.text);
    }
    if judging.unlogged() > 0 {
        let _ = writeln!(text, "  {} hits are not in the log", judging.unlogged());
    }
    text
}

impl Judging {
    /// The counts of each rule, in the order of the plan.
    fn counts(&self) -> Vec<FaultCounts> {
        let rules = self.judge.counts().into_iter().enumerate();
        let count = |(place, rule): (usize, RuleCounts)| {
            let own = (rule.seen, rule.hits, Known::All);
            let (seen, hits, known) = self.mads.counts(place).unwrap_or(own);
            let name = if rule.title == rule.text { String::new() } else { rule.title };
            FaultCounts { name, text: rule.text, seen, hits, known }
        };
        rules.map(count).collect()
    }

    /// Hits that the log does not have.
    fn unlogged(&self) -> u64 {
        self.judge.forgotten() + self.mads.unlogged()
    }
}

fn report() {
    mads::collect();
    let text = summary();
    if !text.is_empty() {
        output::say(text.trim_end());
    }
}

/// Held while the report of the end is made.
static REPORTING: Mutex<()> = Mutex::new(());

extern "C" fn report_at_exit() {
    let _reporting = REPORTING.lock();
    // A bug here is no reason to abort an exit.
    drop(std::panic::catch_unwind(report));
}

/// A second thread that calls `exit(3)` meanwhile, as rping's may, does not end the process amid the report:
/// before glibc 2.41 it runs the handlers that are left.
extern "C" fn wait_for_report() {
    drop(REPORTING.try_lock_for(mads::LONGEST_REPORT));
}
