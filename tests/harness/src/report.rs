//! The output of `cargo xtask test`: a line per stage with its time, the reason of each failure and skip, and
//! the closing count.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::Result;

/// How many checks passed, failed and were skipped.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// Did what they should.
    pub passed: u32,
    /// Did not.
    pub failed: u32,
    /// Could not be tried here; the reason was printed.
    pub skipped: u32,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The closing line, alone on a line.
    pub fn closing(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Reads a closing line back, from the child that runs the end-to-end stages.
    pub fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.trim().split(", ").zip(["passed", "failed", "skipped"]).map(|(part, word)| {
            let (number, name) = part.split_once(' ')?;
            (name == word).then(|| number.parse().ok()).flatten()
        });
        let count = Self { passed: numbers.next()??, failed: numbers.next()??, skipped: numbers.next()?? };
        Some(count)
    }
}

/// The checks of one stage.
#[derive(Default)]
pub struct Checks {
    count: Count,
    skips: Vec<String>,
    notes: Vec<String>,
    /// The words before a failed check, if it is not "FAIL": the failure may be forgiven.
    aside: Option<&'static str>,
}

impl Checks {
    /// One check passed.
    pub fn pass(&mut self) {
        self.count.passed += 1;
    }

    /// One check failed; `detail` is printed at once, so that a run that is cut off still told why.
    pub fn fail(&mut self, name: &str, detail: &str) {
        self.count.failed += 1;
        let mut text = format!("  {} {name}\n", self.aside.unwrap_or("FAIL"));
        detail.lines().for_each(|line| text += &format!("       {line}\n"));
        // In one piece: other stages may run at the same time.
        print!("{text}");
    }

    /// Checks whose failures do not count as such; `words` are printed before each.
    pub fn aside(words: &'static str) -> Self {
        Self { aside: Some(words), ..Self::default() }
    }

    /// Does `body`, and if a check of it fails, prints why and does it once more. Only the second time counts then. For an other end
    /// that is not ours and whose reasons cannot be seen; `repeats` is the number of times that this may happen.
    pub fn twice<T>(&mut self, repeats: &Cell<u32>, body: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        let mut first = if repeats.get() > 0 { Self::aside("once more:") } else { Self::default() };
        let result = body(&mut first)?;
        if first.good() || repeats.get() == 0 {
            self.count.add(first.count);
            self.skips.append(&mut first.skips);
            self.notes.append(&mut first.notes);
            return Ok(result);
        }
        repeats.set(repeats.get() - 1);
        body(self)
    }

    /// One check cannot be tried here.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.count.skipped += 1;
        self.skips.push(format!("{name}: {reason}"));
    }

    /// A figure or remark printed under the stage's line.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Passes when `result` is Ok, else fails with its text.
    pub fn check(&mut self, name: &str, result: Result<(), impl std::fmt::Display>) {
        match result {
            Ok(()) => self.pass(),
            Err(why) => self.fail(name, &format!("{why:#}")),
        }
    }

    /// The count so far.
    pub fn count(&self) -> Count {
        self.count
    }

    /// Nothing failed.
    pub fn good(&self) -> bool {
        self.count.failed == 0
    }

    /// Takes over the counts of a child process that printed its own lines.
    pub fn absorb(&mut self, count: Count) {
        self.count.add(count);
    }
}

/// A stage that has run.
pub struct Stage {
    name: String,
    checks: Checks,
    elapsed: Duration,
}

impl Stage {
    /// Runs a stage; before it, says on standard error that it has begun, because some take many minutes.
    pub fn run(name: &str, body: impl FnOnce(&mut Checks) -> Result<()>) -> Self {
        let started = Instant::now();
        eprintln!("     {name} …");
        let mut checks = Checks::default();
        if let Err(error) = body(&mut checks) {
            checks.fail(name, &format!("{error:#}"));
        }
        Self { name: name.to_owned(), checks, elapsed: started.elapsed() }
    }

    /// Runs a stage that prints lines of its own and therefore has none.
    pub fn silent(name: &str, body: impl FnOnce(&mut Checks) -> Result<()>) -> Told {
        Told(Self::run(name, body))
    }

    /// Prints the line of the stage.
    pub fn tell(self) -> Told {
        let Self { name, checks, elapsed } = &self;
        let Count { passed, failed, skipped } = checks.count;
        let word = match (passed, failed) {
            (_, 1..) => "FAIL",
            (0, 0) if skipped > 0 => "skip",
            _ => "ok",
        };
        let mut text = format!(
            "{word:<4} {name:<12} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped {:>8.1} s\n",
            elapsed.as_secs_f32()
        );
        checks.notes.iter().for_each(|note| text += &format!("       {note}\n"));
        checks.skips.iter().for_each(|skip| text += &format!("     - {skip}\n"));
        // In one piece: other stages may run at the same time.
        print!("{text}");
        Told(self)
    }
}

/// A stage whose line was printed.
pub struct Told(Stage);

/// The whole run.
#[derive(Default)]
pub struct Report {
    count: Count,
    failed_stages: Vec<String>,
    strict: bool,
}

impl Report {
    /// A run in which a skipped check is a failure, if `strict`.
    pub fn strict(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Runs one stage and prints its line.
    pub fn stage(&mut self, name: &str, body: impl FnOnce(&mut Checks) -> Result<()>) {
        self.add(Stage::run(name, body).tell());
    }

    /// Counts a stage that has run.
    pub fn add(&mut self, Told(stage): Told) {
        self.count.add(stage.checks.count);
        if stage.checks.count.failed > 0 {
            self.failed_stages.push(stage.name);
        }
    }

    /// Prints the closing line; true when nothing failed and, in a strict run, nothing was skipped.
    pub fn close(self) -> bool {
        if !self.failed_stages.is_empty() {
            println!("failed: {}", self.failed_stages.join(", "));
        }
        println!("{}", self.count.closing());
        self.count.failed == 0 && !(self.strict && self.count.skipped > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{Checks, Count, Report};

    #[test]
    fn a_check_may_be_forgiven_once_and_not_for_ever() {
        let repeats = Cell::new(1);
        for (bad, failed) in [(1, 0), (2, 1)] {
            let (mut checks, left) = (Checks::default(), Cell::new(bad));
            let mut run = || {
                checks.twice(&repeats, |checks| {
                    match left.get() {
                        0 => checks.pass(),
                        bad => {
                            left.set(bad - 1);
                            checks.fail("a check of a test", "");
                        }
                    }
                    Ok(())
                })
            };
            run().unwrap();
            assert_eq!(checks.count().failed, failed);
        }
    }

    #[test]
    fn a_skipped_check_fails_a_strict_run() {
        for strict in [false, true] {
            let mut report = Report::strict(strict);
            report.stage("a", |checks| {
                checks.skip("b", "it is not here");
                Ok(())
            });
            assert_eq!(report.close(), !strict);
        }
    }

    #[test]
    fn the_closing_line_reads_back() {
        let count = Count { passed: 12, failed: 0, skipped: 3 };
        assert_eq!(count.closing(), "12 passed, 0 failed, 3 skipped");
        assert_eq!(Count::parse(&count.closing()), Some(count));
        for bad in ["", "12 passed", "12 failed, 0 passed, 3 skipped", "x passed, 0 failed, 0 skipped"] {
            assert_eq!(Count::parse(bad), None, "{bad}");
        }
    }
}
