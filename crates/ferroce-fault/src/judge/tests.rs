use std::net::{IpAddr, Ipv4Addr};

use ferroce_wire::Psn;
use proptest::prelude::*;

use super::*;
use crate::facts::{Op, Pos};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn facts(op: Op, psn: u32) -> Facts<'static> {
    Facts {
        dir: Dir::Tx,
        dev: Some("fr0"),
        peer: PEER,
        qp: 0,
        op,
        pos: Pos::Only,
        psn: Psn::new(psn),
        msn: 0,
        len: 1024,
        wire_len: 1040,
        ack: false,
        ecn: 0,
        stream: false,
    }
}

fn judge(text: &str) -> Judge {
    let mut judge = Judge::new(text.parse().unwrap());
    judge.record_hits();
    judge
}

const T0: Instant = Instant::from_nanos(5_000);

fn at(nanos: u64) -> Instant {
    T0 + Duration::from_nanos(nanos)
}

/// The PSNs of the packets that are dropped.
fn dropped(judge: &mut Judge, psns: impl Iterator<Item = u32>) -> Vec<u32> {
    psns.filter(|psn| judge.decide(T0, &facts(Op::Send, *psn)).drop).collect()
}

#[test]
fn a_named_packet_is_dropped_as_often_as_asked() {
    let mut judge = judge("drop if qp=0,psn=4,iter=1..2");
    assert_eq!(dropped(&mut judge, 100..110), [104]);
    assert_eq!(dropped(&mut judge, 100..110), [104]);
    assert_eq!(dropped(&mut judge, 100..110), [] as [u32; 0]);
    let hits: Vec<String> = judge.take_hits().iter().map(Hit::to_string).collect();
    assert_eq!(
        hits,
        [
            "drop if dir=tx,qp=0,peer=0,op=send,psn=4,iter=1",
            "drop if dir=tx,qp=0,peer=0,op=send,psn=4,iter=2"
        ]
    );
}

#[test]
fn psns_wrap() {
    let mut judge = judge("drop if psn=4..5");
    assert_eq!(dropped(&mut judge, (0xff_fffe..0x100_0008).map(|psn| psn & 0xff_ffff)), [2, 3]);
}

/// "The 3rd packet of the 2nd READ response", also when the first one is asked for again in between.
#[test]
fn a_packet_of_a_read_response_has_a_name() {
    let mut judge = judge("drop if op=readresp,msg=1,nth=3");
    let respond = |judge: &mut Judge, from: u32, to: u32| {
        let mut lost = Vec::new();
        for psn in from..=to {
            let pos = match psn {
                _ if from == to => Pos::Only,
                _ if psn == from => Pos::First,
                _ if psn == to => Pos::Last,
                _ => Pos::Middle,
            };
            let packet = Facts { pos, dir: Dir::Rx, ..facts(Op::ReadResp, psn) };
            if judge.decide(T0, &packet).drop {
                lost.push(psn);
            }
        }
        lost
    };
    assert_eq!(respond(&mut judge, 10, 14), []);
    assert_eq!(respond(&mut judge, 12, 14), [], "a suffix of the first again");
    assert_eq!(respond(&mut judge, 15, 19), [17]);
    assert_eq!(respond(&mut judge, 17, 19), []);
    assert_eq!(respond(&mut judge, 20, 24), []);
}

#[test]
fn answers_count_from_the_first_request() {
    let mut judge = judge("drop if op=ack,psn=3");
    assert!(!judge.decide(T0, &facts(Op::Send, 1000)).drop);
    let ack = |psn| Facts { dir: Dir::Rx, ..facts(Op::Ack, psn) };
    assert!(!judge.decide(T0, &ack(1002)).drop);
    assert!(judge.decide(T0, &ack(1003)).drop);
}

/// A device that the caller does not know is neither this one nor another one.
#[test]
fn a_device_is_told_by_its_name() {
    let mut judge = judge(
        "drop if dev=fr0; dup if dev!=fr0; fail=EIO if verb=reg_mr,dev=fr0; fail=EPERM if verb=reg_mr,dev!=fr0|fr1; \
         wc=REM_OP_ERR if dev=fr0; kill=self if at=rts,dev=fr1",
    );
    for (dev, lost, twice, errno, status, killed) in [
        (Some("fr0"), true, false, Some(5), Some(WcError::RemOp), None),
        (Some("fr1"), false, true, None, None, Some(Target::Myself)),
        (Some("fr2"), false, true, Some(1), None, None),
        (None, false, false, None, None, None),
    ] {
        let actions = judge.decide(T0, &Facts { dev, ..facts(Op::Send, 1) });
        assert_eq!((actions.drop, actions.duplicate), (lost, twice), "{dev:?}");
        let verb = Verb::RegMr;
        assert_eq!(judge.verb(T0, &VerbFacts { verb, dev, qp: None }).errno, errno, "{dev:?}");
        assert_eq!(judge.completion(T0, dev, 0, 0), status, "{dev:?}");
        let at = Moment::Rts;
        assert_eq!(judge.moment(T0, &CompletionFacts { at, dev, qp: None, msg: None }), killed, "{dev:?}");
    }
}

/// TCP repeats what is lost, so most acts do not apply to a connection; a hit's text does the same again.
#[test]
fn a_stream_is_cut_late_or_corrupt_and_nothing_else() {
    let text = "drop; dup; burst(100%,0%); reorder; rate=1kbit queue=1; hold; nak=access; corrupt icrc=ok; corrupt at=psn if psn=0..1; \
                delay=1ms if psn=1; corrupt if psn=2; corrupt at=5/3 if psn=3; cut if psn=4,op=send";
    let mut stream = judge(text);
    let mut decide = |psn| stream.decide(T0, &Facts { stream: true, ..facts(Op::Send, psn) });
    assert!(decide(0).is_pass());
    let late = Actions { release: Some(Release { at: at(1_000_000), behind: 0 }), ..Actions::default() };
    assert_eq!(decide(1), late);
    let corruption = decide(2).corrupt.unwrap();
    assert!((2..1036).contains(&corruption.octet), "behind the length, before the CRC: {corruption:?}");
    assert_eq!(decide(3).corrupt.map(|at| (at.octet, at.bit)), Some((5, 3)));
    assert!(decide(4).drop);
    let hits: Vec<String> = stream.take_hits().iter().map(Hit::to_string).collect();
    assert_eq!(hits.len(), 4, "{hits:?}");
    assert_eq!(hits[3], "cut if dir=tx,qp=0,peer=0,op=send,psn=4,iter=1");
    let mut again = judge(&hits[3]);
    assert!(!again.decide(T0, &Facts { stream: true, ..facts(Op::Send, 0) }).drop);
    assert!(again.decide(T0, &Facts { stream: true, ..facts(Op::Send, 4) }).drop);
}

#[test]
fn terms_select() {
    let base = facts(Op::Write, 7);
    for (terms, holds) in [
        ("dir=tx", true),
        ("dir=rx", false),
        ("dir!=rx", true),
        ("dev=fr0", true),
        ("dev=fr1", false),
        ("peer=192.0.2.2", true),
        ("peer=192.0.2.1|192.0.2.2", true),
        ("peer!=192.0.2.2", false),
        ("peer=0", true),
        ("op=send|write", true),
        ("op=ack", false),
        ("pos=only", true),
        ("pos=first|last", false),
        ("len=1000..1024", true),
        ("len=1025..", false),
        ("ack=0", true),
        ("ack=1", false),
        ("msg=0", true),
        ("msn=0", false),
        ("psn=0,op=write,iter=1", true),
        ("time=0s..1us", true),
        ("time=1us..", false),
        ("nth=every/2", false),
    ] {
        assert_eq!(judge(&format!("drop if {terms}")).decide(T0, &base).drop, holds, "{terms}");
    }
}

#[test]
fn counts_limit_each_flow() {
    let mut judge = judge("tail: drop if count=2");
    assert_eq!(dropped(&mut judge, 0..9), [0, 1]);
    let other = Facts { qp: 1, ..facts(Op::Send, 50) };
    assert!(judge.decide(T0, &other).drop);
    let counts = judge.counts();
    assert_eq!((counts[0].title.as_str(), counts[0].hits), ("tail", 3));
}

#[test]
fn times_are_those_of_the_plan() {
    let mut judge = judge("cut if dir=tx,time=1s..1500ms; hold if dir=rx,time=0s..");
    assert!(judge.plan().rules.len() == 2);
    let mut cut = |nanos, dir| judge.decide(at(nanos), &Facts { dir, ..facts(Op::Send, 1) }).drop;
    assert!(!cut(0, Dir::Tx));
    assert!(cut(1_200_000_000, Dir::Tx));
    assert!(!cut(1_600_000_000, Dir::Tx));
}

#[test]
fn acts_do_what_they_say() {
    let one = |text: &str| judge(text).decide(T0, &facts(Op::Send, 1));
    assert!(one("dup").duplicate);
    let delay = |nanos, behind| Some(Release { at: at(nanos), behind });
    assert_eq!(one("delay=5us").release, delay(5_000, 0));
    assert_eq!(one("delay=5us + delay=1us").release, delay(6_000, 0));
    assert_eq!(one("delay=5us; delay=1us").release, delay(6_000, 0));
    assert_eq!(one("reorder by=3").release, delay(10_000_000, 3));
    assert_eq!(one("reorder by=2us").release, delay(2_000, 0));
    assert_eq!(one("hold").release, Some(Release { at: Instant::MAX, behind: 0 }));
    assert_eq!(one("hold if time=0s..2us").release, delay(2_000, 0));
    assert_eq!(
        one("corrupt icrc=ok at=17/3").corrupt,
        Some(crate::Corruption { icrc_ok: true, octet: 17, bit: 3 })
    );
    let random = one("corrupt").corrupt.unwrap();
    assert!(!random.icrc_ok && random.octet < 1036);
    assert!((1036..1040).contains(&one("corrupt at=icrc").corrupt.unwrap().octet));
    assert_eq!(one("dup; drop; delay=1s"), Actions { drop: true, ..Actions::default() });
    assert!(one("drop 0%").is_pass() && one("").is_pass() && one("ce").is_pass());
    let capable = Facts { ecn: 2, ..facts(Op::Send, 1) };
    assert!(judge("ce").decide(T0, &capable).mark_ce);
}

/// A delay by one act has the limit of a time in a plan, so that the log of hits can be read as a plan.
#[test]
fn no_act_delays_by_more_than_a_day() {
    for text in ["delay=86400s~86400s pareto", "rate=1bit queue=86400s"] {
        let mut judge = judge(text);
        for psn in 0..if cfg!(miri) { 3 } else { 200 } {
            judge.decide(T0, &facts(Op::Send, psn));
        }
        let log: Vec<String> = judge.take_hits().iter().map(Hit::to_string).collect();
        assert!(!log.is_empty());
        if let Err(error) = log.join("\n").parse::<Plan>() {
            panic!("{text}: {error}");
        }
    }
}

#[test]
fn a_bottleneck_delays_marks_and_overflows() {
    let mut judge = judge("rate=8gbit queue=3000 mark=1500");
    let mut send = |psn| judge.decide(T0, &Facts { ecn: 2, wire_len: 1000, ..facts(Op::Send, psn) });
    let after = |micros: u64| Some(Release { at: at(micros * 1000), behind: 0 });
    assert_eq!((send(1).release, send(2).release), (after(1), after(2)));
    let third = send(3);
    assert_eq!((third.release, third.mark_ce), (after(3), true));
    assert!(!send(4).drop && send(5).drop);
}

#[test]
fn a_refused_request_silences_the_later_ones() {
    let mut judge = judge("rnr=20ms if nth=2");
    let mut receive = |psn| judge.decide(T0, &Facts { dir: Dir::Rx, ..facts(Op::Send, psn) });
    assert!(receive(1).is_pass());
    assert_eq!(receive(2).answer, Some(Answer::Rnr(Duration::from_millis(20))));
    assert!(receive(3).drop && receive(4).drop);
    assert!(receive(2).is_pass() && receive(3).is_pass());
    let mut judge = super::tests::judge("rnr=20ms");
    assert!(judge.decide(T0, &facts(Op::Send, 1)).is_pass(), "only a responder answers");
}

#[test]
#[cfg_attr(miri, ignore = "a mean needs 50,000 packets, which take minutes in Miri")]
fn bursts_take_neighbours() {
    let mut judge = judge("burst(1%,25%)");
    let lost = dropped(&mut judge, 0..50_000);
    let runs = lost.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() + 1;
    let mean = lost.len() as f64 / runs as f64;
    assert!((300..700).contains(&runs) && (3.5..4.5).contains(&mean), "{runs} runs of {mean}");
}

#[test]
#[cfg_attr(miri, ignore = "a spread needs 15,000 packets, which take minutes in Miri")]
fn delays_spread_as_asked() {
    for (text, low, high) in [
        ("delay=1ms~100us", 900_000, 1_100_000),
        ("delay=1ms~100us normal", 400_000, 1_600_000),
        ("delay=1ms~10us pareto", 1_000_000, 2_010_000),
    ] {
        let mut judge = judge(text);
        let mut all: Vec<u64> = (0..5000)
            .map(|psn| {
                let release = judge.decide(T0, &facts(Op::Send, psn)).release.unwrap();
                release.at.saturating_since(T0).as_nanos() as u64
            })
            .collect();
        all.sort_unstable();
        assert!(all[0] >= low && all[4999] <= high, "{text}: {} to {}", all[0], all[4999]);
        all.dedup();
        assert!(all.len() > 2500, "{text}");
    }
}

#[test]
fn calls_completions_and_moments() {
    let mut judge = judge(
        "fail=ENOMEM if verb=reg_mr,nth=3; stall=1ms if verb=create_qp; wc=RETRY_EXC_ERR if qp=1,msg=10; \
         kill=broker if at=established; kill=self if at=completion,nth=2; kill=self if at=received,qp=3",
    );
    let mut reg = |verb| judge.verb(T0, &VerbFacts { verb, dev: None, qp: None });
    assert_eq!([reg(Verb::RegMr).errno, reg(Verb::RegMr).errno], [None, None]);
    assert_eq!(reg(Verb::AllocPd), VerbFault::default());
    assert_eq!(reg(Verb::RegMr).errno, Some(12));
    assert_eq!(reg(Verb::RegMr).errno, None);
    assert_eq!(reg(Verb::CreateQp).stall, Duration::from_millis(1));
    assert_eq!(judge.completion(T0, None, 1, 9), None);
    assert_eq!(judge.completion(T0, None, 0, 10), None);
    assert_eq!(judge.completion(T0, None, 1, 10), Some(WcError::RetryExc));
    let moment = |at| CompletionFacts { at, dev: None, qp: Some(0), msg: None };
    assert_eq!(judge.moment(T0, &moment(Moment::Completion)), None);
    assert_eq!(judge.moment(T0, &moment(Moment::Completion)), Some(Target::Myself));
    assert_eq!(judge.moment(T0, &moment(Moment::Established)), Some(Target::Broker));
    assert_eq!(judge.moment(T0, &moment(Moment::Received)), None);
    let third = CompletionFacts { qp: Some(3), ..moment(Moment::Received) };
    assert_eq!(judge.moment(T0, &third), Some(Target::Myself));
    let hits: Vec<String> = judge.take_hits().iter().map(Hit::to_string).collect();
    assert_eq!(
        hits,
        [
            "fail=ENOMEM if verb=reg_mr,nth=3",
            "stall=1ms if verb=create_qp,nth=1",
            "wc=RETRY_EXC_ERR if qp=1,msg=10",
            "kill=self if at=completion,nth=2",
            "kill=broker if at=established,nth=1",
            "kill=self if at=received,nth=2",
        ]
    );
}

#[test]
#[cfg_attr(miri, ignore = "65,546 hits take minutes in Miri")]
fn memory_is_bounded() {
    let mut judge = judge("drop 50%");
    for qp in 0..2 * MAX_FLOWS as u32 {
        judge.decide(T0, &Facts { qp, ..facts(Op::Send, 0) });
    }
    assert_eq!(judge.flows.len(), MAX_FLOWS);
    judge.forget(0);
    assert_eq!(judge.flows.len(), MAX_FLOWS - 1);
    let mut judge = super::tests::judge("drop");
    for psn in 0..MAX_HITS as u32 + 10 {
        judge.decide(T0, &facts(Op::Send, psn));
    }
    assert_eq!((judge.take_hits().len(), judge.forgotten()), (MAX_HITS, 10));
}

/// A stream of packets of several queue pairs with resends.
fn packets() -> impl Strategy<Value = Vec<(u32, u32, bool)>> {
    prop::collection::vec((0..3u32, 0..40u32, any::<bool>()), 0..if cfg!(miri) { 20 } else { 300 })
}

fn of((qp, psn, rx): (u32, u32, bool)) -> Facts<'static> {
    let dir = if rx { Dir::Rx } else { Dir::Tx };
    Facts { qp, dir, ecn: 2, ..facts(if rx { Op::Write } else { Op::Send }, psn) }
}

const PLAN: &str = "seed=9; a: drop 20%; b: dup 30% if iter=1; c: delay=10us~5us; d: corrupt 10%; e: reorder 10%; f: ce 20%; burst(5%,20%)";

proptest! {
    /// Equal packets have an equal fate.
    #[test]
    fn a_run_repeats(packets in packets()) {
        let run = || {
            let mut judge = judge(PLAN);
            packets.iter().map(|packet| judge.decide(T0, &of(*packet))).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    /// The packets of other queue pairs change nothing for those of one.
    #[test]
    fn another_flow_shifts_nothing(packets in packets()) {
        let run = |only: bool| {
            let mut judge = judge(PLAN);
            let of_one = packets.iter().filter(|(qp, ..)| !only || *qp == 1);
            of_one.map(|packet| (packet.0, judge.decide(T0, &of(*packet)))).filter(|(qp, _)| *qp == 1).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// A named rule decides as it does without the others, wherever it stands.
    #[test]
    fn another_rule_shifts_nothing(packets in packets()) {
        let run = |plan: &str| {
            let mut judge = judge(plan);
            packets.iter().map(|packet| judge.decide(T0, &of(*packet)).duplicate).collect::<Vec<_>>()
        };
        prop_assert_eq!(run("seed=9; b: dup 30%"), run("seed=9; x: delay=1ms 	; b: dup 30%; y: ce 50%"));
    }

    /// A log of hits is a plan that harms the same packets.
    #[test]
    fn a_log_replays_the_run(packets in packets()) {
        let run = |plan: &str| {
            let mut judge = judge(plan);
            let drops: Vec<bool> = packets.iter().map(|packet| {
                let actions = judge.decide(T0, &of(*packet));
                actions.drop
            }).collect();
            let log: Vec<String> = judge.take_hits().iter().map(Hit::to_string).collect();
            (drops, log.join("\n"))
        };
        let (drops, log) = run("seed=9; drop 20%; burst(10%,30%) if dir=rx; drop if nth=every/7");
        let again = run(&log);
        prop_assert_eq!((drops, log), again);
    }
}

/// A program that prepares for long still meets the first moments of the plan with its first packets.
#[test]
fn the_time_of_packets_begins_with_a_packet() {
    let mut judge = judge("cut if time=0s..1ms; fail=EIO if verb=reg_mr,time=1s..");
    let reg = VerbFacts { verb: Verb::RegMr, dev: None, qp: None };
    assert_eq!(judge.verb(at(0), &reg).errno, None);
    assert!(judge.decide(at(5_000_000_000), &facts(Op::Send, 1)).drop);
    assert_eq!(judge.verb(at(5_000_000_000), &reg).errno, Some(5));
}

#[test]
#[cfg_attr(miri, ignore = "a share needs 300,000 draws, which take minutes in Miri")]
fn draws_are_fair_and_independent() {
    let hits = |salt: u64| {
        (0..100_000).filter(move |n| Draw::new(1).with(salt).with(*n).happens(Probability(50_000_000)))
    };
    assert!((4_700..5_300).contains(&hits(0).count()));
    let both = hits(0).filter(|n| Draw::new(1).with(1).with(*n).happens(Probability(50_000_000))).count();
    assert!((180..330).contains(&both), "independent: {both}");
    assert!((0..1000).all(|n| Draw::new(n).below(7) < 7));
    assert!(!(0..1000).any(|n| Draw::new(n).happens(Probability::ZERO)));
    assert!((0..1000).all(|n| Draw::new(n).happens(Probability::ONE)));
}

/// A replay must survive releases: these numbers never change.
#[test]
fn draws_stay_as_they_are() {
    let draw = Draw::new(7).with_name("tail").with(4);
    assert_eq!(draw.bits(), Draw::new(7).with_name("tail").with(4).bits());
    assert_ne!(draw.bits(), Draw::new(8).with_name("tail").with(4).bits());
}

#[test]
fn a_link_takes_time_and_fills() {
    let mut limit = Limit::default();
    let mut cross = |at| {
        let crossing = limit.cross(Instant::from_nanos(at), 1000, 8_000_000_000, 2000, None);
        (crossing.crossed.map(Instant::as_nanos), crossing.waiting)
    };
    assert_eq!(cross(0), (Some(1000), 0));
    assert_eq!(cross(0), (Some(2000), 1000));
    assert_eq!(cross(0), (Some(3000), 2000));
    assert_eq!(cross(0), (None, 3000));
    assert_eq!(cross(1500), (Some(4000), 1500));
    assert_eq!(cross(1_000_000), (Some(1_001_000), 0));
}

#[test]
fn a_capture_sees_what_other_rules_lose_and_is_no_harm() {
    let mut judge = judge("capture=/c,1m; drop if psn=1; capture if op=send");
    let actions: Vec<Actions> = (10..13).map(|psn| judge.decide(T0, &facts(Op::Send, psn))).collect();
    let captured = Actions { capture: true, ..Actions::default() };
    assert_eq!(actions, [captured, Actions { drop: true, ..captured }, captured]);
    assert!(captured.is_pass() && !actions[1].is_pass());
    assert_eq!(judge.decide(T0, &facts(Op::Write, 13)), Actions::default());
    assert_eq!((judge.counts()[0].hits, judge.counts()[1].hits), (1, 3));
    assert_eq!(judge.take_hits().len(), 1, "captured packets are not in the log");
    assert!(
        !judge.plan().only_captures() && "capture=/c,1m; capture".parse::<Plan>().unwrap().only_captures()
    );
}

/// A captured packet that is refused is captured, and so are those that the refusal silences.
#[test]
fn a_capture_sees_refused_requests() {
    let mut judge = judge("capture=/c,1m; rnr=1ms if nth=2; capture");
    for (psn, answered, lost) in [(0, false, false), (1, true, false), (2, false, true)] {
        let actions = judge.decide(T0, &Facts { dir: Dir::Rx, ..facts(Op::Send, psn) });
        assert_eq!(
            (actions.answer.is_some(), actions.drop, actions.capture),
            (answered, lost, true),
            "{psn}"
        );
    }
}
