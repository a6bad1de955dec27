//! `ferroce explain`: why work requests failed, from the flight recorders of programs.

mod file;
mod story;

use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroce_ipc::ledger::LedgerReader;
use ferroce_ipc::ledger::recorder::{Clocks, Recording};

use crate::args::Style;
use crate::broker::Observer;
use story::Story;

/// A program and what it recorded.
struct Program {
    pid: u32,
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
        let ledger = file::open(Path::new(path))?;
        programs.extend(Program::read(0, true, &ledger));
    } else {
        let mut broker = Observer::of_running()
            .context("no ferroced runs here, so the recordings of ended programs are gone as well")?;
        let live = broker.ledgers()?.into_iter().map(|(program, ledger)| (program.pid, false, ledger));
        let ended = broker.ended_ledgers()?.into_iter().map(|(program, ledger)| (program.pid, true, ledger));
        let ledgers: Vec<_> = live.chain(ended).collect();
        if let Some(path) = save {
            let Some((.., ledger)) = ledgers.iter().find(|(of, ..)| Some(*of) == pid) else {
                bail!("--save needs the process id of a program that runs, or has ended lately");
            };
            return file::save(ledger, path);
        }
        programs
            .extend(ledgers.iter().filter_map(|(pid, ended, ledger)| Program::read(*pid, *ended, ledger)));
    }
    let is_asked = |program: &&Program| pid.is_none_or(|pid| pid == program.pid);
    let asked: Vec<&Program> = programs.iter().filter(is_asked).collect();
    if let (Some(pid), []) = (pid, &asked[..]) {
        bail!(
            "process {pid} is no program on ferroce that runs, or is among the last that ended; \
             `ferroce status` lists those that run"
        );
    }
    let mut stories = Vec::new();
    for program in asked {
        for recording in &program.recordings {
            let story = Story::of(program, recording, &programs);
            stories.extend(story.filter(|story| all || story.has_failed()));
        }
    }
    story::print(&stories, style)
}
