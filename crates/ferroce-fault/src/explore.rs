//! Rules that delay a program within what the specification permits, so that its races show.

use std::fmt::Write;

use ferroce_wire::{MIX_STEP, mix};

/// Calls that are delayed before they act, so that packets, completions and events come before them, and how
/// often at most, in percent. An empty poll is a call as well, and most programs make millions.
const CALLS: [(&str, u64); 6] = [
    ("req_notify_cq", 30),
    ("get_cq_event", 30),
    ("poll_cq", 1),
    ("post_send", 30),
    ("post_recv", 30),
    ("modify_qp", 30),
];

/// Queue pairs of a process whose packets have delays of their own.
const QUEUE_PAIRS: u32 = 16;

/// The rules of `ferroce run --explore=SEED`, as the text of a plan. Packets of a queue pair stay in order,
/// and only packets that ask for an acknowledgement are lost, which those of UC and UD never do; each of them
/// once.
pub fn exploration(seed: u64) -> String {
    let mut state = mix(seed);
    let mut below = |bound: u64| {
        state = state.wrapping_add(MIX_STEP);
        mix(state) % bound
    };
    let mut plan = format!("seed={seed}");
    for (call, most) in CALLS {
        let (often, micros) = (1 + below(most), 20 << below(7));
        let _ = write!(plan, "; explore-{call}: stall={micros}us~{micros}us {often}% if verb={call}");
    }
    for qp in 0..QUEUE_PAIRS {
        if below(2) == 0 {
            let _ = write!(plan, "; explore-late{qp}: delay={}us if dir=rx,qp={qp}", 100 << below(6));
        }
    }
    let (often, most) = (1 + below(20), 1 + below(3));
    let _ = write!(plan, "; explore-again: drop {often}% if dir=tx,op=send|write,ack=1,iter=1,count={most}");
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn each_seed_has_a_plan_of_its_own() {
        let plans: Vec<Plan> = (0..50).map(|seed| exploration(seed).parse().unwrap()).collect();
        assert!(plans.windows(2).all(|pair| pair[0].rules != pair[1].rules));
        assert_eq!(exploration(7), exploration(7));
    }
}
