//! `ferroce explain`: why work requests failed, from the flight recorders of programs.

mod file;
mod story;

use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroce_ipc::ledger::LedgerReader;
use ferroce_ipc::ledger::recorder::{Clocks, Recording};

use crate::args::Style;
use crate::broker::Observer;
use story::{Peers, Story};

/// A program and what it recorded.
struct Program {
    /// The process id as ferroced sees it, or as the program knew it.
    pid: u32,
    own_pid: u32,
    name: String,
    ended: bool,
    clocks: Clocks,
    /// Names of its devices, by block.
    devices: Vec<(usize, String)>,
    recordings: Vec<Recording>,
}

impl Program {
    /// `None` if its ledger cannot be read.
    fn read(pid: u32, ended: bool, ledger: &LedgerReader) -> Option<Self> {
        let (own, name) = ledger.program().ok()?;
        let devices = ledger.devices().ok()?.into_iter().map(|device| (device.block, device.name)).collect();
        Some(Self {
            pid: if pid == 0 { own } else { pid },
            own_pid: own,
            name,
            ended,
            clocks: ledger.clocks().ok()?,
            devices,
            recordings: ledger.recordings().ok()?,
        })
    }
}

/// Prints why work requests of a program failed, or of all programs. `of` is a process id, or a file: a core
/// dump or what `save` has written.
pub fn run(of: Option<&str>, all: bool, save: Option<&Path>, style: Style) -> Result<()> {
    let pid = of.and_then(|word| word.parse::<u32>().ok());
    let mut programs = Vec::new();
    if let (Some(path), None) = (of, pid) {
        if save.is_some() {
            bail!("--save needs the process id of a program that runs, or has ended lately");
        }
        let ledger = file::open(Path::new(path))?;
        programs.extend(Program::read(0, true, &ledger));
    } else {
        let mut broker = Observer::of_running()
            .context("no ferroced runs here, so the recordings of ended programs are gone as well")?;
        let live = broker.ledgers()?.into_iter().map(|(program, ledger)| (program.pid, false, ledger));
        let ended = broker.ended_ledgers()?.into_iter().map(|(program, ledger)| (program.pid, true, ledger));
        let ledgers: Vec<_> = live.chain(ended).collect();
        if let Some(path) = save {
            let is_it = |(of, _, ledger): &&(u32, bool, LedgerReader)| {
                Some(*of) == pid || ledger.program().is_ok_and(|(own, _)| Some(own) == pid)
            };
            let Some((.., ledger)) = ledgers.iter().find(is_it) else {
                bail!("--save needs the process id of a program that runs, or has ended lately");
            };
            return file::save(ledger, path);
        }
        programs
            .extend(ledgers.iter().filter_map(|(pid, ended, ledger)| Program::read(*pid, *ended, ledger)));
    }
    // The library names the process id that it knows, which another PID namespace has for other processes.
    let is_asked = |program: &&Program| pid.is_none_or(|pid| [program.pid, program.own_pid].contains(&pid));
    let asked: Vec<&Program> = programs.iter().filter(is_asked).collect();
    if let (Some(pid), []) = (pid, &asked[..]) {
        bail!(
            "process {pid} is no program on ferroce that runs, or is among the last that ended; \
             `ferroce status` lists those that run"
        );
    }
    let peers = Peers::of(&programs);
    let mut stories = Vec::new();
    for program in asked {
        let told = program.recordings.iter().filter_map(|recording| Story::of(program, recording));
        stories.extend(told.filter(|story| all || story.has_failed()).map(|story| story.with_peer(&peers)));
    }
    story::print(&stories, style)
}
