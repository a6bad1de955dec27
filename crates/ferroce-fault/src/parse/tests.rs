use super::*;

fn read(text: &str) -> Plan {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    text.parse::<Plan>().map(|plan| panic!("{text}: {plan:?}")).unwrap_err().to_string()
}

#[test]
fn the_examples_of_the_book() {
    for (text, rules) in [
        ("", 0),
        ("seed=7; drop 1% if dir=rx", 1),
        ("burst(0.5%,30%) if op=readresp", 1),
        ("drop if qp=0,psn=4,iter=1..2", 1),
        ("tail: drop if op=write,pos=last,count=1", 1),
        ("ce 5% + delay=100us~20us", 1),
        ("delay=100us~20us normal if op!=ack", 1),
        ("rate=1gbit queue=256k mark=64k if peer=192.0.2.2", 1),
        ("rate=10mbit queue=5ms if peer=2001:db8::1|192.0.2.1", 1),
        ("cut if dir=tx,time=1s..1500ms", 1),
        (
            "fail=ENOMEM if verb=reg_mr,nth=3; wc=RETRY_EXC_ERR if qp=1,msg=10; kill=broker if at=established",
            3,
        ),
        ("drop if op=readresp,msg=1,nth=3", 1),
        ("delay=10ms if op=ack", 1),
        ("rnr=20ms if op=send,nth=2\nnak=access if op=write,count=1  # a comment\n\n# another\n", 2),
        ("corrupt 1% icrc=ok at=psn; corrupt at=17/3", 2),
        ("reorder 2% by=3; reorder by=1ms; reorder", 3),
        ("log=/tmp/a file.log ; drop", 1),
        ("drop if nth=every/10", 1),
        ("capture=/tmp/a, b,64m; capture if dir=rx,op=send|ack", 1),
        ("burst(1%,10%,90%,0.1%)", 1),
    ] {
        assert_eq!(read(text).rules.len(), rules, "{text}");
    }
    assert_eq!(read("log=/tmp/a file.log ; drop").log.as_deref(), Some("/tmp/a file.log"));
    let capture = read("drop; capture=/tmp/a, b,64m\ncapture").capture;
    assert_eq!(capture, Some(CaptureFolder { path: "/tmp/a, b".to_owned(), octets: 64 << 20 }));
    assert_eq!(read("seed=7; drop").seed, 7);
    assert_eq!(read("drop").seed, 1);
    let tail = read("tail:  drop  if op=write,\tpos=last");
    assert_eq!(tail.rules[0].name.as_deref(), Some("tail"));
    assert_eq!(tail.rules[0].text, "drop if op=write, pos=last");
}

#[test]
fn the_page_of_the_book_has_every_word_and_its_rules_can_be_read() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/faults.md");
    let page = std::fs::read_to_string(page).unwrap();
    let keys = Key::WORDS.iter().map(|(word, _)| *word);
    let values =
        [Key::Dir, Key::Op, Key::Pos, Key::Verb, Key::At].map(|key| words_of(key).join(", ")).join(", ");
    let statuses = WcError::WORDS.iter().map(|(word, _)| *word);
    let places = Place::WORDS.iter().map(|(word, _)| *word);
    let fixed: Vec<&str> = keys.chain(statuses).chain(places).chain(names(ERRNOS)).collect();
    let (_, calls) = page.split_once("| `verb=WORD` | ").unwrap();
    let calls: Vec<&str> = calls.lines().next().unwrap().split(['`', ',', ' ']).collect();
    for word in fixed.into_iter().chain(values.split(", ")) {
        let named = [format!("`{word}`"), format!("`{word}="), format!("={word}"), format!("\\|{word}`")];
        assert!(calls.contains(&word) || named.iter().any(|form| page.contains(form)), "{word}");
    }
    let (_, examples) = page.split_once("## Examples").unwrap();
    let (examples, _) = examples.split_once("\n## ").unwrap();
    let rules = examples.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    assert!(rules.clone().count() > 20);
    for (rule, _) in rules {
        assert_eq!(read(&rule.replace("\\|", "|")).rules.len(), 1, "{rule}");
    }
}

#[test]
fn values_mean_what_they_say() {
    let plan =
        read("rate=1gbit queue=5ms mark=64k + delay=1ms~20us pareto if psn=4..,len!=0..3|9,time=1s..2s");
    let rule = &plan.rules[0];
    let rate = Act::Rate {
        bits: 1_000_000_000,
        queue: u64::MAX,
        queue_time: Some(Duration::from_millis(5)),
        mark: Some(65_536),
    };
    let delay =
        Delay { base: Duration::from_millis(1), jitter: Duration::from_micros(20), spread: Spread::Pareto };
    assert_eq!(rule.acts, [rate, Act::Delay(delay)]);
    assert_eq!(rule.terms[0].values, [Value::Range(4, u64::MAX)]);
    assert!(rule.terms[1].negated);
    assert_eq!(rule.terms[1].values, [Value::Range(0, 3), Value::Range(9, 9)]);
    assert_eq!(rule.terms[2].values, [Value::Range(1_000_000_000, 2_000_000_000)]);
}

/// A plan may begin with its seed, also where lines and not semicolons separate its entries.
#[test]
fn a_plan_may_begin_with_its_seed() {
    for text in ["seed=7\ndrop 1%", "seed=7\ndrop if dir=rx", "seed=7 # chosen\ndrop", "seed=7#chosen"] {
        assert_eq!(read(text).seed, 7, "{text}");
    }
    assert_eq!(read("seed=7\ndrop if dir=rx").rules.len(), 1);
}

#[test]
fn a_plan_is_printed_as_it_is_read() {
    for text in [
        "",
        "seed=9",
        "log=/tmp/a #file.log ; seed: drop  if dir=rx ; log: delay=1ms ~ 2us normal\t+dup # a comment\n\n hold",
    ] {
        let plan = read(text);
        assert_eq!(read(&plan.to_string()), plan, "{text}: {plan}");
    }
    assert_eq!(read("loss:  drop 5%  if dir=rx").to_string(), "seed=1\nloss: drop 5% if dir=rx\n");
}

#[test]
fn a_message_names_the_place_and_the_words() {
    for (text, want) in [
        ("seed=7; dorp 1%", "line 1, character 9, at \"dorp\": expected one of drop, dup"),
        ("drop\ndrop if opp=ack", "line 2, character 9, at \"opp=ack\": expected one of dir, dev"),
        ("drop if op=akc", "line 1, character 12, at \"akc\": expected one of send, write"),
        ("drop 120%", "line 1, character 6, at \"120%\": a probability is"),
        ("drop if psn=9..3", "at \"9..3\": expected a number, a range"),
        ("delay=10", "line 1, character 7, at \"10\": a time is"),
        ("drop maybe", "at \"maybe\": expected `;`"),
        ("fail=EFOO if verb=reg_mr", "at \"EFOO\": expected one of EPERM, ENOENT,"),
        ("fail=ENOMEM", "need `if verb=…`"),
        ("fail=ENOMEM if verb=reg_mr,op=ack", "at \"op=ack\": rules with this act"),
        ("drop + fail=ENOMEM", "one rule acts on packets, on calls"),
        ("a: drop; a: dup", "another rule has this name"),
        ("drop if op=ack,op=nak", "this term is there twice"),
        ("burst(1%)", "expected `,`"),
        ("drop if count=0", "`count` is the number of times"),
        ("drop if nth=every/0", "expected a number from 1"),
        ("kill=peer if at=rts", "use `kill=self`"),
        ("wc=BAD", "expected one of LOC_LEN_ERR"),
        (
            "fail=EIO if dev=fr0,verb=reg_mr|listen",
            "character 13, at \"dev=fr0\": the rule is for `listen`, whose device is not known",
        ),
        ("fail=EIO if verb!=reg_mr,dev!=fr0", "the rule is for `resolve_addr`, whose device is not known"),
        (
            "fail=EIO if verb=reg_mr,qp=0",
            "at \"qp=0\": the rule is for `reg_mr`, whose queue pair is not known",
        ),
        ("kill=self if at=established,dev=fr0", "the rule is for `established`, whose device is not known"),
        ("kill=self if msg=3,at=rts", "the rule is for `rts`, whose work request is not known"),
        ("capture", "the act `capture` needs capture=FOLDER,SIZE"),
        ("capture=/tmp; capture", "at \"/tmp\": expected a folder and a size"),
        ("capture=,1m; capture", "expected a folder and a size"),
        ("thunder=0.1", "at \"thunder=0.1\": expected one of"),
    ] {
        let message = refused(text);
        assert!(message.contains(want), "{text}: {message}");
    }
    refused(&"drop;".repeat(2000));
    refused(&" ".repeat(40_000));
}

proptest::proptest! {
    /// No text makes the parser panic, and the position that it names is in the text.
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9=;:,+~()|.%/ \n#é!]{0,60}") {
        if let Err(error) = text.parse::<Plan>() {
            proptest::prop_assert!(error.line <= text.matches('\n').count() + 1);
        }
    }

    #[test]
    fn any_text_of_words_is_read_or_refused(words in proptest::collection::vec(
        proptest::sample::select(vec!["drop", "dup", "if", "op", "=", "ack", ",", "+", ";", "1%", "delay=", "10ms", "~",
            "burst(", ")", "name:", "rate=", "1gbit", "queue=", "every/", "2", "..", "|", "!=", "qp", "seed=", "\n", "#"]), 0..20)) {
        let _ = words.join(" ").parse::<Plan>();
        let _ = words.concat().parse::<Plan>();
    }
}

#[test]
fn rules_for_management_datagrams() {
    for (text, mads) in [
        ("drop if op=rep,count=1", 1),
        ("delay=50ms~10ms normal if op=rtu", 1),
        ("cut if op=req,dir=tx,peer=192.0.2.2,time=0s..2s", 1),
        ("dup 50% + delay=1ms if op=dreq|drep,conn=0..3,iter!=1", 1),
        ("corrupt if op=mad; corrupt icrc=bad at=255/7 if op=sidrreq|sidrrep", 2),
        ("corrupt icrc=ok at=0/0 if op=mra|rej|lap|apr,dir=rx; corrupt icrc=ok if op=mad,dir!=tx", 2),
        // The following rules are for packets of queue pairs, as before.
        ("drop 1%; drop if op!=ack; drop if op=send|read,qp=0", 0),
        ("fail=EIO if verb=connect; kill=self if at=established", 0),
    ] {
        let plan = read(text);
        assert_eq!(plan.rules.iter().filter(|rule| rule.kind() == Kind::Mad).count(), mads, "{text}");
        let for_mads = plan.for_mads();
        assert_eq!(for_mads.as_ref().map_or(0, |plan| plan.rules.len()), mads);
        if let Some(plan) = for_mads {
            assert!(!plan.has(Kind::Packet));
            assert_eq!(read(&plan.to_string()), plan);
        }
    }
    let plan = read("seed=4; log=/tmp/x; drop; a: drop if op=rep; dup; drop 3% if op=mad");
    let for_mads = plan.for_mads().unwrap();
    assert_eq!(for_mads.to_string(), "seed=4\na: drop if op=rep\ndrop 3% if op=mad\n");
    assert!(plan.has(Kind::Packet) && plan.has(Kind::Mad));
}

#[test]
fn what_management_datagrams_do_not_have() {
    for (text, says) in [
        ("rnr=1ms if op=req", "have the acts drop, dup"),
        ("drop + reorder if op=mad", "have the acts drop, dup"),
        ("burst(1%,1%) if op=mad", "have the acts drop, dup"),
        ("hold if op=rep", "have the acts drop, dup"),
        ("ce if op=rep", "have the acts drop, dup"),
        ("rate=1gbit if op=rep", "have the acts drop, dup"),
        ("drop if op=rep,psn=1", "character 16, at \"psn=1\": rules for management datagrams have the terms"),
        ("drop if qp=0,op=rep", "character 9, at \"qp=0\": rules for management datagrams have the terms"),
        ("drop if dev=fr0,op=rep", "have the terms"),
        ("drop if op=rep,pos=first", "have the terms"),
        ("drop if op=send|rep", "packets of queue pairs or on management datagrams"),
        ("drop if op!=rep", "by `op=`"),
        ("drop if op!=mad", "by `op=`"),
        ("drop if op=rep,peer=0", "has an address and no number"),
        ("drop if conn=1", "name them by `op`"),
        ("drop if conn=1,op=send", "name them by `op`"),
        ("corrupt icrc=ok if op=rep", "add dir=rx"),
        ("corrupt icrc=ok if op=rep,dir=tx", "add dir=rx"),
        ("corrupt at=psn if op=rep", "0/0 to 255/7"),
        ("corrupt at=256/0 if op=rep", "0/0 to 255/7"),
        ("drop if op=reqs", "sidrreq, sidrrep, lap, apr"),
        ("fail=EIO if op=req,verb=connect", "cannot have this term"),
    ] {
        let message = refused(text);
        assert!(message.contains(says), "{text}: {message}");
    }
}
