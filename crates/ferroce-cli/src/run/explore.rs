//! `ferroce run --explore`: rules of faults that delay a program within what the specification permits.

use std::time::{SystemTime, UNIX_EPOCH};

use ferroce_wire::{MIX_STEP, mix};

/// Calls that are delayed before they act, so that events and completions come before them.
const CALLS: [&str; 6] = ["req_notify_cq", "get_cq_event", "poll_cq", "post_send", "post_recv", "modify_qp"];

/// Queue pairs of a process whose packets have delays of their own.
const QUEUE_PAIRS: u32 = 16;

/// A seed from the clock.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    mix(now.as_nanos() as u64) % 1_000_000
}

/// The rules of a seed. Packets of one queue pair stay in order, and only packets that ask for an
/// acknowledgement are lost, which those of UC and UD never do; each of them once.
pub fn rules(seed: u64) -> String {
    let mut state = mix(seed);
    let mut below = |bound: u64| {
        state = state.wrapping_add(MIX_STEP);
        mix(state) % bound
    };
    let mut rules = vec![format!("seed={seed}")];
    for call in CALLS {
        let (often, micros) = (1 + below(30), 20 << below(7));
        // An empty poll is a call as well, and most programs make millions.
        let often = if call == "poll_cq" { "1%".to_owned() } else { format!("{often}%") };
        rules.push(format!("{call}: stall={micros}us~{micros}us {often} if verb={call}"));
    }
    for qp in 0..QUEUE_PAIRS {
        if below(2) == 0 {
            rules.push(format!("late{qp}: delay={}us if dir=rx,qp={qp}", 100 << below(6)));
        }
    }
    let (often, times) = (1 + below(20), 1 + below(3));
    rules.push(format!("again: drop {often}% if dir=tx,op=send|write,ack=1,iter=1,count={times}"));
    rules.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_each_seed_are_a_plan_and_its_own() {
        let plans: Vec<ferroce_fault::Plan> = (0..50).map(|seed| rules(seed).parse().unwrap()).collect();
        assert!(plans.windows(2).all(|pair| pair[0].rules != pair[1].rules));
        assert_eq!(rules(7), rules(7));
    }
}
