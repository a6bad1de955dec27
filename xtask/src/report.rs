//! What `cargo xtask test` prints: a line per stage with its time, the reason of each failure and skip, and
//! the closing count.

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
}

impl Checks {
    /// One check passed.
    pub fn pass(&mut self) {
        self.count.passed += 1;
    }

    /// One check failed; `detail` is printed at once, so that a run that is cut off still told why.
    pub fn fail(&mut self, name: &str, detail: &str) {
        self.count.failed += 1;
        println!("  FAIL {name}");
        for line in detail.lines() {
            println!("       {line}");
        }
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
    #[cfg(test)]
    pub fn count(&self) -> Count {
        self.count
    }

    /// The closing line of these checks alone.
    pub fn closing(&self) -> String {
        self.count.closing()
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

/// The whole run.
#[derive(Default)]
pub struct Report {
    count: Count,
    failed_stages: Vec<String>,
}

impl Report {
    /// Runs one stage and prints its line.
    pub fn stage(&mut self, name: &str, body: impl FnOnce(&mut Checks) -> Result<()>) {
        let started = Instant::now();
        let mut checks = Checks::default();
        if let Err(error) = body(&mut checks) {
            checks.fail(name, &format!("{error:#}"));
        }
        self.line(name, &checks, started.elapsed());
        self.count.add(checks.count);
        if checks.count.failed > 0 {
            self.failed_stages.push(name.to_owned());
        }
    }

    /// Runs a stage that prints lines of its own and therefore has none.
    pub fn silent(&mut self, name: &str, body: impl FnOnce(&mut Checks) -> Result<()>) {
        let mut checks = Checks::default();
        if let Err(error) = body(&mut checks) {
            checks.fail(name, &format!("{error:#}"));
        }
        self.count.add(checks.count);
        if checks.count.failed > 0 {
            self.failed_stages.push(name.to_owned());
        }
    }

    fn line(&self, name: &str, checks: &Checks, elapsed: Duration) {
        let Count { passed, failed, skipped } = checks.count;
        let word = match (passed, failed) {
            (_, 1..) => "FAIL",
            (0, 0) if skipped > 0 => "skip",
            _ => "ok",
        };
        println!(
            "{word:<4} {name:<12} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped {:>8.1} s",
            elapsed.as_secs_f32()
        );
        for note in &checks.notes {
            println!("       {note}");
        }
        for skip in &checks.skips {
            println!("     - {skip}");
        }
    }

    /// Prints the closing line; true when nothing failed.
    pub fn close(self) -> bool {
        if !self.failed_stages.is_empty() {
            println!("failed: {}", self.failed_stages.join(", "));
        }
        println!("{}", self.count.closing());
        self.count.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Count;

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
