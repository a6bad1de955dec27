//! Rules for management datagrams: connections all the same, or an error within the time of the retries.

use ferroce_cm::Transmit;
use ferroce_ipc::MadFaultReport;
use ferroce_wire::cm::Mad;

use super::*;

/// Longer than sixteen tries of 4.8 s each.
const LONG: Duration = Duration::from_secs(100);

/// Accepts with a queue pair that no other connection has.
fn accept_alone(id: CommId) -> CmRequest {
    CmRequest::Accept { id, params: Box::new(AcceptParams::new(1, Qpn::new(id.0))) }
}

/// A run of connection management: the events by client and name, and the messages that arrived, by name.
#[derive(Default, Debug)]
struct Played {
    events: Vec<(u64, &'static str)>,
    arrived: Vec<&'static str>,
}

impl Played {
    fn count(&self, message: &str) -> usize {
        self.arrived.iter().filter(|name| **name == message).count()
    }

    fn has(&self, client: u64, event: &str) -> bool {
        self.events.contains(&(client, event))
    }
}

impl Bench {
    /// Client 1 listens, and the clients have these rules.
    fn harmed(rules: &[(u64, &str)]) -> Self {
        let mut bench = Self::with_programs();
        bench.listen(1, 7);
        for (client, text) in rules {
            bench.rules(*client, 1, text);
        }
        bench
    }

    fn rules(&mut self, client: u64, generation: u32, text: &str) {
        let rules = Message::MadFaults { generation, rules: text.to_owned() };
        self.broker.message(self.now, ClientId(client), 5, rules, vec![]);
        self.broker.clients.output().retain(|output| {
            !matches!(output, Output::Send { client: to, id: 5, message: Message::Done, .. } if to.0 == client)
        });
    }

    fn report(&mut self, client: u64) -> MadFaultReport {
        self.broker.message(self.now, ClientId(client), 9, Message::GetMadFaults, vec![]);
        let mut report = None;
        self.broker.clients.output().retain(|output| match output {
            Output::Send { client: to, id: 9, message: Message::MadFaultReport(told), .. }
                if to.0 == client =>
            {
                report = Some(told.clone());
                false
            }
            _ => true,
        });
        report.unwrap()
    }

    fn hits(&mut self, client: u64) -> Vec<String> {
        self.report(client).hits.into_iter().map(|(_, hit)| hit).collect()
    }

    fn arrives(&mut self, transmit: Transmit, played: &mut Played) {
        let Route { local, remote, interface } = transmit.route;
        played.arrived.push(Mad::parse(&transmit.mad[..]).unwrap().message.name());
        self.broker.mad(self.now, Route { local: remote, remote: local, interface }, &transmit.mad[..]);
    }

    /// Lets time pass until no timer runs, or for so long. Programs accept, establish, and answer
    /// disconnects.
    fn play(&mut self, time: Duration) -> Played {
        let (mut played, end) = (Played::default(), self.now + time);
        loop {
            while let Some(output) = self.broker.poll_output() {
                match output {
                    Output::Mad(transmit) => self.arrives(transmit, &mut played),
                    Output::Send { client, message: Message::CmEvent(notice), .. } => {
                        let (client, CmEvent { id, kind, .. }) = (client.0, notice.event);
                        let (name, answer) = match kind {
                            CmEventKind::Request { .. } => ("request", Some(accept_alone(id))),
                            CmEventKind::Reply { .. } => ("reply", Some(CmRequest::Establish(id))),
                            CmEventKind::Established => ("established", None),
                            CmEventKind::Unreachable => ("unreachable", None),
                            CmEventKind::Rejected { .. } => ("rejected", None),
                            CmEventKind::Disconnected(Disconnect::ByPeer) => {
                                ("disconnected", Some(CmRequest::Disconnect(id)))
                            }
                            CmEventKind::Disconnected(Disconnect::ByUs) => ("disconnected", None),
                            CmEventKind::Disconnected(Disconnect::NoAnswer) => ("no answer", None),
                            CmEventKind::TimeWaitOver => ("over", None),
                            other => panic!("{other:?}"),
                        };
                        played.events.push((client, name));
                        if let Some(answer) = answer {
                            self.ask(client, answer).unwrap();
                        }
                    }
                    _ => {}
                }
            }
            match self.broker.deadline().filter(|at| *at <= end) {
                Some(at) => {
                    self.now = self.now.max(at);
                    self.broker.tick(self.now);
                }
                None => return played,
            }
        }
    }

    fn connects(&mut self) -> CommId {
        self.ask(2, connect()).unwrap().id
    }
}

/// For each rule of the server (client 1) and the client (client 2): how often each message arrives until
/// both ends are established.
#[test]
fn what_is_lost_late_or_doubled_is_repaired() {
    for (server, client, reqs, reps, rtus) in [
        ("", "", 1, 1, 1),
        // Lost when it is sent: it never arrives anywhere.
        ("", "drop if op=req,count=1", 1, 1, 1),
        ("", "cut if op=req,dir=tx,iter=1..3", 1, 1, 1),
        // Lost when it is received.
        ("drop if op=req,dir=rx,nth=1", "", 2, 1, 1),
        ("drop if op=rep,count=1", "", 1, 1, 1),
        ("", "drop if op=rep,count=1", 1, 2, 1),
        ("", "drop if op=rtu,count=1", 1, 2, 1),
        ("corrupt icrc=bad if op=rtu,count=1", "", 1, 2, 2),
        ("dup if op=mad", "", 1, 2, 1),
        ("", "dup if op=mad,dir=tx", 2, 1, 2),
        ("delay=50ms if op=mad", "delay=50ms if op=mad", 1, 1, 1),
        // The repetition overtakes.
        ("", "delay=5s if op=req,iter=1", 2, 1, 1),
    ] {
        let mut bench = Bench::harmed(&[(1, server), (2, client)]);
        bench.connects();
        let played = bench.play(LONG);
        assert!(played.has(1, "established") && played.has(2, "reply"), "{server} {client}: {played:?}");
        for once in [(1, "request"), (1, "established"), (2, "reply")] {
            assert_eq!(played.events.iter().filter(|event| **event == once).count(), 1, "{played:?}");
        }
        let counts = ["REQ", "REP", "RTU"].map(|name| played.count(name));
        // A repeated message may be answered once more.
        assert!(counts[0] >= reqs && counts[1] >= reps && counts[2] >= rtus, "{server} {client}: {played:?}");
        for (asked, rules) in [(1, server), (2, client)] {
            assert_eq!(bench.hits(asked).is_empty(), rules.is_empty(), "{server} {client}");
        }
    }
}

/// The passive end is established by the first packet of the active end, which its program notices.
#[test]
fn a_lost_rtu_and_a_packet() {
    let mut bench = Bench::harmed(&[(2, "drop if op=rtu")]);
    bench.connects();
    let mut passive = None;
    while let Some((client, CmEvent { id, kind, .. }, _)) = bench.run().pop() {
        match kind {
            CmEventKind::Request { .. } => {
                passive = Some(id);
                bench.ask(client, accept(id)).unwrap();
            }
            _ => drop(bench.ask(client, CmRequest::Establish(id)).unwrap()),
        }
    }
    assert_eq!(bench.hits(2), ["drop if dir=tx,conn=0,op=rtu,iter=1"]);
    bench.ask(1, CmRequest::Establish(passive.unwrap())).unwrap();
    let played = bench.play(LONG);
    assert_eq!((played.events, played.arrived), (vec![(1, "established")], vec![]));
}

#[test]
fn every_request_lost_is_unreachable_after_the_retries() {
    for (server, client, reqs) in [("", "drop if op=req,dir=tx", 0), ("drop if op=req", "", 16)] {
        let mut bench = Bench::harmed(&[(1, server), (2, client)]);
        bench.connects();
        let begin = bench.now;
        let played = bench.play(LONG);
        assert_eq!(played.events, [(2, "unreachable")]);
        assert_eq!(played.count("REQ"), reqs);
        assert!(bench.now - begin < Duration::from_secs(80), "{:?}", bench.now - begin);
        let asked = if client.is_empty() { 1 } else { 2 };
        assert_eq!(bench.report(asked).counts, [(16, 16)]);
    }
}

#[test]
fn disconnects_survive_losses_and_doubles() {
    for (rules, other_end) in [
        ("drop if op=dreq,count=1", "disconnected"),
        ("drop if op=drep,count=1", "disconnected"),
        ("dup if op=dreq|drep", "disconnected"),
        ("drop if op=dreq,dir=tx", ""),
    ] {
        let mut bench = Bench::harmed(&[(2, rules)]);
        let active = bench.connects();
        bench.play(Duration::from_secs(1));
        bench.ask(2, CmRequest::Disconnect(active)).unwrap();
        let played = bench.play(LONG);
        assert_eq!(played.has(1, "disconnected"), !other_end.is_empty(), "{rules}: {played:?}");
        assert!(played.has(2, "disconnected") != played.has(2, "no answer"), "{rules}: {played:?}");
        assert!(!bench.hits(2).is_empty(), "{rules}");
    }
}

/// A corrupt message that no checksum tells reaches the state machine, and the connection is made by the
/// repetition, or refused.
#[test]
fn a_corrupt_message_is_seen() {
    // The lowest bit of the REP's remote communication id: the datagram is about nobody.
    let mut bench = Bench::harmed(&[(2, "corrupt icrc=ok at=31/0 if op=rep,dir=rx,count=1")]);
    bench.connects();
    let before = bench.status().cm.counters.dropped();
    let played = bench.play(LONG);
    assert!(played.has(1, "established") && played.has(2, "reply"), "{played:?}");
    assert_eq!(bench.hits(2), ["corrupt icrc=ok at=31/0 if dir=rx,conn=0,op=rep,iter=1"]);
    assert!(bench.status().cm.counters.dropped() > before);
    // Any bit, of any message: nobody panics, and every connection comes to an end.
    for seed in 0..300 {
        let rules = format!("seed={seed}; corrupt 40% icrc=ok if op=mad,dir=rx");
        let mut bench = Bench::harmed(&[(1, &rules), (2, &rules)]);
        let active = bench.connects();
        let played = bench.play_carelessly(LONG);
        let _ = bench.ask(2, CmRequest::Close(active));
        bench.play_carelessly(LONG);
        assert!(!played.is_empty(), "seed {seed}");
    }
}

impl Bench {
    /// As [`Bench::play`], for connections that end in any way: what arrived.
    fn play_carelessly(&mut self, time: Duration) -> Vec<&'static str> {
        let (mut played, end) = (Played::default(), self.now + time);
        loop {
            while let Some(output) = self.broker.poll_output() {
                match output {
                    Output::Mad(transmit) => self.arrives(transmit, &mut played),
                    Output::Send { client, message: Message::CmEvent(notice), .. } => {
                        let id = notice.event.id;
                        let _ = match notice.event.kind {
                            CmEventKind::Request { .. } => self.ask(client.0, accept(id)),
                            CmEventKind::Reply { .. } => self.ask(client.0, CmRequest::Establish(id)),
                            _ => self.ask(client.0, CmRequest::Close(id)),
                        };
                    }
                    _ => {}
                }
            }
            match self.broker.deadline().filter(|at| *at <= end) {
                Some(at) => {
                    self.now = self.now.max(at);
                    self.broker.tick(self.now);
                }
                None => return played.arrived,
            }
        }
    }
}

/// Rules are for the datagrams of their program, whichever way they go.
#[test]
fn nobody_else_is_harmed() {
    let mut bench = Bench::harmed(&[]);
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [3]);
    bench.rules(3, 1, "drop if op=mad; corrupt icrc=ok if op=mad,dir=rx");
    bench.connects();
    let played = bench.play(LONG);
    assert_eq!(played.arrived, ["REQ", "REP", "RTU"]);
    assert_eq!(bench.report(3).counts, [(0, 0), (0, 0)]);
    // The listener's program is harmed by its own rules, and a third one that connects to it meets them.
    bench.rules(1, 1, "drop if op=req,count=1");
    bench.rules(3, 2, "");
    let third = ConnectParams { qpn: Qpn::new(11), ..params() };
    bench.ask(3, CmRequest::Connect(Box::new(third))).unwrap();
    let played = bench.play(LONG);
    assert!(played.has(3, "reply") && played.count("REQ") == 2, "{played:?}");
    assert_eq!(bench.hits(1), ["drop if dir=rx,conn=0,op=req,iter=1"]);
}

#[test]
fn rules_are_replaced_cleared_and_end_with_their_program() {
    let mut bench = Bench::harmed(&[(2, "drop if op=req")]);
    assert_eq!(bench.report(2).generation, 1);
    bench.connects();
    assert_eq!(bench.report(2).counts, [(1, 1)]);
    // The same again, as after a connection that broke: the counts go on.
    bench.rules(2, 1, "drop if op=req");
    assert_eq!(bench.report(2).counts, [(1, 1)]);
    // Others begin anew.
    bench.rules(2, 2, "delay=3600s if op=mad");
    assert_eq!(bench.report(2), MadFaultReport { generation: 2, counts: vec![(0, 0)], ..Default::default() });
    let played = bench.play(Duration::from_secs(20));
    assert!(played.arrived.is_empty() && played.events.is_empty(), "{played:?}");
    // When the rules end, the late REQs are handled. All but the first, which was lost, are its repetitions.
    bench.rules(2, 3, "");
    assert_eq!(bench.report(2), MadFaultReport::default());
    let played = bench.play(Duration::from_secs(1));
    assert!(played.has(2, "reply") && played.count("REQ") == 4, "{played:?}");
    bench.rules(2, 4, "delay=3600s if op=dreq");
    bench.broker.disconnected(bench.now, ClientId(2));
    let resumed = bench.broker.connections.cm.report_rules(&[32]);
    assert_eq!(resumed.generation, 4, "its program lives");
    bench.broker.died(bench.now, ProcessId(102));
    assert!(bench.broker.connections.cm.report_rules(&[32]).counts.is_empty());
    let played = bench.play(Duration::from_secs(1));
    assert!(played.has(1, "disconnected"), "{played:?}");
    // The next holder of the slot begins without rules, whatever numbers it gives to its own.
    bench.after(Duration::from_secs(60));
    bench.output();
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [2]);
    assert_eq!(bench.report(3), MadFaultReport::default());
    bench.rules(3, 4, "dup if op=rtu; dup if op=rep");
    assert_eq!(bench.report(3).counts, [(0, 0), (0, 0)]);
}

#[test]
fn a_program_is_told_once_until_it_asks() {
    let mut bench = Bench::harmed(&[(2, "a: dup if op=req")]);
    let told = |bench: &mut Bench| {
        let is =
            |(id, message, _): &(u32, Message, Vec<OwnedFd>)| (*id, message) == (0, &Message::MadFaultHits);
        bench.heard(2).iter().filter(|sent| is(sent)).count()
    };
    bench.connects();
    assert_eq!(told(&mut bench), 1);
    let other = ConnectParams { qpn: Qpn::new(12), ..params() };
    bench.ask(2, CmRequest::Connect(Box::new(other))).unwrap();
    assert_eq!(told(&mut bench), 0);
    let report = bench.report(2);
    assert_eq!(report.hits.len(), 2);
    assert_eq!(
        (report.hits[1].clone(), report.more),
        ((0, "dup if dir=tx,conn=1,op=req,iter=1".to_owned()), false)
    );
    assert_eq!(told(&mut bench), 0);
    bench.ask(2, CmRequest::Connect(Box::new(ConnectParams { qpn: Qpn::new(13), ..params() }))).unwrap();
    assert_eq!(told(&mut bench), 1);
}

#[test]
fn late_datagrams_are_bounded() {
    let mut bench = Bench::harmed(&[(2, "delay=3600s + dup if op=req")]);
    for qpn in 20..1220 {
        bench.ask(2, CmRequest::Connect(Box::new(ConnectParams { qpn: Qpn::new(qpn), ..params() }))).unwrap();
        bench.run();
    }
    bench.rules(2, 2, "");
    let arrived = std::iter::from_fn(|| bench.broker.poll_output());
    assert_eq!(arrived.filter(|output| matches!(output, Output::Mad(_))).count(), 1024);
}

#[test]
fn rules_that_are_no_use_are_refused() {
    let mut bench = Bench::with_programs();
    bench.connect(3, 103);
    for (client, rules, says) in [
        (3, "drop if op=rep", "lease one first"),
        (2, "drop", "for management datagrams alone"),
        (2, "drop if op=mad; fail=EIO if verb=connect", "for management datagrams alone"),
        (2, "dorp if op=rep", "line 1, character 1"),
    ] {
        let message = Message::MadFaults { generation: 1, rules: rules.to_owned() };
        match bench.say(client, message, vec![]).as_slice() {
            [(5, Message::Refused(refusal), _)] => {
                assert_eq!(refusal.code, RefusalCode::BadRequest);
                assert!(refusal.sentence.contains(says), "{}", refusal.sentence);
            }
            other => panic!("{rules}: {other:?}"),
        }
    }
    assert_eq!(bench.report(3), MadFaultReport::default());
}

/// Equal seeds decide alike.
#[test]
fn a_seed_repeats() {
    let run = |seed: u64| {
        let rules = format!("seed={seed}; drop 40% if op=mad; dup 30% if op=req|rep");
        let mut bench = Bench::harmed(&[(1, &rules), (2, &rules)]);
        bench.connects();
        bench.play_carelessly(LONG);
        [bench.hits(1), bench.hits(2)]
    };
    let all: Vec<_> = (0..8).map(run).collect();
    assert_eq!(all, (0..8).map(run).collect::<Vec<_>>());
    assert!(all.iter().any(|hits| *hits != all[0]));
}
