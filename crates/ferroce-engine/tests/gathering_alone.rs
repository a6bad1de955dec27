//! Small messages that wait to fill a batch leave after a time, by the background thread. In a file of its own: other tests would poll
//! the same lane, which makes the messages leave as well.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{SendOp, SendWr};

/// Enough that some wait, and no full batch.
const SOME: usize = 40;

/// Posts writes of 8 octets one by one.
fn write(from: &End, to: &End) {
    for place in 0..SOME {
        let op = SendOp::Write { remote: to.remote(8 * place) };
        from.qp.post_send([SendWr { signaled: false, ..send(0, op, &[from.sge(8 * place, 8)]) }]).unwrap();
    }
}

/// No acknowledgement comes, and the program does nothing. An attempt fails if the posting thread loses its core for so
/// long that the transport takes the first messages for lost, so one of some attempts must succeed.
#[test]
fn messages_leave_though_no_acknowledgement_comes() {
    force_udp();
    let leaves = |_| {
        let (a, b) = pair();
        b.qp.destroy();
        let before = a.qp.query().sq_psn;
        write(&a, &b);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            if a.qp.query().sq_psn.since(before) == SOME as i32 {
                return true;
            }
            std::thread::yield_now();
        }
        false
    };
    assert!((1..=20).any(leaves));
}
