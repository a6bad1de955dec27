//! Faults in front of a fabric: rules and a plan decide what becomes of each packet.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ferroce_fault::{Affected, Answer, Corruption, Dir, Facts, HeldQueue, Judge, Release};
use ferroce_wire::Instant;

use crate::{Datagram, Stats, Verdict};

type Rule<'r, P> = Box<dyn FnMut(&P) -> Verdict + 'r>;

/// How the place of the faults sees a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub dir: Dir,
    /// The queue pair.
    pub qp: u32,
    /// The other end; `None` for the packet's sender.
    pub peer: Option<IpAddr>,
}

impl View {
    /// As the receiver sees it.
    pub const fn received(qp: usize) -> Self {
        Self { dir: Dir::Rx, qp: qp as u32, peer: None }
    }
}

/// A packet with what its place needs to know when the packet goes on.
#[derive(Clone, Debug)]
pub(crate) struct Tagged<T, P> {
    pub tag: T,
    pub packet: P,
}

impl<T: Clone, P: Datagram> Datagram for Tagged<T, P> {
    fn corrupt(&mut self, noise: u64) {
        self.packet.corrupt(noise);
    }

    fn seal(&mut self) {
        self.packet.seal();
    }

    fn wire_len(&self) -> usize {
        self.packet.wire_len()
    }

    fn mark_ce(&mut self) -> bool {
        self.packet.mark_ce()
    }

    fn facts(&self, to: usize) -> Option<Facts<'_>> {
        self.packet.facts(to)
    }
}

/// Rules and a plan, and the packets that wait by them.
pub(crate) struct Faults<'r, P> {
    rules: Vec<Rule<'r, P>>,
    judge: Option<Judge>,
    /// Delayed packets, by time, then by order.
    late: BTreeMap<(Instant, u64), P>,
    /// Packets that wait for their successors, or for a time.
    held: HeldQueue<P>,
    sequence: u64,
    pub stats: Stats,
}

/// A packet that a plan has judged.
struct Passage<'a, P> {
    held: &'a mut HeldQueue<P>,
    stats: &'a mut Stats,
    out: &'a mut Vec<P>,
    flow: (u32, u32),
    packet: P,
}

impl<P: Datagram> Affected for Passage<'_, P> {
    fn lose(&mut self) {
        self.stats.dropped += 1;
    }

    /// No responder is asked here, so the request is lost.
    fn answer(&mut self, _answer: Answer) {
        self.lose();
    }

    fn mark_ce(&mut self) {
        self.packet.mark_ce();
    }

    fn corrupt(&mut self, corruption: Corruption) -> bool {
        self.stats.corrupted += 1;
        self.packet.corrupt(u64::from(corruption.octet) << 3 | u64::from(corruption.bit));
        if corruption.icrc_ok {
            self.packet.seal();
        }
        true
    }

    fn go_on(&mut self, release: Option<Release>) {
        let packet = self.packet.clone();
        match release {
            None => self.out.push(packet),
            Some(release) => {
                let octets = packet.wire_len();
                if self.held.push(release, self.flow, octets, packet).is_err() {
                    self.stats.overflowed += 1;
                }
            }
        }
    }

    fn count_as_successor(&mut self) {
        self.held.passed(self.flow);
    }
}

impl<P> Default for Faults<'_, P> {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            judge: None,
            late: BTreeMap::new(),
            held: HeldQueue::default(),
            sequence: 0,
            stats: Stats::default(),
        }
    }
}

impl<'r, P: Datagram> Faults<'r, P> {
    pub fn rule(&mut self, rule: impl FnMut(&P) -> Verdict + 'r) {
        self.rules.push(Box::new(rule));
    }

    pub fn set_judge(&mut self, judge: Option<Judge>) {
        self.judge = judge;
        self.held.release_all();
    }

    pub const fn judge(&self) -> Option<&Judge> {
        self.judge.as_ref()
    }

    /// Packets that wait.
    pub fn waiting(&self) -> usize {
        self.late.len() + self.held.len()
    }

    /// Judges a packet. What leaves now is added to `out`; what is delayed comes from [`Self::take`].
    pub fn send(&mut self, now: Instant, view: &View, packet: P, out: &mut Vec<P>) {
        let verdict = self.verdict(&packet);
        self.follow(now, verdict, view, packet, out);
    }

    /// The verdict of the first rule that does not let the packet pass.
    pub fn verdict(&mut self, packet: &P) -> Verdict {
        self.stats.sent += 1;
        let mut verdicts = self.rules.iter_mut().map(|rule| rule(packet));
        verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass)
    }

    /// Carries out the verdict of the rules, and after [`Verdict::Pass`] the plan's.
    pub fn follow(&mut self, now: Instant, verdict: Verdict, view: &View, mut packet: P, out: &mut Vec<P>) {
        match verdict {
            Verdict::Pass => self.judged(now, view, packet, out),
            Verdict::Delay(more) => {
                self.stats.delayed += 1;
                self.delay(now + more, packet);
            }
            Verdict::Drop => self.stats.dropped += 1,
            Verdict::Duplicate(later) => {
                self.stats.duplicated += 1;
                self.delay(now + later, packet.clone());
                out.push(packet);
            }
            Verdict::Corrupt(noise) => {
                self.stats.corrupted += 1;
                packet.corrupt(noise);
                out.push(packet);
            }
        }
    }

    fn judged(&mut self, now: Instant, view: &View, packet: P, out: &mut Vec<P>) {
        let View { dir, qp, peer } = *view;
        let facts = packet.facts(qp as usize);
        let facts = facts.map(|facts| Facts { dir, qp, peer: peer.unwrap_or(facts.peer), ..facts });
        let Some((judge, facts)) = self.judge.as_mut().zip(facts) else {
            out.push(packet);
            return;
        };
        let actions = judge.decide(now, &facts);
        self.stats.duplicated += u64::from(actions.duplicate);
        self.stats.delayed += u64::from(actions.release.is_some());
        let Self { held, stats, .. } = self;
        actions.apply(&mut Passage { held, stats, out, flow: (qp, dir as u32), packet });
        self.take(now, out);
    }

    /// Keeps a packet until this time.
    pub fn delay(&mut self, until: Instant, packet: P) {
        self.late.insert((until, self.sequence), packet);
        self.sequence += 1;
    }

    /// Time at which the next packet that waits goes on.
    pub fn next(&self) -> Option<Instant> {
        let late = self.late.first_key_value().map(|((at, _), _)| *at);
        let held = self.held.next().filter(|at| *at != Instant::MAX);
        late.into_iter().chain(held).min()
    }

    /// Takes the next packet that has waited long enough.
    pub fn pop(&mut self, now: Instant) -> Option<P> {
        match self.late.first_entry().filter(|entry| entry.key().0 <= now) {
            Some(entry) => Some(entry.remove()),
            None => self.held.pop(now),
        }
    }

    /// Adds to `out` what has waited long enough.
    pub fn take(&mut self, now: Instant, out: &mut Vec<P>) {
        out.extend(std::iter::from_fn(|| self.pop(now)));
    }
}

impl<P> fmt::Debug for Faults<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("late", &self.late.len()).field("stats", &self.stats).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_decides_as_in_programs() {
        let run = |plan: &str, packets: u32| {
            let mut faults = Faults::default();
            faults.set_judge(Some(Judge::new(plan.parse().unwrap())));
            let (mut now, mut out, mut arrived) = (Instant::ZERO, Vec::new(), Vec::new());
            (0..packets).for_each(|packet| faults.send(now, &View::received(0), packet, &mut out));
            loop {
                arrived.extend(out.drain(..).map(|packet| (now.as_nanos(), packet)));
                let Some(next) = faults.next() else { break };
                now = next;
                faults.take(now, &mut out);
            }
            (arrived, faults.stats)
        };
        let (arrived, stats) =
            run("drop if psn=1; delay=2us if psn=2; dup if psn=3; reorder by=1 if psn=0; hold if psn=5", 6);
        assert_eq!(arrived, [(0, 3), (0, 3), (0, 0), (0, 4), (2000, 2)]);
        assert_eq!((stats.dropped, stats.duplicated, stats.delayed), (1, 1, 3));
        // A packet whose successors never come goes on by itself.
        assert_eq!(run("reorder by=3", 1).0, [(10_000_000, 0)]);
        let plan = "seed=3; drop 10%; delay=1us~900ns; corrupt 5%";
        assert_eq!(run(plan, 1000), run(plan, 1000));
        assert_ne!(run(plan, 1000).0, run("seed=4; drop 10%; delay=1us~900ns; corrupt 5%", 1000).0);
    }
}
