use std::time::Duration;

use super::*;

fn ended(status: Option<i32>, stdout: &str, stderr: &str) -> Ended {
    Ended {
        status,
        stdout: stdout.as_bytes().to_vec(),
        stderr: stderr.to_owned(),
        elapsed: Duration::from_secs(1),
        hits: vec![],
        left: vec![],
    }
}

const REPORT: &str =
    "ferroce: faults of process 4711, seed 1\n  1 hits, 1 matched: fail=ENOMEM if verb=reg_mr,nth=1\n";

#[test]
fn each_end_has_its_verdict() {
    let good = ended(Some(0), "sum 17\n", "");
    let expected = Expected::new(Compare::Auto, &good, &good);
    assert_eq!(expected.compare, Compare::Exact);
    let message = format!("cannot register\n{REPORT}");
    for (end, verdict, detail) in [
        (ended(Some(0), "sum 17\n", REPORT), Verdict::Same, ""),
        (ended(Some(0), "sum 18\n", REPORT), Verdict::Wrong, "'sum 18' in place of 'sum 17'"),
        (ended(Some(0), "", REPORT), Verdict::Wrong, "nothing in place of 'sum 17'"),
        (ended(Some(3), "", &message), Verdict::Refused, "exit status 3: cannot register"),
        (ended(Some(3), "failed\n", REPORT), Verdict::Refused, "exit status 3: failed"),
        (ended(Some(3), "", REPORT), Verdict::Silent, "exit status 3"),
        (ended(Some(139), "sum 17\n", ""), Verdict::Crash, "signal 11"),
        (ended(Some(124), "", &message), Verdict::Hang, "exit status 124"),
        (ended(None, "sum 17\n", ""), Verdict::Hang, "did not end within 1.0 s"),
        (
            Ended { left: vec!["server".to_owned()], ..ended(Some(0), "sum 17\n", "") },
            Verdict::Leak,
            "left server",
        ),
    ] {
        assert_eq!(expected.judge(&end), (verdict, detail.to_owned()));
    }
}

#[test]
fn the_comparison_is_the_strictest_in_which_runs_agree() {
    let first = ended(Some(0), "QPN 0x17\nrate 2.5 MB\n", "");
    for (second, compare, verdict) in [
        ("QPN 0x17\nrate 2.5 MB\n", Compare::Exact, Verdict::Wrong),
        ("rate 2.75 MB\nQPN 0x18\n", Compare::Words, Verdict::Same),
        ("another\n", Compare::Status, Verdict::Same),
    ] {
        let expected = Expected::new(Compare::Auto, &first, &ended(Some(0), second, ""));
        assert_eq!(expected.compare, compare);
        let (found, _) = expected.judge(&ended(Some(0), "rate 9 MB\nQPN 0x99\n", ""));
        assert_eq!(found, verdict, "{second}");
        let (found, _) = expected.judge(&ended(Some(0), "nonsense\n", ""));
        assert_eq!(found == Verdict::Same, compare == Compare::Status, "{second}");
    }
}

#[test]
fn every_call_and_packet_has_its_rules_and_one_survey() {
    let rules = rules::all("EIO").unwrap();
    for text in [
        "fail=EIO if verb=reg_mr,nth=1",
        "fail=EIO if verb=get_cm_event,nth=1",
        "drop if op=readresp,dir=tx,count=1",
        "corrupt if op=dreq,dir=tx,count=1",
    ] {
        assert!(rules.iter().any(|rule| rule.text == text), "{text}");
    }
    rules::survey(&rules).parse::<ferroce_fault::Plan>().unwrap();
    assert!(rules::all("ENONSENSE").is_err_and(|error| error.0.contains("ENONSENSE")));
}

#[test]
fn problems_come_with_the_command_that_repeats_them() {
    let args =
        <crate::args::Args as clap::Parser>::parse_from(["ferroce", "sweep", "--", "sh", "-c", "a 'b' -j"]);
    let crate::args::Object::Sweep(args) = args.object else { panic!() };
    let good = ended(Some(0), "", "");
    let expected = Expected::new(Compare::Exact, &good, &good);
    let rows = [
        row(&args, "drop if op=ack,dir=tx,count=1", Some(ended(Some(0), "", "")), &expected, false),
        row(&args, "fail=EIO if verb=reg_mr,nth=1", Some(ended(Some(134), "", "")), &expected, false),
        row(&args, "fail=EIO if verb=post_send,nth=1", Some(ended(None, "", "")), &expected, true),
    ];
    let text = table(&rows, 200, false);
    let again =
        "ferroce run --private-net --fault 'fail=EIO if verb=reg_mr,nth=1' -- sh -c 'a '\\''b'\\'' -j'\n";
    assert_eq!(text.matches("repeat with: ").count(), 1);
    assert!(text.contains(again), "{text}");
    assert!(text.ends_with("3 of 200 rules act on the program: 1 same, 1 crash, 1 not-run\n"), "{text}");
}
