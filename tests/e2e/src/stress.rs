//! 64 queue pairs of every service in four processes, all at once, each octet and each completion counted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Bed;
use super::nobody::Nobody;
use ferroce_harness::cc;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;

/// Faults that the program can inject, and a word that its message must contain.
const SPOILS: [(&str, &str); 6] = [
    ("octet", "wrong octet"),
    ("lose", "never |completed before|stands still"),
    ("twice", "a completion of|completed twice|arrived twice"),
    ("order", "completed before|a completion of"),
    ("add", "the common word"),
    ("event", "never |stands still"),
];

/// `tests/programs/stress.c` says what it does: SECONDS THREADS SEED. Two threads in each of the four processes are
/// the eight of a small server; with eight in each, threads outnumber the machine's processors.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let nobody = Nobody::new(bed, "ferroce-stress")?;
    let program = nobody.program(&cc::ours("stress", &bed.dist, &bed.programs)?)?;
    let runs: &[[u32; 3]] =
        if bed.all { &[[60, 2, 1], [30, 8, 2], [5, 3, 3]] } else { &[[4, 2, 1], [4, 8, 2]] };
    for [seconds, threads, seed] in runs {
        let words = format!("{seconds} {threads} {seed}");
        let ended = run(bed, &nobody, &program, &words, *seconds)?;
        checks.check(&words, ended.ok().then_some(()).ok_or_else(|| ended.describe()));
        for line in ended.output.lines().filter(|_| ended.ok()) {
            checks.note(line);
        }
    }
    // The program would see it.
    for (what, sentence) in SPOILS.iter().take(if bed.all { SPOILS.len() } else { 2 }) {
        let ended = run(bed, &nobody, &program, &format!("1 2 4 {what}"), 1)?;
        checks.check(&format!("{what} is noticed"), noticed(&ended, sentence));
    }
    Ok(())
}

fn run(bed: &Bed, nobody: &Nobody<'_>, program: &Path, words: &str, seconds: u32) -> Result<Ended> {
    let mut command = nobody.command(program);
    command.args(["-d", "fr0"]).args(words.split(' '));
    // The program itself gives up after half a minute in which something is missing.
    let limit = Duration::from_secs(u64::from(seconds) + 130);
    job::run(command, &bed.logs.path(&format!("stress {words}")), limit)
}

/// Status 1 and one of the sentences, parted by bars.
fn noticed(ended: &Ended, sentences: &str) -> Result<()> {
    let told = sentences.split('|').any(|sentence| ended.output.contains(sentence));
    ensure!(told && ended.status.is_some_and(|s| s.code() == Some(1)), "{}", ended.describe());
    Ok(())
}
