//! The older form of a plan, such as `seed=1,loss=0.05,burst=3,duplicate=0.01,reorder=0.02`.

use super::{Parser, Result_};
use crate::plan::{Act, Key, Plan, Probability, Rule, Term, Value};
use crate::units;

/// Whether this is that form.
pub(super) fn is_shorthand(text: &str) -> bool {
    let keys = ["seed", "loss", "burst", "duplicate", "reorder"];
    let text = text.trim();
    let mut parts = text.split(',').filter(|part| !part.is_empty());
    let known = |part: &str| part.split_once('=').is_some_and(|(key, _)| keys.contains(&key));
    // Another line or a comment behind the seed belongs to a plan.
    let other = |c: char| c.is_whitespace() || matches!(c, ';' | '#');
    !text.contains(other) && parts.clone().next().is_some() && parts.all(known)
}

impl Parser<'_> {
    pub(super) fn shorthand(&mut self) -> Result_<Plan> {
        let mut plan = Plan { seed: 1, ..Plan::default() };
        let (mut loss, mut burst, mut duplicate, mut reorder) = (None, 1, None, None);
        while !self.rest().trim().is_empty() {
            let key = self.word();
            if key.is_empty() {
                self.expect(",")?;
                continue;
            }
            self.expect("=")?;
            let chance =
                |text: &str| units::fraction(text).map(Some).ok_or("a probability here is from 0 to 1");
            match key {
                "seed" => plan.seed = self.read(|text| text.parse().map_err(|_| "a seed is a number"))?,
                "loss" => loss = self.read(chance)?,
                "duplicate" => duplicate = self.read(chance)?,
                "reorder" => reorder = self.read(chance)?,
                _ => {
                    burst = self.read(|text| match text.parse::<u32>() {
                        Ok(packets @ 1..) => Ok(packets),
                        _ => Err("a burst has at least one packet"),
                    })?;
                }
            }
        }
        let leave = Probability(Probability::ONE.0 / burst);
        let lost = loss.map(|enter| match burst {
            1 => Act::Drop(enter),
            _ => Act::Burst { enter, leave, bad: Probability::ONE, good: Probability::ZERO },
        });
        let acts = [
            ("loss", lost),
            ("duplicate", duplicate.map(Act::Dup)),
            ("reorder", reorder.map(|probability| Act::Reorder { probability, by: None })),
        ];
        for (name, act) in acts {
            let term = Term { key: Key::Dir, negated: false, values: vec![Value::Range(0, 0)] };
            plan.rules.extend(act.filter(|act| !act.is_never()).map(|act| Rule {
                name: Some(name.to_owned()),
                text: format!("{} if dir=rx", shorthand_text(&act)),
                acts: vec![act],
                terms: vec![term],
            }));
        }
        Ok(plan)
    }
}

/// The text of an act that the shorthand makes.
fn shorthand_text(act: &Act) -> String {
    let show = units::show_probability;
    match act {
        Act::Drop(probability) => format!("drop {}", show(*probability)),
        Act::Dup(probability) => format!("dup {}", show(*probability)),
        Act::Burst { enter, leave, .. } => format!("burst({},{})", show(*enter), show(*leave)),
        Act::Reorder { probability, .. } => format!("reorder {}", show(*probability)),
        _ => String::new(),
    }
}
