//! The scenarios of loss and congestion: what each end reports, and the tests that show it.

use std::fmt::Write;
use std::path::Path;

/// A scenario: what happens, the outcome at the requester and at the responder, and tests by their file below `crates` and function.
struct Scenario(&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const MATRIX: (&str, &str) = ("ferroce-proto/tests/rc/matrix.rs", "fault_matrix");
const SOCKETS: (&str, &str) =
    ("ferroce-engine/tests/lossy.rs", "two_hundred_thousand_mixed_messages_over_sockets");

const SCENARIOS: [Scenario; 25] = [
    Scenario(
        "A middle packet of a WRITE is lost.",
        "success; go-back-N sends it and what is behind it again, selective repeat it alone",
        "one sequence NAK; the data are written once",
        &[MATRIX, ("ferroce-proto/tests/rc/responder.rs", "one_nak_for_each_gap"), SOCKETS],
    ),
    Scenario(
        "The last packet of a lone message is lost.",
        "success; it is sent again before the ACK timeout, which no retry is counted for",
        "one execution",
        &[MATRIX, ("ferroce-proto/tests/rc/early.rs", "losses_behind_pauses_are_recovered_quickly"), SOCKETS],
    ),
    Scenario(
        "A packet is lost, and its NAK too.",
        "success",
        "no second NAK for the same gap; one execution",
        &[MATRIX, ("ferroce-proto/tests/rc/responder.rs", "one_nak_for_each_gap")],
    ),
    Scenario(
        "Only the ACK is lost.",
        "success by the ACK of the duplicate",
        "the duplicate is counted and acknowledged, and not executed",
        &[MATRIX, ("ferroce-proto/tests/rc/scenarios.rs", "a_lost_ack_is_given_again")],
    ),
    Scenario(
        "One PSN is lost three times.",
        "success, all retries left",
        "one execution",
        &[MATRIX, ("ferroce-proto/tests/rc/retries.rs", "progress_gives_all_retries_back")],
    ),
    Scenario(
        "One PSN is lost for ever.",
        "RETRY_EXC_ERR after 1 + `retry_cnt` timeouts; what is behind it is flushed",
        "RTS, no event",
        &[MATRIX, ("ferroce-proto/tests/rc/retries.rs", "retry_cnt_7_is_seven_retries")],
    ),
    Scenario(
        "One response to a READ of 1 MiB is lost.",
        "success; the part of the READ with the hole is asked for again",
        "it sends that part again",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "a_hole_in_a_long_read_costs_a_part_of_it"),
            ("ferroce-proto/tests/rc/retries.rs", "responses_behind_a_gap_are_kept"),
            SOCKETS,
        ],
    ),
    Scenario(
        "The first response to the first of two READs is lost.",
        "both succeed, in order",
        "it finds both in what it remembers of READs",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "the_first_response_of_two_reads_is_lost"),
            ("ferroce-proto/tests/rc/retries.rs", "an_ack_past_an_unanswered_read_asks_again"),
        ],
    ),
    Scenario(
        "The answer to an atomic is lost.",
        "success with the result of the first execution",
        "one execution",
        &[MATRIX, ("ferroce-proto/tests/rc/refusals.rs", "an_atomic_is_done_once")],
    ),
    Scenario(
        "Packets are overtaken by three others at the same moment, and none is lost.",
        "success; selective repeat sends one packet again at most",
        "execution and completions in order",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "packets_that_are_overtaken_are_not_lost"),
            ("ferroce-proto/tests/rc/held.rs", "a_gap_that_closes_is_acknowledged_as_a_whole"),
            SOCKETS,
        ],
    ),
    Scenario(
        "A first packet arrives behind a middle one.",
        "success",
        "the middle one is held; no error",
        &[MATRIX, ("ferroce-proto/tests/rc/held.rs", "a_message_in_the_wrong_order_is_put_together")],
    ),
    Scenario(
        "A held SEND has no receive.",
        "success after the RNR delay",
        "one RNR NAK; one receive is used",
        &[MATRIX, ("ferroce-proto/tests/rc/held.rs", "a_held_send_meets_its_rnr_nak_in_its_turn")],
    ),
    Scenario(
        "Every packet arrives twice.",
        "one success for each request",
        "one completion for each message",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "everything_arrives_twice"),
            ("ferroce-proto/tests/rc/lossy.rs", "two_hundred_thousand_mixed_messages"),
        ],
    ),
    Scenario(
        "A request comes whose PSN is just inside or outside of the half circle behind the expected one.",
        "nothing changes",
        "inside: a duplicate, acknowledged; outside: too early, and not held",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "half_a_circle_divides_old_from_new"),
            ("ferroce-proto/tests/rc/properties.rs", "psn_window"),
        ],
    ),
    Scenario(
        "A WRITE with a wrong key is held behind a gap.",
        "REM_ACCESS_ERR, after the gap has closed",
        "NAK 0x62 in its turn, ERROR; the data before it are written",
        &[("ferroce-proto/tests/rc/held.rs", "an_error_is_reported_in_its_turn")],
    ),
    Scenario(
        "The pool of held packets is full.",
        "success, as by go-back-N",
        "the drops are counted; other queue pairs keep what they hold",
        &[("ferroce-proto/tests/rc/held.rs", "a_pool_without_room_is_as_if_nothing_were_held")],
    ),
    Scenario(
        "The peer forgets what it said it holds.",
        "success; it sends that again",
        "one execution",
        &[("ferroce-proto/src/qp/recovery/sack.rs", "a_promise_may_be_broken")],
    ),
    Scenario(
        "A packet changes on the way, and its ICRC is wrong.",
        "as if it were lost",
        "it is dropped and counted; no NAK for it",
        &[MATRIX, SOCKETS],
    ),
    Scenario(
        "A header is another one, and the ICRC is right.",
        "success, or the error of the NAK",
        "a drop, or a NAK and ERROR; no octet outside of what the key permits",
        &[MATRIX, ("ferroce-proto/tests/rc/forged_flood.rs", "a_hundred_thousand_forged_packets")],
    ),
    Scenario(
        "Packets are marked (congestion experienced).",
        "success; the rate falls; each CNP is counted as handled or ignored",
        "at most one CNP in 50 µs, each counted",
        &[
            ("ferroce-proto/tests/rc/congestion.rs", "each_notification_is_counted_by_both_ends"),
            (
                "ferroce-proto/src/qp/congestion/tests.rs",
                "the_first_mark_is_answered_and_then_one_in_each_interval",
            ),
        ],
    ),
    Scenario(
        "A hundred CNPs come within 100 µs, or a thousand a second for as long as you like.",
        "packets with ECT: one cut a round trip, and a 64th of the rate is left; without ECT: no cut",
        "nothing",
        &[
            (
                "ferroce-proto/src/qp/congestion/tests.rs",
                "the_first_notification_halves_the_rate_and_those_of_one_round_trip_cut_once",
            ),
            ("ferroce-proto/tests/rc/congestion.rs", "a_flood_of_notifications_leaves_a_64th_of_the_rate"),
            ("ferroce-proto/tests/rc/congestion.rs", "a_path_without_ect_ignores_notifications"),
        ],
    ),
    Scenario(
        "CNPs come from another address.",
        "they are dropped and counted; the rate stays",
        "nothing",
        &[
            ("ferroce-proto/tests/rc/scenarios.rs", "a_strangers_notifications_are_counted_and_ignored"),
            ("ferroce-proto/tests/rc/forged_flood.rs", "another_address_changes_nothing"),
        ],
    ),
    Scenario(
        "Sixteen senders write to one receiver, or many responders answer one.",
        "all finish; Jain's index is 0.9 at least",
        "READs: no more is asked for than the socket holds",
        &[
            (
                "ferroce-sim/tests/congestion.rs",
                "incast_at_a_socket_is_fair_and_costs_less_than_three_tenths",
            ),
            ("ferroce-sim/tests/congestion.rs", "incast_at_a_switch_with_marks_keeps_the_queue_short"),
            ("ferroce-proto/tests/rc/crowd.rs", "reads_never_exceed_a_quarter_of_the_buffer"),
        ],
    ),
    Scenario(
        "The network is cut for 300 ms; the timeout is 67 ms (code 14), `retry_cnt` 7.",
        "success",
        "RTS, one execution",
        &[("ferroce-proto/tests/rc/scenarios.rs", "a_cut_of_300_milliseconds_heals"), MATRIX],
    ),
    Scenario(
        "The peer's ECE has our vendor and foreign options, none, or our answer.",
        "selective repeat is off, off, on",
        "the same",
        &[("ferroce-cm/src/extension.rs", "both_ends_decide_alike")],
    ),
];

/// The table of scenarios. Panics if a test that it names is gone.
pub fn text() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = "## Scenarios\n\n\
        `fault_matrix` runs with go-back-N and with selective repeat. Not every other test does.\n\n\
        | | scenario | requester | responder | tests |\n|---|---|---|---|---|\n"
        .to_owned();
    for (number, Scenario(scenario, requester, responder, tests)) in SCENARIOS.iter().enumerate() {
        let mut names = Vec::new();
        for (file, test) in *tests {
            let source = std::fs::read_to_string(crates.join(file)).unwrap_or_default();
            assert!(is_test(&source, test), "{file} has no test {test}");
            names.push(format!("`{test}`"));
        }
        let number = number + 1;
        writeln!(text, "| {number} | {scenario} | {requester} | {responder} | {} |", names.join(", "))
            .unwrap();
    }
    text
}

/// Whether a function of that name is marked as a test, and is not ignored.
fn is_test(source: &str, name: &str) -> bool {
    let Some(at) = source.find(&format!("fn {name}(")) else { return false };
    let before = source[..at].rsplit('}').next().unwrap_or_default();
    before.contains("#[test]") && !before.contains("#[ignore")
}
