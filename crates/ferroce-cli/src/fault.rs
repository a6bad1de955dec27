//! `ferroce fault`: faults on purpose in running programs.

use std::fmt::{self, Display};

use anyhow::{Result, bail};
use ferroce_fault::Plan;
use ferroce_ipc::{FaultOrder, FaultReport, Known, LeaseEntry, RefusalCode};
use serde::Serialize;

use crate::args::{FaultCommand, Style};
use crate::broker::Observer;
use crate::usage::Usage;
use crate::{plan, rows};

/// A program and its faults.
#[derive(Serialize, Debug)]
struct FaultRow {
    pid: u32,
    comm: String,
    state: FaultState,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Hits that are not in the log.
    #[serde(skip_serializing_if = "is_zero")]
    unlogged: u64,
    rules: Vec<Rule>,
    /// The reason why the program did not obey.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The state of a program's rules.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum FaultState {
    /// The rules came into force by this command.
    Applied,
    /// The rules ended by this command.
    Cleared,
    /// The rules are in force.
    Active,
    /// There are no rules.
    None,
    /// The program did not obey or answer.
    Failed,
}

#[derive(Serialize, Debug)]
struct Rule {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    rule: String,
    hits: u64,
    matched: u64,
    /// Missing if these are all.
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<Uncertain>,
    #[serde(skip)]
    outcome: String,
}

/// How much the counts of a rule for management datagrams say.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
enum Uncertain {
    /// There may be more.
    AtLeast,
    /// The broker did not take the rule.
    NotInForce,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Gives the order to the programs, and prints their answers.
pub fn run(command: FaultCommand, style: Style) -> Result<()> {
    let (order, pids) = order(command)?;
    let mut broker = Observer::without_view()?;
    let (programs, unknown) = chosen(broker.status()?.programs, &pids);
    if pids.is_empty() && programs.is_empty() && matches!(order, FaultOrder::Apply { .. }) {
        bail!("no program of this user has a device open: start one, or use `ferroce run --fault`");
    }
    let answers = broker.order(&programs, &order)?;
    let mut printed = Vec::new();
    let mut failed = unknown;
    for (program, answer) in programs.iter().zip(answers) {
        match answer {
            Ok(report) => printed.push(FaultRow::new(program, &order, report)),
            // A command for all programs is not about those of other users.
            Err(refusal) if pids.is_empty() && refusal.code == RefusalCode::Permission => {}
            // The program ended meanwhile, and the user did not name it.
            Err(refusal) if pids.is_empty() && refusal.code == RefusalCode::UnknownId => {}
            Err(refusal) => {
                printed.extend(style.json.then(|| FaultRow::failed(program, refusal.sentence.clone())));
                failed.push(refusal.sentence);
            }
        }
    }
    rows::print(&printed, style)?;
    match failed.pop() {
        None => Ok(()),
        Some(last) => {
            failed.iter().for_each(|sentence| eprintln!("ferroce: {sentence}"));
            bail!(last)
        }
    }
}

/// The order of a command, and the processes that it names. Rules are read here, before any program gets
/// them.
fn order(command: FaultCommand) -> Result<(FaultOrder, Vec<u32>)> {
    match command {
        FaultCommand::Show { pid } => Ok((FaultOrder::Show, pid)),
        FaultCommand::Clear { pid } => Ok((FaultOrder::Clear, pid)),
        FaultCommand::Apply { rules, file, pid, seed } => {
            let text = plan::text(file.as_deref(), &rules)?;
            let missing = || Usage("apply needs rules, or --file with rules".to_owned());
            let rules = text.ok_or_else(missing)?;
            if rules.parse::<Plan>().is_ok_and(|plan| plan.rules.is_empty()) {
                return Err(missing().into());
            }
            Ok((FaultOrder::Apply { rules, seed }, pid))
        }
    }
}

/// The programs with these process ids, or all; and a sentence for each process id that no program has.
pub fn chosen(programs: Vec<LeaseEntry>, pids: &[u32]) -> (Vec<LeaseEntry>, Vec<String>) {
    let known = |pid: &&u32| programs.iter().any(|program| program.pid == **pid);
    let sentence = |pid: &u32| {
        format!(
            "process {pid} is no program of this user with a device of this ferroced: see `ferroce status`"
        )
    };
    let unknown = pids.iter().filter(|pid| !known(pid)).map(sentence).collect();
    let wanted = |program: &LeaseEntry| pids.is_empty() || pids.contains(&program.pid);
    (programs.into_iter().filter(wanted).collect(), unknown)
}

impl FaultRow {
    fn new(program: &LeaseEntry, order: &FaultOrder, report: FaultReport) -> Self {
        let state = match order {
            _ if report.rules.is_empty() => FaultState::None,
            FaultOrder::Apply { .. } => FaultState::Applied,
            FaultOrder::Clear => FaultState::Cleared,
            FaultOrder::Show => FaultState::Active,
        };
        let rules = report.rules.into_iter().map(|rule| Rule {
            outcome: rule.outcome(),
            known: match rule.known {
                Known::All => None,
                Known::AtLeast => Some(Uncertain::AtLeast),
                Known::NotInForce => Some(Uncertain::NotInForce),
            },
            name: rule.name,
            rule: rule.text,
            hits: rule.hits,
            matched: rule.seen,
        });
        Self {
            pid: program.pid,
            comm: program.command.clone(),
            state,
            seed: (state != FaultState::None).then_some(report.seed),
            unlogged: report.unlogged,
            rules: rules.collect(),
            error: None,
        }
    }

    fn failed(program: &LeaseEntry, sentence: String) -> Self {
        let row = Self::new(program, &FaultOrder::Show, FaultReport::default());
        Self { state: FaultState::Failed, error: Some(sentence), ..row }
    }
}

impl Display for FaultRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            FaultState::Applied => "applied",
            FaultState::Cleared => "cleared",
            FaultState::Active => "active",
            FaultState::None => "none",
            FaultState::Failed => "failed",
        };
        write!(f, "pid {} comm {} faults {state}", self.pid, self.comm)?;
        self.seed.map_or(Ok(()), |seed| write!(f, " seed {seed}"))?;
        for Rule { name, rule, hits, matched, known, outcome } in &self.rules {
            // Rules that were just applied had no time to act.
            let new = self.state == FaultState::Applied && (*hits, *matched, *known) == (0, 0, None);
            let outcome = if new { String::new() } else { format!("{outcome}: ") };
            let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
            write!(f, "\n  {outcome}{name}{rule}")?;
        }
        match self.unlogged {
            0 => Ok(()),
            hits => write!(f, "\n  {hits} hits are not in the log"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_ipc::{FaultCounts, ResourceCounts};

    use super::*;

    fn program(pid: u32) -> LeaseEntry {
        let resources = ResourceCounts::default();
        LeaseEntry { pid, uid: 1000, command: "ib_write_bw".to_owned(), slots: vec![16], resources }
    }

    fn report() -> FaultReport {
        let tail = FaultCounts {
            name: "tail".to_owned(),
            text: "drop if pos=last".to_owned(),
            seen: 90,
            hits: 3,
            known: Known::All,
        };
        let never = FaultCounts { text: "dup 1%".to_owned(), ..FaultCounts::default() };
        FaultReport { seed: 7, unlogged: 0, rules: vec![tail, never] }
    }

    #[test]
    fn rows_name_rules_that_never_hit() {
        let row = FaultRow::new(&program(17), &FaultOrder::Show, report());
        assert_eq!(
            row.to_string(),
            "pid 17 comm ib_write_bw faults active seed 7\n  3 hits, 90 matched: tail: drop if pos=last\n  \
             never hit, 0 matched: dup 1%"
        );
        let order = FaultOrder::Apply { rules: String::new(), seed: None };
        let applied = FaultRow::new(&program(17), &order, report()).to_string();
        assert!(
            applied.contains("  3 hits, 90 matched: tail") && applied.ends_with("\n  dup 1%"),
            "{applied}"
        );
        let none = FaultRow::new(&program(17), &FaultOrder::Clear, FaultReport::default());
        assert_eq!(none.to_string(), "pid 17 comm ib_write_bw faults none");
    }

    #[test]
    fn counts_that_the_broker_did_not_tell_are_no_zeros() {
        let rule = |known| FaultCounts { text: "drop if op=rep".to_owned(), known, ..FaultCounts::default() };
        let rules = vec![rule(Known::AtLeast), rule(Known::NotInForce)];
        let row = FaultRow::new(&program(17), &FaultOrder::Show, FaultReport { seed: 7, unlogged: 0, rules });
        let text = row.to_string();
        assert!(text.contains("0 hits, 0 matched or more (the broker did not tell all): drop"), "{text}");
        assert!(text.ends_with("\n  not in force: drop if op=rep") && !text.contains("never hit"), "{text}");
        let json = serde_json::to_string(&row).unwrap();
        assert!(
            json.contains("\"known\":\"at-least\"") && json.contains("\"known\":\"not-in-force\""),
            "{json}"
        );
    }

    #[test]
    fn json_keys_are_stable() {
        let json = serde_json::to_string(&FaultRow::new(&program(17), &FaultOrder::Clear, report())).unwrap();
        assert_eq!(
            json,
            "{\"pid\":17,\"comm\":\"ib_write_bw\",\"state\":\"cleared\",\"seed\":7,\"rules\":[\
             {\"name\":\"tail\",\"rule\":\"drop if pos=last\",\"hits\":3,\"matched\":90},\
             {\"rule\":\"dup 1%\",\"hits\":0,\"matched\":0}]}"
        );
        let json = serde_json::to_string(&FaultRow::failed(&program(17), "no".to_owned())).unwrap();
        assert!(json.ends_with("\"state\":\"failed\",\"rules\":[],\"error\":\"no\"}"), "{json}");
    }

    #[test]
    fn an_unknown_process_is_named_and_the_others_are_kept() {
        let (found, unknown) = chosen(vec![program(17), program(18)], &[18, 19]);
        assert_eq!(found.iter().map(|program| program.pid).collect::<Vec<_>>(), [18]);
        assert!(unknown.len() == 1 && unknown[0].contains("process 19 "), "{unknown:?}");
        assert_eq!(chosen(vec![program(17), program(18)], &[]).0.len(), 2);
    }

    #[test]
    fn rules_are_read_before_any_program_gets_them() {
        let apply = |rules: &[&str]| {
            let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
            order(FaultCommand::Apply { rules, file: None, pid: vec![3], seed: Some(9) })
        };
        let error = apply(&["drop 1%", "dorp"]).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("line 2, character 1"), "{error}");
        for nothing in [&[][..], &["seed=3"]] {
            assert!(apply(nothing).unwrap_err().is::<Usage>());
        }
        let expected = FaultOrder::Apply { rules: "drop 1%\ndup 1%".to_owned(), seed: Some(9) };
        assert_eq!(apply(&["drop 1%", "dup 1%"]).unwrap(), (expected, vec![3]));
    }
}
