//! The page of the book that shows the matrix.

use std::fmt::Write;
use std::path::Path;

use ferroce_proto::{AsyncEventKind, QpState, WcStatus};

use super::refusals::{Case, Row};
use super::rnr::{self, Place, Receive};
use super::scenarios;
use super::{Fault, Op, Position, Seen, Table};

const HEAD: &str = "Each cell of these tables is a test: one operation between two reliable queue pairs in the simulator, one fault that meets one packet of it.
The test `fault_matrix` of `ferroce-proto` runs all cells, checks the outcome of each, and compares these tables with what it saw.
`FERROCE_BLESS=1 cargo test -p ferroce-proto --test rc fault_matrix` writes them anew.

Every run checks the following.

- The requester gets one completion. If it is a success, the data are exact at both ends, the operation was executed once, the responder
  has one receive completion if the operation takes a receive, both queue pairs are in RTS, and there is no asynchronous event.
- If it is an error, each octet is that from before or that of the operation, and an atomic was executed once or not at all.
- Nothing goes on afterwards: no timer runs and no packet is on its way.

`ok` is `IBV_WC_SUCCESS`, and the number behind it counts the packets that the requester sent again. Other names are those of
`ibv_wc_status` without `IBV_WC_`. If the two modes differ, the result of go-back-N is before the slash, and that of selective repeat behind it. The path MTU
is 1024 octets. A message has four packets where a first, middle or last packet is named, and one otherwise. The ACK timeout is 1 ms
(code 8), `retry_cnt` and `rnr_retry` are 7.

## Packets that do not arrive as they left

";

const FAULTS: &str = "
| column | fault |
|---|---|
| none | Everything arrives. |
| lost | The packet is lost the first time. |
| 3 × | It is lost three times. |
| twice | It arrives twice, a microsecond apart. |
| late | It arrives 30 µs late, behind the rest of the message. |
| too late | It arrives after three ACK timeouts. |
| ICRC | A bit changes on the way, and the ICRC is wrong. The packet is dropped and counted. |
| PSN | The PSN is another one, and the ICRC is right. |
| opcode | The opcode is a reserved one, and the ICRC is right. |
| outage | From this packet on, nothing arrives at either end for five ACK timeouts. |
| never | The packet never arrives. The requester gives up; the responder stays in RTS and learns nothing. |
| key | The remote key is another one, and the ICRC is right. The responder is then in ERROR. |

A payload that changes on the way with an ICRC that is right cannot be noticed by any end.

";

const fn op_name(op: Op) -> &'static str {
    match op {
        Op::Send => "SEND",
        Op::SendImm => "SEND with immediate",
        Op::Write => "WRITE",
        Op::WriteImm => "WRITE with immediate",
        Op::Read => "READ",
        Op::CompareSwap => "CMP_SWAP",
        Op::FetchAdd => "FETCH_ADD",
        Op::AtomicWrite => "atomic write",
        Op::Flush => "flush",
    }
}

const fn position_name(position: Position) -> &'static str {
    match position {
        Position::Only => "only packet",
        Position::First => "first packet",
        Position::Middle => "middle packet",
        Position::Last => "last packet",
        Position::Request => "request",
        Position::Ack => "ACK",
        Position::OnlyResponse => "only response",
        Position::FirstResponse => "first response",
        Position::MiddleResponse => "middle response",
        Position::LastResponse => "last response",
    }
}

const COLUMNS: [&str; 12] =
    ["none", "lost", "3 ×", "twice", "late", "too late", "ICRC", "PSN", "opcode", "outage", "never", "key"];

const fn case_name(case: Case) -> &'static str {
    match case {
        Case::ReceiveLate => "RNR: a receive is posted 1 ms later",
        Case::RnrNakLost => "RNR: that, and the first RNR NAK is lost",
        Case::ReceiveNever => "RNR: no receive is ever posted, `rnr_retry` is 2",
        Case::ReceiveShort => "The receive is too short.",
        Case::KeyUnknown => "There is no such remote key.",
        Case::KeyOfOthers => "The key's region permits nothing to the peer.",
        Case::NotPermitted => "The queue pair permits no remote access.",
        Case::MemoryGone => "The pages of the region are gone.",
        Case::NakLost => "The first packet is lost, and the sequence NAK too.",
        Case::ForgedSequenceNak => "A forged sequence NAK of the oldest PSN",
        Case::ForgedRnrNak => "A forged RNR NAK of the oldest PSN",
        Case::ForgedInvalid => "A forged NAK \"invalid request\"",
        Case::ForgedAccess => "A forged NAK \"remote access error\"",
        Case::ForgedOperational => "A forged NAK \"remote operational error\"",
        Case::ForgedOldAck => "A forged ACK of a PSN that is not outstanding",
        Case::ForgedAck => "A forged ACK of the newest PSN, and all requests are lost",
    }
}

const fn status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "ok",
        WcStatus::LocLenErr => "LOC_LEN_ERR",
        WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "REM_ACCESS_ERR",
        WcStatus::RemOpErr => "REM_OP_ERR",
        WcStatus::RetryExcErr => "RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
        WcStatus::WrFlushErr => "WR_FLUSH_ERR",
        WcStatus::LocAccessErr => "LOC_ACCESS_ERR",
        _ => "another error",
    }
}

fn requester(seen: &Seen) -> String {
    let name = status(seen.requester);
    if seen.requester == WcStatus::Success { format!("{name} {}", seen.resent) } else { name.to_owned() }
}

fn both(seen: [String; 2]) -> String {
    let [off, on] = seen;
    if off == on { off } else { format!("{off} / {on}") }
}

fn responder(seen: &Seen) -> String {
    let mut said = Vec::new();
    match seen.event {
        None => {}
        Some(AsyncEventKind::QpReqErr) => said.push("event QP_REQ_ERR".to_owned()),
        Some(AsyncEventKind::QpAccessErr) => said.push("event QP_ACCESS_ERR".to_owned()),
        Some(event) => said.push(format!("{event:?}")),
    }
    let told = seen.received.iter().filter(|it| **it != WcStatus::WrFlushErr);
    said.extend(told.map(|it| format!("receive {}", status(*it))));
    let state = if seen.states[1] == QpState::Error { "ERROR" } else { "RTS" };
    said.push(state.to_owned());
    said.join(", ")
}

/// The whole page.
pub fn text(table: &Table, rnr: &[rnr::Row], refusals: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    let faults = Fault::ALL.into_iter().chain([Fault::OtherKey]);
    writeln!(text, "| operations | packet | {} |", COLUMNS.join(" | ")).unwrap();
    writeln!(text, "|---|---|{}", "---|".repeat(COLUMNS.len())).unwrap();
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for op in Op::ALL {
        for position in op.positions() {
            let cells = faults.clone().map(|fault| match &table[&(op, *position, fault)] {
                [Some(off), Some(on)] => both([off, on].map(requester)),
                _ => "–".to_owned(),
            });
            let cells: Vec<_> = cells.collect();
            let seen = format!("{} | {}", position_name(*position), cells.join(" | "));
            match rows.iter_mut().find(|row| row.0 == seen) {
                Some(row) => row.1.push(op_name(op)),
                None => rows.push((seen, vec![op_name(op)])),
            }
        }
    }
    for (seen, ops) in rows {
        writeln!(text, "| {} | {seen} |", ops.join(", ")).unwrap();
    }
    text.push_str(FAULTS);
    receivers_not_ready(&mut text, rnr);
    text.push_str("## Requests that are refused, and answers that the peer did not send\n\n");
    text.push_str(
        "A forger needs the peer's address, the queue pair's number and the PSN for these answers.\n\n",
    );
    text.push_str("| situation | operations | requester | responder |\n|---|---|---|---|\n");
    for (case, seen) in refusals {
        let mut rows: Vec<(String, String, Vec<&str>)> = Vec::new();
        for (op, seen) in seen {
            let told = both([&seen[0], &seen[1]].map(requester));
            let other = both([&seen[0], &seen[1]].map(responder));
            match rows.iter_mut().find(|row| row.0 == told && row.1 == other) {
                Some(row) => row.2.push(op_name(*op)),
                None => rows.push((told, other, vec![op_name(*op)])),
            }
        }
        for (told, other, ops) in rows {
            writeln!(text, "| {} | {} | {told} | {other} |", case_name(*case), ops.join(", ")).unwrap();
        }
    }
    text.push('\n');
    text.push_str(&scenarios::text());
    text
}

const NOT_READY: &str = "## A receiver that is not ready, and a fault

The message of four packets asks for a receive that is not posted yet, and a WRITE of eight octets is posted behind it. The fault meets one of
three packets: the RNR NAK, the first request packet that comes again because of it, or the WRITE behind when it comes after the RNR NAK. A
cell has the status of the message, and behind the plus sign that of the WRITE. The responder stays in RTS in every cell. It gives its receive
to a message that succeeds, once.

";

/// The tables of what happens around an RNR NAK.
fn receivers_not_ready(text: &mut String, rows: &[rnr::Row]) {
    text.push_str(NOT_READY);
    let columns = &COLUMNS[..Fault::ALL.len()];
    let place = |place| match place {
        Place::Nak => "RNR NAK",
        Place::Again => "request again",
        Place::Behind => "WRITE behind",
    };
    let cell = |seen: &Option<Seen>| match seen {
        None => "–".to_owned(),
        Some(seen) => format!("{} + {}", requester(seen), seen.behind.map_or("–", status)),
    };
    let cells =
        |row: &rnr::Row| row.cells.iter().map(|[off, on]| both([cell(off), cell(on)])).collect::<Vec<_>>();
    text.push_str("A receive is posted after a millisecond:\n\n");
    writeln!(text, "| operation | packet | {} |", columns.join(" | ")).unwrap();
    writeln!(text, "|---|---|{}", "---|".repeat(columns.len())).unwrap();
    for row in rows.iter().filter(|row| row.receive == Receive::Late) {
        writeln!(text, "| {} | {} | {} |", op_name(row.op), place(row.place), cells(row).join(" | "))
            .unwrap();
    }
    text.push_str("\nNo receive is ever posted, and `rnr_retry` is 2:\n\n");
    text.push_str("| operation | packet | never | every other fault |\n|---|---|---|---|\n");
    for row in rows.iter().filter(|row| row.receive == Receive::Never) {
        let cells = cells(row);
        let (never, others) = cells.split_last().unwrap();
        assert!(others.iter().all(|cell| *cell == others[0]), "{others:?}");
        writeln!(text, "| {} | {} | {never} | {} |", op_name(row.op), place(row.place), others[0]).unwrap();
    }
    text.push('\n');
}

/// Compares with the snapshot, which a page of the book includes. `FERROCE_BLESS=1` writes it.
pub fn compare(text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rc/snapshots/fault_matrix.txt");
    if std::env::var_os("FERROCE_BLESS").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (seen, page)) in text.lines().zip(page.lines()).enumerate() {
        assert_eq!(seen, page, "fault_matrix.txt, line {}; FERROCE_BLESS=1 accepts it", line + 1);
    }
    assert_eq!(text.lines().count(), page.lines().count(), "fault_matrix.txt; FERROCE_BLESS=1 accepts it");
}
