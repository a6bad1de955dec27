use super::*;

const HEAD: &str = "end = \"1s\"\n[[host]]\nname = \"a\"\ncount = 2\n[[host]]\nname = \"b\"\n[[switch]]\nname = \"s\"\n\
                    [[link]]\nends = [\"a\", \"s\"]\nrate = \"10gbit\"\n[[link]]\nends = [\"s\", \"b\"]\nrate = \"10gbit\"\n";
const FLOW: &str = "[[flow]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nsize = \"4k\"\nmessages = 10\n";

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    text.parse()
}

/// Each example is read, keeps its promise, repeats, and differs with another seed.
#[test]
fn the_examples_run() {
    for (name, text) in EXAMPLES {
        let scenario = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let outcome = scenario.run(scenario.seed).unwrap();
        let failures: Vec<_> = outcome.failures().map(|(flow, pair)| (&flow.name, &pair.failure)).collect();
        assert!(outcome.is_ok(), "{name}: {failures:?} {:?}", outcome.stopped);
        assert!(
            outcome.flows.iter().all(|flow| flow.pairs.iter().all(|pair| pair.goodput() > 0.0)),
            "{name}"
        );
        assert_eq!(scenario.run(scenario.seed).unwrap(), outcome, "{name}");
        assert_ne!(scenario.run(scenario.seed + 1).unwrap().digest, outcome.digest, "{name}");
    }
}

#[test]
fn incast_is_fair_and_marks_keep_the_queue_short() {
    let outcome = parse(EXAMPLES[0].1).unwrap().run(1).unwrap();
    assert_eq!(outcome.flows[0].pairs.len(), 16);
    assert!(outcome.jain() > 0.8, "{}", outcome.jain());
    assert!(outcome.flows[0].goodput() > 5e9, "{}", outcome.flows[0].goodput());
    let last = outcome.links.iter().find(|link| link.to == "server").unwrap();
    assert!(last.stats.marked > 0 && last.used > 500_000, "{last:?}");
    assert!(outcome.flows[0].sum(|pair| pair.cnps) > 0);
}

#[test]
fn a_lossy_line_delivers_everything_once() {
    let outcome = parse(EXAMPLES[1].1).unwrap().run(1).unwrap();
    let completed: Vec<u64> = outcome.flows.iter().map(FlowOutcome::completed).collect();
    assert_eq!(completed, [300, 100, 100, 500]);
    assert!(outcome.flows.iter().all(|flow| flow.sum(|pair| pair.resent) > 0));
    assert!(outcome.flows[0].sum(|pair| pair.rnr) > 0);
    assert!(outcome.links.iter().all(|link| link.stats.lost > 0));
    assert!(outcome.rules.iter().all(|rule| rule.hits > 0), "{:?}", outcome.rules);
}

/// On a long queue, where more is on its way than the responder holds, packets that overtake others are no
/// loss: to send everything again for each of them sent the same packets five times, and filled the queue
/// with them.
#[test]
fn packets_in_another_order_make_no_storm() {
    for fault in ["reorder 1% by=3", "reorder 5% by=8"] {
        let (goodput, resent) = writes("10gbit", "10us", fault);
        assert!(goodput > 8e9, "{fault}: {goodput}");
        // A tenth of the 64,000 packets.
        assert!(resent < 6_400, "{fault}: {resent}");
    }
}

/// A thousand WRITEs of 64 KiB over a link with this rate and delay and a queue of 5 ms: their goodput in
/// bits a second, and packets sent again.
fn writes(rate: &str, delay: &str, fault: &str) -> (f64, u64) {
    let text = format!(
        "end = \"5s\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n\
         [[link]]\nends = [\"a\", \"b\"]\nrate = \"{rate}\"\ndelay = \"{delay}\"\nqueue = \"5ms\"\n\
         [[fault]]\ndo = \"{fault}\"\n\
         [[flow]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nsize = \"64k\"\nmessages = 1000\n"
    );
    let outcome = parse(&text).unwrap().run(1).unwrap();
    (outcome.flows[0].goodput(), outcome.flows[0].sum(|pair| pair.resent))
}

/// The first packet that others overtake is sent again for nothing. On a long path a window that stayed
/// smaller for that would take seconds to grow back.
#[test]
fn a_needless_resend_leaves_the_window_as_it_was() {
    let (whole, none) = writes("1gbit", "5ms", "drop 0%");
    let (goodput, resent) = writes("1gbit", "5ms", "reorder 1% by=50us");
    assert!(none == 0 && (1..10).contains(&resent), "{none}, {resent}");
    assert!(goodput > 0.95 * whole, "{goodput} of {whole}");
}

#[test]
fn a_partition_fails_as_expected_and_only_then() {
    let text = EXAMPLES[2].1;
    let outcome = parse(text).unwrap().run(1).unwrap();
    assert!(outcome.is_ok());
    assert_eq!(outcome.flows[1].errors().get("RETRY_EXC_ERR"), Some(&1));
    assert!(outcome.flows[0].latency().percentile(100.0).unwrap() > Duration::from_millis(50));
    // Without the promise of an error, the error is a failure.
    let outcome = parse(&text.replace("expect =", "# expect =")).unwrap().run(1).unwrap();
    let failures: Vec<&str> = outcome.failures().filter_map(|(_, pair)| pair.failure.as_deref()).collect();
    assert_eq!(failures, ["completions with errors: 1 RETRY_EXC_ERR, 15 WR_FLUSH_ERR"]);
    // And an error that does not come is one too.
    let outcome = parse(&text.replace(", \"2s..\"", "")).unwrap().run(1).unwrap();
    assert!(outcome.failures().next().is_some_and(|(flow, pair)| {
        flow.name == "fails"
            && pair.failure.as_deref() == Some("expected RETRY_EXC_ERR, and no message failed")
    }));
}

/// The check of data is real: a changed octet behind a right ICRC is found.
#[test]
fn wrong_octets_are_found() {
    for op in ["write", "send", "read"] {
        let packets = if op == "read" { "readresp" } else { op };
        let fault = format!(
            "[[fault]]\ndo = \"corrupt icrc=ok at=payload\"\nif = {{ op = \"{packets}\", nth = 3 }}\n"
        );
        let flow = FLOW.replace("write", op);
        let outcome = parse(&format!("{HEAD}{flow}{fault}")).unwrap().run(1).unwrap();
        let (_, pair) = outcome.failures().next().unwrap_or_else(|| panic!("{op}"));
        assert!(pair.failure.as_ref().unwrap().contains("with wrong octets"), "{pair:?}");
    }
}

#[test]
fn messages_that_do_not_complete_are_failures() {
    let text =
        format!("{HEAD}{FLOW}").replacen("rate = \"10gbit\"", "rate = \"10gbit\"\ndown = [\"0s..\"]", 1);
    let outcome =
        parse(&text.replace("messages = 10", "messages = 10\ntimeout = 20")).unwrap().run(1).unwrap();
    let (_, pair) = outcome.failures().next().unwrap();
    assert_eq!(pair.failure.as_deref(), Some("10 of 10 messages had not completed at the end"));
    assert_eq!(outcome.simulated, Duration::from_secs(1));
}

#[test]
fn a_run_with_too_many_packets_stops() {
    let text = format!("max_packets = 5000\n{HEAD}{}", FLOW.replace("messages = 10", ""));
    let outcome = parse(&text).unwrap().run(1).unwrap();
    assert!(outcome.stopped.as_ref().is_some_and(|why| why.contains("`max_packets` is 5000")), "{outcome:?}");
    assert!(!outcome.is_ok());
}

/// A rule of a host sees both directions, as a program's does; a rule of a link has its own.
#[test]
fn rules_apply_at_their_place() {
    let hits = |fault: &str| {
        let text = format!("{HEAD}{FLOW}{}", fault.replace("RULE", "do = \"drop\""));
        let outcome = parse(&text).unwrap().run(1).unwrap();
        outcome.rules.iter().map(|rule| rule.hits).collect::<Vec<_>>()
    };
    // The tenth WRITE packet of each of the two queue pairs, of which host b has both.
    let nth = |dir: &str| format!("if = {{ dir = \"{dir}\", op = \"write\", nth = 10 }}\n");
    assert_eq!(hits(&format!("[[fault]]\nhost = \"b\"\nRULE\n{}", nth("rx"))), [2]);
    assert_eq!(hits(&format!("[[fault]]\nhost = \"b\"\nRULE\n{}", nth("tx"))), [0]);
    assert_eq!(hits(&format!("[[fault]]\nhost = \"a\"\nRULE\n{}", nth("tx"))), [1, 1]);
    assert_eq!(hits(&format!("[[fault]]\nlink = [\"s\", \"b\"]\nRULE\n{}", nth("tx"))), [2]);
    assert_eq!(hits(&format!("[[fault]]\nlink = [\"s\", \"b\"]\nRULE\n{}", nth("rx"))), [0]);
    assert_eq!(hits("[[fault]]\nRULE\nif = { op = \"write\", nth = 10 }\n"), [2]);
    assert_eq!(hits("[[fault]]\nhost = \"a1\"\nRULE\nif = { op = \"ack\", dir = \"rx\", count = 1 }\n"), [1]);
}

/// An observer sees the run and does not change it.
#[test]
fn a_run_can_be_watched() {
    let scenario = parse(&format!("{HEAD}{FLOW}")).unwrap();
    let (mut sent, mut told) = (0, 0);
    let observer = Observer {
        trace: Some(Box::new(|_, event| sent += u64::from(matches!(event, crate::hosts::Event::Sent(..))))),
        progress: Some(Box::new(|_| told += 1)),
    };
    let outcome = scenario.run_observed(1, observer).unwrap();
    assert_eq!(outcome, scenario.run(1).unwrap());
    assert_eq!(outcome.packets, sent);
    assert!(told > 0);
}

/// An error names its place, and what would be right.
#[test]
fn errors_have_their_place() {
    let cases: &[(&str, &str, usize, usize, &str)] = &[
        ("end = \"1s\"", "end = 1", 1, 7, "a time is a number with ns, us, ms or s"),
        ("end = \"1s\"", "end = \"0s\"", 1, 7, "above 0"),
        ("end = \"1s\"", "end = \"2h\"", 1, 7, "a time is a number"),
        ("end = \"1s\"", "end = \"3601s\"", 1, 7, "at most 3600s"),
        ("end = \"1s\"", "", 1, 1, "missing field `end`"),
        ("end = \"1s\"", "ende = \"1s\"", 1, 1, "expected one of `seed`, `end`"),
        ("end = \"1s\"", "end = \"1s\"\nwarm_up = \"2s\"", 2, 11, "at most 1s"),
        ("end = \"1s\"", "end = \"1s\"\nmax_packets = 0", 2, 15, "max_packets is 1 to"),
        ("end = \"1s\"", "end = \"1s", 1, 10, ""),
        ("count = 2", "count = 2000", 4, 9, "count is 1 to 1024"),
        ("count = 2", "cound = 2", 4, 1, "expected one of `name`, `count`"),
        ("count = 2", "mtu = 1500", 4, 7, "256, 512, 1024, 2048 or 4096"),
        ("count = 2", "congestion = \"on\"", 4, 14, "expected one of off, react, ecn"),
        ("count = 2", "buffer = \"1k\"", 4, 10, "at least 8k"),
        ("count = 2", "batch = 0", 4, 9, "batch is 1 to 1024"),
        ("name = \"b\"", "name = \"a1\"", 6, 8, "another host or switch has the name `a1`"),
        ("name = \"b\"", "name = \"b c\"", 6, 8, "letters, digits"),
        ("ends = [\"a\", \"s\"]", "ends = [\"a\", \"x\"]", 10, 14, "there are: a, a0, a1, b, s"),
        ("ends = [\"a\", \"s\"]", "ends = [\"a\"]", 10, 8, "two ends"),
        ("ends = [\"a\", \"s\"]", "ends = [\"s\", \"s\"]", 10, 8, "two different nodes"),
        ("ends = [\"a\", \"s\"]", "ends = [\"b\", \"s\"]", 13, 8, "s and b have a link already"),
        ("rate = \"10gbit\"", "rate = \"10g\"", 11, 8, "bit, kbit, mbit or gbit"),
        ("rate = \"10gbit\"", "rate = \"10gbit\"\nqueue = \"10s\"", 12, 9, "at most 1073741824 octets"),
        (
            "rate = \"10gbit\"",
            "rate = \"10gbit\"\nqueue = \"x\"",
            12,
            9,
            "\"256k\", or a time such as \"5ms\"",
        ),
        ("rate = \"10gbit\"", "rate = \"10gbit\"\nloss = \"200%\"", 12, 8, "0 to 100%"),
        ("rate = \"10gbit\"", "rate = \"10gbit\"\ndown = [\"2s..1s\"]", 12, 9, "an outage is two times"),
        ("from = \"a\"", "from = \"s\"", 16, 8, "`s` is a switch; hosts are: a, a0, a1, b"),
        ("to = \"b\"", "to = \"c\"", 17, 6, "no host has the name `c`; there are: a, a0, a1, b"),
        ("from = \"a\"", "from = \"b\"", 17, 6, "two different hosts"),
        ("op = \"write\"", "op = \"wirte\"", 18, 6, "expected one of send, write, read, atomic, tcp"),
        ("op = \"write\"", "op = \"tcp\"", 19, 8, "a flow of TCP has no `size`"),
        ("op = \"write\"", "op = \"atomic\"", 19, 8, "at most 8 octets"),
        ("size = \"4k\"", "size = \"1g\"", 19, 8, "a message has at most"),
        ("size = \"4k\"", "size = \"64m\"", 16, 8, "need 4096 MiB of memory, and may have 1024 MiB"),
        ("messages = 10", "messages = 0", 20, 12, "messages is 1 to"),
        ("messages = 10", "messages = -1", 20, 12, ""),
        ("messages = 10", "messages = 10\nduration = \"1s\"", 21, 12, "not both"),
        ("messages = 10", "start = \"1s\"\nduration = \"1ms\"", 21, 12, "at most 0ns"),
        ("messages = 10", "queue_pairs = 2000", 16, 8, "at most 2047 queue pairs"),
        ("messages = 10", "outstanding = 0", 20, 15, "outstanding is 1 to 16384"),
        ("messages = 10", "receives = 1", 20, 12, "`receives` is for op = \"send\""),
        ("messages = 10", "timeout = 32", 20, 11, "is 0 to 31; this is 32"),
        ("messages = 10", "expect = \"OOPS\"", 20, 10, "RETRY_EXC_ERR, RNR_RETRY_EXC_ERR"),
        ("messages = 10", "[[fault]]\ndo = \"dorp 1%\"", 21, 7, "expected one of drop, dup"),
        ("messages = 10", "[[fault]]\nname = \"x\"\ndo = \"drop 1x\"", 22, 12, "a probability is a number"),
        ("messages = 10", "[[fault]]\ndo = \"drop\"\nif = { op = \"x\" }", 22, 6, "send"),
        (
            "messages = 10",
            "[[fault]]\ndo = \"drop\"\nif = { op = 1.5 }",
            22,
            6,
            "`if.op` is a number, a text",
        ),
        ("messages = 10", "[[fault]]\ndo = \"drop\"\nif = { dir = \"rx\" }", 22, 6, "needs host"),
        ("messages = 10", "[[fault]]\ndo = \"nak=access\"", 21, 6, "are for programs"),
        ("messages = 10", "[[fault]]\ndo = \"kill=self\"\nif = { at = \"rts\" }", 21, 6, "are for programs"),
        ("messages = 10", "[[fault]]\ndo = \"drop\"\nif = { op = \"rep\" }", 21, 6, "are for programs"),
        ("messages = 10", "[[fault]]\ndo = \"drop; dup\"", 21, 6, "the acts of one rule"),
        ("messages = 10", "[[fault]]\nhost = \"s\"\ndo = \"drop\"", 21, 8, "`s` is a switch"),
        ("messages = 10", "[[fault]]\nlink = [\"a\", \"b\"]\ndo = \"drop\"", 21, 8, "a and b have no link"),
        (
            "messages = 10",
            "[[fault]]\nhost = \"a\"\nlink = [\"a\", \"s\"]\ndo = \"drop\"",
            21,
            8,
            "for a host or for a link",
        ),
    ];
    let right = format!("{HEAD}{FLOW}");
    assert!(parse(&right).is_ok());
    for (old, new, line, column, message) in cases {
        assert!(right.contains(old), "{old}");
        let error = parse(&right.replacen(old, new, 1)).expect_err(new);
        assert!(error.message.contains(message), "{new}: {error}");
        assert_eq!((error.line, error.column), (*line, *column), "{new}: {error}");
    }
    // Islands, and an empty file.
    let apart = right.replace("[[link]]\nends = [\"s\", \"b\"]\nrate = \"10gbit\"\n", "");
    assert!(parse(&apart).unwrap_err().message.contains("no links lead from a0 to b"));
    assert!(parse("end = \"1s\"").unwrap_err().message.contains("[[host]]"));
    assert!(parse(HEAD).unwrap_err().message.contains("[[flow]]"));
}
