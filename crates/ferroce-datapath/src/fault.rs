//! A lossy network between the socket and its receiver, for tests over real sockets.
//!
//! `FERROCE_FAULT=seed=1,loss=0.05,burst=3,duplicate=0.01,reorder=0.02` applies to every [`crate::udp::RxBuffer`] of
//! the process; absent keys are 0, `burst` and `seed` 1.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::str::FromStr;

use ferroce_sim::Rng;

use crate::udp::Datagram;

/// The probabilities of each fault.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FaultPlan {
    /// The same seed and arrivals give the same faults.
    pub seed: u64,
    /// Probability that a loss begins with a datagram, 0 to 1.
    pub loss: f64,
    /// Datagrams in one loss, at least 1.
    pub burst: u32,
    /// Probability that a datagram is delivered twice.
    pub duplicate: f64,
    /// Probability that a datagram is delivered late: after one to eight of its successors.
    pub reorder: f64,
}

/// Counts of faults since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultCounts {
    /// All datagrams.
    pub seen: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
}

/// A fault plan has an unknown key or a value out of range.
#[derive(Debug, thiserror::Error)]
#[error("not a fault: {0:?}")]
pub struct InvalidFaultPlan(String);

impl Default for FaultPlan {
    fn default() -> Self {
        Self { seed: 1, loss: 0.0, burst: 1, duplicate: 0.0, reorder: 0.0 }
    }
}

impl FromStr for FaultPlan {
    type Err = InvalidFaultPlan;

    fn from_str(text: &str) -> Result<Self, InvalidFaultPlan> {
        fn set<T: FromStr>(field: &mut T, value: &str) -> Option<()> {
            *field = value.parse().ok()?;
            Some(())
        }
        let mut plan = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let apply = |plan: &mut Self| {
                let (key, value) = part.split_once('=')?;
                match key {
                    "seed" => set(&mut plan.seed, value),
                    "loss" => set(&mut plan.loss, value),
                    "burst" => set(&mut plan.burst, value),
                    "duplicate" => set(&mut plan.duplicate, value),
                    "reorder" => set(&mut plan.reorder, value),
                    _ => None,
                }
            };
            let ok = apply(&mut plan).is_some()
                && plan.burst > 0
                && [plan.loss, plan.duplicate, plan.reorder].iter().all(|p| (0.0..=1.0).contains(p));
            if !ok {
                return Err(InvalidFaultPlan(part.to_owned()));
            }
        }
        Ok(plan)
    }
}

#[derive(Debug)]
pub(crate) struct Fault {
    plan: FaultPlan,
    random: Rng,
    counts: FaultCounts,
    /// Datagrams still to drop in the present loss.
    burst_left: u32,
    /// Late datagrams, each with the number of datagrams to deliver before.
    late: VecDeque<(u32, Owned)>,
    delivered: Vec<Owned>,
}

#[derive(Clone, Debug)]
struct Owned {
    source: IpAddr,
    source_port: u16,
    segment_index: u16,
    bytes: Vec<u8>,
    gro: bool,
    traffic_class: u8,
    hop_limit: u8,
}

impl Fault {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self {
            plan,
            random: Rng::new(plan.seed),
            counts: FaultCounts::default(),
            burst_left: 0,
            late: VecDeque::new(),
            delivered: Vec::new(),
        }
    }

    /// The plan in `FERROCE_FAULT`.
    ///
    /// # Panics
    ///
    /// If the plan is invalid, because a test without faults would pass for the wrong reason.
    #[expect(clippy::expect_used, reason = "tests only")]
    pub(crate) fn from_env() -> Option<Self> {
        let text = std::env::var("FERROCE_FAULT").ok()?;
        Some(Self::new(text.parse().expect("FERROCE_FAULT")))
    }

    pub(crate) fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Drops the delivered datagrams.
    pub(crate) fn clear(&mut self) {
        self.delivered.clear();
    }

    /// Number of datagrams delivered since [`Self::clear`].
    pub(crate) fn delivered(&self) -> usize {
        self.delivered.len()
    }

    pub(crate) fn datagram(&self, index: usize) -> Option<Datagram<'_>> {
        let Owned { source, source_port, segment_index, ref bytes, gro, traffic_class, hop_limit } =
            *self.delivered.get(index)?;
        Some(Datagram { source, source_port, segment_index, bytes, gro, traffic_class, hop_limit })
    }

    /// Passes an arrived datagram through the network.
    pub(crate) fn pass(&mut self, datagram: &Datagram<'_>) {
        self.counts.seen += 1;
        if self.burst_left == 0 && self.happens(self.plan.loss) {
            self.burst_left = self.plan.burst;
        }
        if self.burst_left > 0 {
            self.burst_left -= 1;
            self.counts.lost += 1;
            return;
        }
        let Datagram { source, source_port, segment_index, bytes, gro, traffic_class, hop_limit } = *datagram;
        let bytes = bytes.to_vec();
        let owned = Owned { source, source_port, segment_index, bytes, gro, traffic_class, hop_limit };
        if self.happens(self.plan.duplicate) {
            self.counts.duplicated += 1;
            self.deliver(owned.clone());
        }
        if self.happens(self.plan.reorder) {
            self.counts.reordered += 1;
            let others = 1 + self.random.below(8) as u32;
            self.late.push_back((others, owned));
        } else {
            self.deliver(owned);
        }
    }

    fn deliver(&mut self, owned: Owned) {
        self.delivered.push(owned);
        for (others, _) in &mut self.late {
            *others = others.saturating_sub(1);
        }
        while let Some(due) = self.late.iter().position(|(others, _)| *others == 0) {
            self.delivered.extend(self.late.remove(due).map(|(_, owned)| owned));
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.random.chance((probability * 1e6) as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn run(plan: &str, count: u32) -> (Vec<u32>, FaultCounts) {
        let mut fault = Fault::new(plan.parse().unwrap());
        for i in 0..count {
            let source = Ipv4Addr::LOCALHOST.into();
            let bytes = &i.to_le_bytes();
            fault.pass(&Datagram {
                source,
                source_port: 1,
                segment_index: 0,
                bytes,
                gro: false,
                traffic_class: 0,
                hop_limit: 64,
            });
        }
        let numbers = (0..fault.delivered()).map(|i| fault.datagram(i).unwrap().bytes.try_into().unwrap());
        (numbers.map(u32::from_le_bytes).collect(), fault.counts())
    }

    #[test]
    fn nothing_asked_nothing_done() {
        assert_eq!(run("", 1000).0, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn faults_come_as_often_as_asked_and_repeat() {
        let plan = "seed=7,loss=0.05,duplicate=0.02,reorder=0.03";
        let (got, counts) = run(plan, 100_000);
        assert!((4_500..5_500).contains(&counts.lost), "{counts:?}");
        assert!((1_700..2_300).contains(&counts.duplicated), "{counts:?}");
        assert!((2_500..3_200).contains(&counts.reordered), "{counts:?}");
        assert_eq!(got.len() as u64 / 10, (counts.seen - counts.lost + counts.duplicated) / 10);
        assert!(!got.is_sorted());
        assert_eq!(run(plan, 100_000), (got, counts));
        assert_ne!(run("seed=8,loss=0.05,duplicate=0.02,reorder=0.03", 100_000).1, counts);
    }

    #[test]
    fn bursts_take_neighbours() {
        let (got, _) = run("loss=0.01,burst=5", 10_000);
        let gaps = got.windows(2).map(|w| w[1] - w[0]).filter(|&gap| gap > 1);
        assert!(gaps.clone().count() > 50 && gaps.clone().all(|gap| (gap - 1) % 5 == 0));
    }

    #[test]
    fn a_wrong_plan_is_refused() {
        for text in ["loss", "loss=2", "loss=-1", "loss=x", "burst=0", "thunder=0.1", "loss=NaN"] {
            assert!(text.parse::<FaultPlan>().is_err(), "{text}");
        }
    }
}
