//! Answers that a plan of faults makes a responder give.

use std::convert::Infallible;

use ferroce_fault::Answer;
use ferroce_paths::tx_path::Transmit;
use ferroce_proto::Service;
use ferroce_wire::{
    Aeth, Bth, IcrcStatus, Instant, Msn, Operation, Packet, Psn, RcPacket, Response, RnrTimer, Sink,
    Syndrome, TxBatch,
};

use super::Locked;

impl Locked<'_> {
    /// Refuses the request with this PSN, which the transport does not see. Services without answers refuse
    /// nothing: there the request is lost.
    pub(crate) fn refuse(&mut self, psn: Psn, answer: Answer, now: Instant) {
        let Some(path) = self.core.path() else { return };
        let syndrome = match answer {
            Answer::Rnr(time) => Syndrome::RnrNak(timer_for(time)),
            Answer::Nak(code) => Syndrome::Nak(code),
        };
        // The MSN of a NAK says nothing (IBTA 9.7.5.2.8): only an ACK carries credits.
        let packet = RcPacket::Response(Response::Acknowledge { aeth: Aeth { syndrome, msn: Msn::new(0) } });
        let op = match self.endpoint.service {
            Service::Rc => Operation::Rc(packet),
            Service::XrcTarget => Operation::Xrc { srq: None, packet },
            _ => return,
        };
        let (remote, ..) = self.core.transport.progress();
        let packet = Packet { bth: Bth::new(remote, psn), op, icrc: IcrcStatus::Pending };
        let mut buffer = [0; 64];
        let mut batch = TxBatch::new(&mut buffer, path.socket.limits());
        if path.socket.is_pipe() {
            batch.leave_icrc_out();
        }
        let pushed = batch.push(&path.socket.flow(), &packet, 0, |_| Ok::<_, Infallible>(()));
        if pushed.is_ok() {
            // A refused send is a loss, as everywhere.
            let _ = path.socket.send(&mut batch, now);
        }
    }
}

/// The shortest timer that is not shorter than `time`; the longest, 655.36 ms, for more.
fn timer_for(time: std::time::Duration) -> RnrTimer {
    let timers = (0..32).filter_map(RnrTimer::new);
    let longest = timers.clone().max_by_key(|timer| timer.delay());
    let fitting = timers.filter(|timer| timer.delay() >= time).min_by_key(|timer| timer.delay());
    fitting.or(longest).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_never_shorter_than_asked() {
        use std::time::Duration;
        for (asked, got) in [(20_000, 20_480), (20_480, 20_480), (1, 10), (0, 10), (700_000, 655_360)] {
            assert_eq!(timer_for(Duration::from_micros(asked)).delay(), Duration::from_micros(got));
        }
    }
}
