//! The result that is expected, and the verdict on another one.

use serde::{Serialize, Serializer};

use super::runner::Ended;
use crate::args::Compare;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Same,
    Refused,
    Silent,
    Crash,
    Hang,
    Leak,
    Wrong,
    NotRun,
}

impl Verdict {
    pub const ALL: [Self; 8] = [
        Self::Same,
        Self::Refused,
        Self::Silent,
        Self::Crash,
        Self::Hang,
        Self::Leak,
        Self::Wrong,
        Self::NotRun,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::Leak => "leak",
            Self::Wrong => "wrong",
            Self::NotRun => "not-run",
        }
    }

    pub const fn is_problem(self) -> bool {
        matches!(self, Self::Crash | Self::Hang | Self::Leak | Self::Wrong)
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The status of timeout(1) for a command that did not end.
const TIMED_OUT: i32 = 124;
/// Signals of a program that crashed: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS.
const CRASHES: [i32; 7] = [4, 5, 6, 7, 8, 11, 31];

/// The result of the run without a fault.
pub struct Expected {
    /// The way of comparing; never [`Compare::Auto`].
    pub compare: Compare,
    stdout: Vec<u8>,
    /// Processes are left without a fault as well.
    leaks: bool,
}

impl Expected {
    /// Chooses the way of comparing by two runs without a fault.
    pub fn new(wanted: Compare, first: &Ended, second: &Ended) -> Self {
        let agree = |compare: &Compare| differs(*compare, &first.stdout, &second.stdout).is_none();
        let compare = match wanted {
            Compare::Auto => {
                [Compare::Exact, Compare::Words].into_iter().find(agree).unwrap_or(Compare::Status)
            }
            other => other,
        };
        Self { compare, stdout: first.stdout.clone(), leaks: !first.left.is_empty() }
    }

    /// The verdict on a run with a fault, and a sentence or line about it.
    pub fn judge(&self, ended: &Ended) -> (Verdict, String) {
        let Some(status) = ended.status else {
            return (Verdict::Hang, format!("did not end within {:.1} s", ended.elapsed.as_secs_f64()));
        };
        if let Some(signal) = CRASHES.into_iter().find(|signal| 128 + signal == status) {
            return (Verdict::Crash, format!("signal {signal}"));
        }
        if status == TIMED_OUT {
            return (Verdict::Hang, "exit status 124".to_owned());
        }
        if !ended.left.is_empty() && !self.leaks {
            return (Verdict::Leak, format!("left {}", ended.left.join(", ")));
        }
        if status == 0 {
            return match differs(self.compare, &self.stdout, &ended.stdout) {
                None => (Verdict::Same, String::new()),
                Some(detail) => (Verdict::Wrong, detail),
            };
        }
        let message = ended.message();
        let output = String::from_utf8_lossy(&ended.stdout);
        match message.lines().chain(output.lines()).find(|line| !line.trim().is_empty()) {
            Some(line) => (Verdict::Refused, format!("exit status {status}: {}", line.trim())),
            None => (Verdict::Silent, format!("exit status {status}")),
        }
    }
}

/// The first difference of two outputs.
fn differs(compare: Compare, expected: &[u8], found: &[u8]) -> Option<String> {
    let is_words = match compare {
        Compare::Status => return None,
        Compare::Words => true,
        Compare::Exact | Compare::Auto if expected == found => return None,
        Compare::Exact | Compare::Auto => false,
    };
    let lines = |output: &[u8]| {
        let text = String::from_utf8_lossy(output).into_owned();
        let mut lines: Vec<String> = match is_words {
            true => text.lines().map(without_numbers).collect(),
            false => text.lines().map(str::to_owned).collect(),
        };
        if is_words {
            lines.sort_unstable();
        }
        lines
    };
    let (expected, found) = (lines(expected), lines(found));
    if is_words && expected == found {
        return None;
    }
    let same = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
    let line =
        |lines: &[String]| lines.get(same).map_or_else(|| "nothing".to_owned(), |line| format!("'{line}'"));
    Some(format!("{} in place of {}", line(&found), line(&expected)))
}

/// A line with `#` for each word that has a digit.
fn without_numbers(line: &str) -> String {
    let word = |word| if str::contains(word, |c: char| c.is_ascii_digit()) { "#" } else { word };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}
