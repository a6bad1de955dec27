//! Rules for management datagrams. The broker applies them, and tells the counts and the hits.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferroce_client::BrokerClient;
use ferroce_fault::{Kind, Plan};
use ferroce_host::output;
use ferroce_ipc::{Known, MadFaultReport};

use super::{Judging, STATE};

/// How long the end of a process waits for the last counts.
const LAST: Duration = Duration::from_secs(1);
/// Locks are held by others for moments.
pub(super) const LONGEST_REPORT: Duration = Duration::from_secs(3);

/// The state of the plan's rules for management datagrams.
#[derive(Default, Debug)]
pub(super) struct Mads {
    /// Their places in the plan.
    places: Vec<usize>,
    /// The number of the reports that count.
    generation: Option<u32>,
    /// The counts of each, of brokers that ended, and of the present one.
    before: Vec<(u64, u64)>,
    now: Vec<(u64, u64)>,
    unlogged: [u64; 2],
    known: Known,
}

impl Mads {
    pub(super) fn new(plan: &Plan) -> Self {
        let rules = plan.rules.iter().enumerate();
        let places: Vec<usize> =
            rules.filter(|(_, rule)| rule.kind() == Kind::Mad).map(|(place, _)| place).collect();
        let none = vec![(0, 0); places.len()];
        Self { before: none.clone(), now: none, places, ..Self::default() }
    }

    /// The counts of the rule at this place of the plan, if the broker judges it: matched, hits, and whether
    /// that is all.
    pub(super) fn counts(&self, place: usize) -> Option<(u64, u64, Known)> {
        let own = self.places.iter().position(|known| *known == place)?;
        let ((seen, hits), (more_seen, more_hits)) = (self.before.get(own)?, self.now.get(own)?);
        Some((seen + more_seen, hits + more_hits, self.known))
    }

    /// Hits that the log does not have.
    pub(super) fn unlogged(&self) -> u64 {
        self.unlogged.iter().sum()
    }

    /// The broker took the rules, or did not. A later one counts from the beginning.
    fn given(&mut self, given: &Result<u32, String>) {
        if given.as_ref().is_ok_and(|number| self.generation.is_some_and(|known| known >= *number)) {
            return;
        }
        for ((seen, hits), (more_seen, more_hits)) in self.before.iter_mut().zip(&mut self.now) {
            *seen += std::mem::take(more_seen);
            *hits += std::mem::take(more_hits);
        }
        self.unlogged[0] += std::mem::take(&mut self.unlogged[1]);
        self.known = match (given, self.generation) {
            (Err(_), _) => Known::NotInForce,
            (Ok(_), None) => Known::All,
            // The earlier one ended without a last word.
            (Ok(_), Some(_)) => Known::AtLeast,
        };
        self.generation = given.as_ref().ok().copied().or(self.generation);
    }
}

impl Judging {
    /// Takes a report of the broker, and writes its hits to the log.
    fn learn(&mut self, report: &MadFaultReport) {
        let mads = &mut self.mads;
        if mads.generation.is_some_and(|known| known < report.generation) {
            // The next broker has told this before its news was looked at.
            mads.given(&Ok(report.generation));
        }
        if mads.generation != Some(report.generation) {
            return;
        }
        for ((seen, hits), (more_seen, more_hits)) in mads.now.iter_mut().zip(&report.counts) {
            (*seen, *hits) = ((*seen).max(*more_seen), (*hits).max(*more_hits));
        }
        mads.unlogged[1] = mads.unlogged[1].max(report.unlogged);
        let mut lines = String::new();
        for (rule, hit) in &report.hits {
            let place = mads.places.get(usize::from(*rule));
            let rule = place.and_then(|place| self.judge.plan().rules.get(*place));
            let _ = writeln!(lines, "{hit} # {}", rule.map_or("", |rule| rule.title()));
        }
        self.write(&lines);
    }
}

/// The broker is there, and this process has a slot: gives it the rules in force, now and when they change.
pub fn serve(broker: &Arc<BrokerClient>) {
    let state = STATE.get();
    if state.broker.set(Arc::downgrade(broker)).is_ok() {
        give();
    }
}

/// Gives the broker the rules of the plan in force.
pub(super) fn give() {
    let state = STATE.get();
    let Some(broker) = state.broker.get() else { return };
    let plan = state.judging.lock().as_ref().and_then(|judging| judging.judge.plan().for_mads());
    let rules = plan.map_or_else(String::new, |plan| plan.to_string());
    let gone = || "this process has no device any more".to_owned();
    given(broker.upgrade().ok_or_else(gone).and_then(|broker| broker.give_mad_rules(rules)));
}

/// The broker took the rules, or did not.
pub fn given(given: Result<u32, String>) {
    let mut judging = STATE.get().judging.lock();
    let Some(judging) = judging.as_mut().filter(|judging| !judging.mads.places.is_empty()) else { return };
    if let Err(sentence) = &given {
        output::say(format_args!("rules for management datagrams do nothing: {sentence}"));
    }
    judging.mads.given(&given);
}

/// Takes a report of the broker.
pub fn learn(report: &MadFaultReport) {
    if let Some(judging) = STATE.get().judging.lock().as_mut() {
        judging.learn(report);
    }
}

/// Asks the broker for the last counts, if it judges rules of this process. Without an answer the counts that
/// are known may be too low.
pub(super) fn collect() {
    let state = STATE.get();
    let asks =
        |judging: &Judging| judging.mads.generation.is_some() && judging.mads.known != Known::NotInForce;
    if !state.judging.try_lock_for(LAST).is_some_and(|judging| judging.as_ref().is_some_and(asks)) {
        return;
    }
    let reports = state.broker.get().and_then(Weak::upgrade).and_then(|broker| broker.ask_mad_faults(LAST));
    let Some(mut judging) = state.judging.try_lock_for(LAST) else { return };
    let Some(judging) = judging.as_mut() else { return };
    match reports {
        Some(reports) => reports.iter().for_each(|report| judging.learn(report)),
        None => judging.mads.known = Known::AtLeast,
    }
}

#[cfg(test)]
mod tests {
    use ferroce_fault::Judge;

    use super::*;

    fn judging() -> Judging {
        let plan: Plan = "drop 1%; a: drop if op=rep; dup if op=mad".parse().unwrap();
        Judging { mads: Mads::new(&plan), judge: Judge::new(plan), log: None, capture: None }
    }

    fn report(generation: u32, counts: [(u64, u64); 2]) -> MadFaultReport {
        MadFaultReport { generation, counts: counts.to_vec(), ..MadFaultReport::default() }
    }

    fn outcomes(judging: &Judging) -> Vec<String> {
        judging.counts().iter().map(|rule| format!("{}: {}", rule.outcome(), rule.text)).collect()
    }

    #[test]
    fn counts_of_the_broker_stand_for_its_rules_alone() {
        let mut judging = judging();
        judging.learn(&report(1, [(9, 9), (9, 9)]));
        judging.mads.given(&Ok(1));
        assert_eq!(
            outcomes(&judging),
            [
                "never hit, 0 matched: drop 1%",
                "never hit, 0 matched: drop if op=rep",
                "never hit, 0 matched: dup if op=mad"
            ]
        );
        judging.learn(&report(1, [(3, 1), (4, 4)]));
        // A report that is older than the one before.
        judging.learn(&report(1, [(2, 1), (4, 3)]));
        assert_eq!(
            outcomes(&judging)[1..],
            ["1 hits, 3 matched: drop if op=rep", "4 hits, 4 matched: dup if op=mad"]
        );
    }

    #[test]
    fn the_next_broker_counts_anew_and_the_last_one_may_have_hidden_some() {
        let mut judging = judging();
        judging.mads.given(&Ok(1));
        judging.learn(&report(1, [(3, 1), (4, 4)]));
        // The report comes before the news of it.
        judging.learn(&report(2, [(1, 1), (0, 0)]));
        judging.mads.given(&Ok(2));
        let more = "matched or more (the broker did not tell all)";
        assert_eq!(
            outcomes(&judging)[1..],
            [format!("2 hits, 4 {more}: drop if op=rep"), format!("4 hits, 4 {more}: dup if op=mad")]
        );
        // The last report of the earlier one is late.
        judging.learn(&report(1, [(9, 9), (9, 9)]));
        assert!(outcomes(&judging)[1].starts_with("2 hits, 4 "));
        judging.mads.given(&Err("an older one".to_owned()));
        assert_eq!(outcomes(&judging)[1], "not in force: drop if op=rep");
        assert_eq!(outcomes(&judging)[0], "never hit, 0 matched: drop 1%");
    }
}
