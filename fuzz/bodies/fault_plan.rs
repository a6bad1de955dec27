// Applies one input to a plan of faults: text to the parser, then packets, management datagrams, calls and time to two judges of that plan and
// to a queue.
// Included by the fuzz target and by the test that replays its corpus, so it has no doc comment of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferroce_fault::{
    Actions, Answer, CompletionFacts, Dir, Facts, HeldQueue, Judge, MAX_HELD, MadFacts, MadJudge, Moment, Op,
    Plan, Pos, Verb, VerbFacts, WcError,
};
use ferroce_wire::cm::CommId;
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Instant, Psn};

const DEVICES: [Option<&str>; 3] = [None, Some("fr0"), Some("eth0")];

/// The text of the plan, then an octet 0, then steps of eight octets. Panics on a broken promise.
pub fn run(data: &[u8]) {
    let end = data.iter().position(|octet| *octet == 0).unwrap_or(data.len());
    let (text, steps) = data.split_at(end);
    let text = String::from_utf8_lossy(text);
    // A plan in TOML has the same words.
    let text = match ferroce_fault::plan_text(&text) {
        Ok(words) if text.contains("[[fault]]") => words,
        _ => text.into_owned(),
    };
    let plan = match text.parse::<Plan>() {
        Ok(plan) => plan,
        Err(error) => {
            assert!((1..=text.matches('\n').count() + 1).contains(&error.line), "{error}");
            assert!(error.column >= 1 && !error.message.is_empty(), "{error}");
            return;
        }
    };
    assert_eq!(plan.to_string().parse().as_ref(), Ok(&plan), "printed and read again");

    let (mut judge, mut again) = (Judge::new(plan.clone()), Judge::new(plan));
    judge.record_hits();
    let mads = [(); 2].map(|()| MadJudge::new(judge.plan().for_mads().unwrap_or_default()));
    let mut world =
        World { now: Instant::from_nanos(1), mads, queue: HeldQueue::default(), waiting: 0, octets: 0 };
    for step in steps.get(1..).unwrap_or_default().as_chunks().0 {
        world.step(&mut judge, &mut again, *step);
    }
    world.queue.release_all();
    while world.pop().is_some() {}
    assert!(world.queue.is_empty() && world.queue.next().is_none());
    assert_eq!((world.waiting, world.octets), (0, 0));

    for hit in judge.take_hits() {
        let line = hit.to_string();
        let rule: Plan = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!((rule.rules.len(), judge.title(&hit).is_empty()), (1, false), "{line}");
    }
    assert_eq!(judge.forgotten(), 0);
    assert_eq!(judge.counts(), again.counts(), "recording changes nothing");
    assert!(judge.counts().iter().all(|rule| rule.hits <= rule.seen));

    let [mads, again] = &mut world.mads;
    assert_eq!(mads.counts(), again.counts());
    assert!(mads.counts().iter().all(|(seen, hits)| hits <= seen));
    for hit in mads.take_hits(usize::MAX) {
        let rule: Plan = hit.to_string().parse().unwrap_or_else(|error| panic!("{hit}: {error}"));
        assert_eq!(rule.for_mads().as_ref(), Some(&rule));
    }
}

struct World {
    now: Instant,
    mads: [MadJudge; 2],
    queue: HeldQueue<usize>,
    /// The model of the queue: packets in it, and their octets.
    waiting: usize,
    octets: usize,
}

impl World {
    fn step(&mut self, judge: &mut Judge, again: &mut Judge, [kind, who, a, b, c, d, e, f]: [u8; 8]) {
        let qp = u32::from(who % 3);
        let number = u32::from_be_bytes([c, d, e, f]);
        match kind % 16 {
            0 => {
                let verb = Verb::WORDS[usize::from(a) % Verb::WORDS.len()].1;
                let facts =
                    VerbFacts { verb, dev: DEVICES[usize::from(b % 3)], qp: (b & 1 == 0).then_some(qp) };
                assert_eq!(judge.verb(self.now, &facts), again.verb(self.now, &facts));
            }
            1 => {
                let dev = DEVICES[usize::from(a % 3)];
                let status = judge.completion(self.now, dev, qp, number.into());
                assert_eq!(status, again.completion(self.now, dev, qp, number.into()));
                assert!(status.is_none_or(|status| WcError::WORDS.iter().any(|(_, known)| *known == status)));
            }
            2 => {
                let at = Moment::WORDS[usize::from(a) % Moment::WORDS.len()].1;
                let (dev, msg) = (DEVICES[usize::from(b % 3)], (b & 1 == 0).then_some(number.into()));
                let facts = CompletionFacts { at, dev, qp: Some(qp), msg };
                assert_eq!(judge.moment(self.now, &facts), again.moment(self.now, &facts));
            }
            3 => {
                self.now += Duration::from_nanos(u64::from(number) << (a % 32));
                self.due();
            }
            4 => {
                judge.forget(qp);
                again.forget(qp);
            }
            _ => {
                let dir = if who & 0x80 == 0 { Dir::Rx } else { Dir::Tx };
                let peer = IpAddr::V4(Ipv4Addr::new(192, 0, 2, who >> 4 & 3));
                let op = Op::WORDS[usize::from(a) % Op::WORDS.len()].1;
                if op.is_mad() {
                    let [ours, theirs] = [e, f].map(|id| CommId(u32::from(id % 64)));
                    return self.mad(&MadFacts { dir, op, peer, ours, theirs });
                }
                let facts = Facts {
                    dir,
                    dev: DEVICES[usize::from(b % 3)],
                    peer,
                    qp,
                    op,
                    pos: Pos::WORDS[usize::from(kind >> 6)].1,
                    // Mostly near to the others.
                    psn: Psn::new(if e == 0xff { number } else { u32::from(f) }),
                    msn: u32::from(f),
                    len: u32::from(c) << (d % 16),
                    wire_len: if d == 0xff { number } else { u32::from(c) + 16 },
                    ack: b & 4 != 0,
                    ecn: b >> 3 & 3,
                    stream: b & 0x80 != 0,
                };
                let actions = judge.decide(self.now, &facts);
                assert_eq!(actions, again.decide(self.now, &facts), "the same packets, the same fate");
                self.check(&facts, &actions);
            }
        }
    }

    fn mad(&mut self, facts: &MadFacts) {
        let [actions, again] = self.mads.each_mut().map(|judge| judge.decide(self.now, facts));
        assert_eq!(actions, again, "the same datagrams, the same fate");
        assert!(!actions.drop || actions == Actions { drop: true, ..Actions::default() });
        assert!(!actions.mark_ce && actions.answer.is_none());
        assert!(actions.release.is_none_or(|release| release.at > self.now && release.behind == 0));
        if let Some(corruption) = actions.corrupt {
            assert!(facts.dir == Dir::Rx && corruption.icrc_ok && usize::from(corruption.octet) < MAD_LEN);
        }
    }

    fn check(&mut self, facts: &Facts<'_>, actions: &Actions) {
        if actions.drop {
            assert_eq!(*actions, Actions { drop: true, capture: actions.capture, ..Actions::default() });
            return;
        }
        if let Some(answer) = actions.answer {
            assert!(facts.dir == Dir::Rx && !matches!(facts.op, Op::Ack | Op::ReadResp | Op::Cnp | Op::Sack));
            assert!(!matches!(answer, Answer::Rnr(time) if time > Duration::from_secs(86_400)));
            let capture = actions.capture;
            assert_eq!(*actions, Actions { answer: Some(answer), capture, ..Actions::default() });
            return;
        }
        assert!(!actions.mark_ce || matches!(facts.ecn, 1 | 2), "only a capable sender's packet is marked");
        if let Some(corruption) = actions.corrupt {
            assert!(facts.wire_len == 0 || u32::from(corruption.octet) < facts.wire_len, "{corruption:?}");
            corruption.apply(&mut [0; 64]);
        }
        let flow = (facts.qp, u32::from(facts.peer.is_ipv6()));
        self.queue.passed(flow);
        if let Some(release) = actions.release {
            assert!(release.at > self.now || release.at == Instant::MAX || release.behind == 0);
            let octets = facts.len as usize;
            match self.queue.push(release, flow, octets, octets) {
                Ok(()) => (self.waiting, self.octets) = (self.waiting + 1, self.octets + octets),
                Err(_) => assert!(self.waiting == MAX_HELD || self.octets + octets > 32 << 20),
            }
        }
        self.due();
    }

    /// Takes what is due, and sees that the queue asks for a later time.
    fn due(&mut self) {
        while self.pop().is_some() {}
        assert!(self.queue.next().is_none_or(|at| at > self.now));
    }

    fn pop(&mut self) -> Option<()> {
        let octets = self.queue.pop(self.now)?;
        (self.waiting, self.octets) = (self.waiting - 1, self.octets - octets);
        assert_eq!(self.queue.len(), self.waiting);
        Some(())
    }
}
