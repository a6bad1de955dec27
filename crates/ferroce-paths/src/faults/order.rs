//! Orders of `ferroce fault`, which the broker brings.

use ferroce_fault::Plan;
use ferroce_ipc::{FaultCounts, FaultOrder, FaultReport};

use super::{Judging, STATE, apply, mads};

/// Does what the user of this process ordered, and reports the plan: the new one, or the one that ended.
///
/// # Errors
/// A sentence for the user: this process has more rights than its caller, or the rules or their log are of no
/// use.
pub fn obey(order: FaultOrder) -> Result<FaultReport, String> {
    if ferroce_host::process::is_privileged_program() {
        let pid = std::process::id();
        return Err(format!("process {pid} has more rights than its user (AT_SECURE), and takes no faults"));
    }
    match order {
        FaultOrder::Show => Ok(report()),
        FaultOrder::Clear => {
            let last = report();
            replace(Plan::default())?;
            Ok(last)
        }
        FaultOrder::Apply { rules, seed } => {
            let mut plan: Plan = rules.parse().map_err(|error| format!("{error}"))?;
            plan.seed = seed.unwrap_or(plan.seed);
            replace(plan)?;
            Ok(report())
        }
    }
}

fn replace(plan: Plan) -> Result<(), String> {
    apply(plan).map_err(|error| error.to_string())
}

/// The plan in force and the counts of its rules.
fn report() -> FaultReport {
    mads::collect();
    let judging = STATE.get().judging.lock();
    judging.as_ref().map(report_of).unwrap_or_default()
}

fn report_of(judging: &Judging) -> FaultReport {
    let rules = judging.counts().into_iter().map(|rule| FaultCounts {
        name: printable(&rule.name),
        text: printable(&rule.text),
        ..rule
    });
    let seed = judging.judge.plan().seed;
    FaultReport { seed, unlogged: judging.unlogged(), rules: rules.collect() }
}

/// Messages have no control characters, which the rules of the environment may contain as blanks.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
