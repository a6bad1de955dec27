//! Why a work request failed, as far as its queue pair's history tells.

use core::fmt;

use super::{Event, Head, What};
use crate::{QpState, WcOpcode, WcStatus};
use ferroce_wire::{NakCode, Psn, Syndrome};

/// The cause of a completion in error. The text of [`fmt::Display`] is one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// `IBV_WC_RETRY_EXC_ERR`: no packet of the peer came.
    NeverAnswered { sent: usize, psn: Option<Psn> },
    /// As [`Self::NeverAnswered`], and packets pass no router.
    OneHop { sent: usize },
    /// As [`Self::NeverAnswered`], as far as the events tell: earlier ones are no longer recorded.
    NoAnswer { sent: usize },
    /// `IBV_WC_RETRY_EXC_ERR`: the peer answered before.
    AnswersEnded { sent: usize, last: Option<Psn> },
    /// `IBV_WC_RETRY_EXC_ERR`: short packets were acknowledged, and no long one.
    LongPacketsLost { most: u16, lost: u16 },
    /// `IBV_WC_RETRY_EXC_ERR`: the peer misses packets.
    PacketsLost { naks: usize, psn: Psn },
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: the peer has no receive work request.
    NotReady { naks: usize },
    /// The peer refused a request by a NAK.
    Refused { code: NakCode, request: Option<Head> },
    /// `IBV_WC_WR_FLUSH_ERR`: the queue pair was in the error state.
    Flushed { after: Option<WcStatus> },
    /// Found at this end, when the work request was executed.
    Local { status: WcStatus, opcode: WcOpcode },
}

/// The statuses of completions with their names, as far as a queue pair makes them.
const STATUSES: [(WcStatus, &str); 14] = [
    (WcStatus::LocLenErr, "IBV_WC_LOC_LEN_ERR"),
    (WcStatus::LocQpOpErr, "IBV_WC_LOC_QP_OP_ERR"),
    (WcStatus::LocProtErr, "IBV_WC_LOC_PROT_ERR"),
    (WcStatus::WrFlushErr, "IBV_WC_WR_FLUSH_ERR"),
    (WcStatus::MwBindErr, "IBV_WC_MW_BIND_ERR"),
    (WcStatus::BadRespErr, "IBV_WC_BAD_RESP_ERR"),
    (WcStatus::LocAccessErr, "IBV_WC_LOC_ACCESS_ERR"),
    (WcStatus::RemInvReqErr, "IBV_WC_REM_INV_REQ_ERR"),
    (WcStatus::RemAccessErr, "IBV_WC_REM_ACCESS_ERR"),
    (WcStatus::RemOpErr, "IBV_WC_REM_OP_ERR"),
    (WcStatus::RetryExcErr, "IBV_WC_RETRY_EXC_ERR"),
    (WcStatus::RnrRetryExcErr, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (WcStatus::FatalErr, "IBV_WC_FATAL_ERR"),
    (WcStatus::GeneralErr, "IBV_WC_GENERAL_ERR"),
];

/// The operations with the names of their opcodes in `ibv_wc_opcode`, without `IBV_WC_`.
const OPCODES: [(WcOpcode, &str); 11] = [
    (WcOpcode::Send, "SEND"),
    (WcOpcode::RdmaWrite, "RDMA_WRITE"),
    (WcOpcode::RdmaRead, "RDMA_READ"),
    (WcOpcode::CompSwap, "COMP_SWAP"),
    (WcOpcode::FetchAdd, "FETCH_ADD"),
    (WcOpcode::BindMw, "BIND_MW"),
    (WcOpcode::LocalInv, "LOCAL_INV"),
    (WcOpcode::Flush, "FLUSH"),
    (WcOpcode::AtomicWrite, "ATOMIC_WRITE"),
    (WcOpcode::Recv, "RECV"),
    (WcOpcode::RecvRdmaWithImm, "RECV_RDMA_WITH_IMM"),
];

impl WcStatus {
    /// The status of this number in `ibv_wc_status`.
    pub fn of_number(number: u8) -> Option<Self> {
        STATUSES.iter().map(|(status, _)| *status).find(|status| *status as u8 == number)
    }

    /// The name of an error in `ibv_wc_status`.
    pub fn name(self) -> &'static str {
        STATUSES.iter().find(|(status, _)| *status == self).map_or("IBV_WC_SUCCESS", |(_, name)| name)
    }
}

impl WcOpcode {
    /// The operation of this number in `ibv_wc_opcode`.
    pub fn of_number(number: u8) -> Option<Self> {
        OPCODES.iter().map(|(opcode, _)| *opcode).find(|opcode| *opcode as u8 == number)
    }

    /// The name in `ibv_wc_opcode`, without `IBV_WC_`.
    pub fn name(self) -> &'static str {
        OPCODES.iter().find(|(opcode, _)| *opcode == self).map_or("?", |(_, name)| name)
    }
}

impl Cause {
    /// The cause of a completion of `opcode` with `status`, after these events, the oldest first. Those of an
    /// earlier connection of the queue pair do not count.
    pub fn of(events: impl Iterator<Item = Event> + Clone, status: WcStatus, opcode: WcOpcode) -> Self {
        let events = Event::each(events);
        let begins = |event: &Event| matches!(event.what, What::State(state) if state <= QpState::Init as u8);
        let earlier = events.clone().enumerate().filter(|(_, event)| begins(event)).last();
        let events = events.skip(earlier.map_or(0, |(place, _)| place));
        let sent = events.clone().filter_map(|event| match event.what {
            What::Sent(head) if head.is_request() => Some(head),
            _ => None,
        });
        let answers = events.clone().filter_map(|event| match event.what {
            What::Received(head) | What::Dropped(head, _) if head.syndrome().is_some() => Some(head),
            _ => None,
        });
        let refused = |code| {
            let nak = answers.clone().filter(|head| head.nak() == Some(code)).last();
            let is_it = |sent: &Head| nak.is_some_and(|nak| nak.psn == sent.psn);
            Self::Refused { code, request: sent.clone().filter(is_it).last() }
        };
        match status {
            WcStatus::RetryExcErr => Self::of_retries(earlier.is_some(), &events, sent, &answers),
            WcStatus::RnrRetryExcErr => {
                let naks = answers.clone().filter(Head::is_rnr);
                let last = naks.clone().last().map(|head| head.psn);
                Self::NotReady { naks: naks.filter(|head| Some(head.psn) == last).count() }
            }
            WcStatus::RemInvReqErr => refused(NakCode::InvalidRequest),
            WcStatus::RemAccessErr => refused(NakCode::RemoteAccessError),
            WcStatus::RemOpErr => refused(NakCode::RemoteOperationalError),
            WcStatus::WrFlushErr => {
                let first = events.filter_map(|event| match event.what {
                    What::Failed { status, .. } => WcStatus::of_number(status),
                    _ => None,
                });
                Self::Flushed { after: first.filter(|status| *status != WcStatus::WrFlushErr).last() }
            }
            status => Self::Local { status, opcode },
        }
    }

    /// The cause at a queue pair whose packets have this hop limit, or time to live; 0 if it is unknown.
    pub const fn with_hops(self, limit: u8) -> Self {
        match self {
            Self::NeverAnswered { sent, .. } if limit == 1 => Self::OneHop { sent },
            other => other,
        }
    }

    fn of_retries(
        whole: bool,
        events: &(impl Iterator<Item = Event> + Clone),
        sent: impl Iterator<Item = Head> + Clone,
        answers: &(impl Iterator<Item = Head> + Clone),
    ) -> Self {
        let Some(last) = answers.clone().last() else {
            let psn = sent.clone().last().map(|head| head.psn);
            let repeated = sent.filter(|head| Some(head.psn) == psn).count();
            // A direct copy asks the peer's memory, not the peer.
            let lives = |event: Event| matches!(event.what, What::Received(_) | What::Copied);
            return match events.clone().any(lives) {
                true => Self::AnswersEnded { sent: repeated, last: None },
                false if whole => Self::NeverAnswered { sent: repeated, psn },
                false => Self::NoAnswer { sent: repeated },
            };
        };
        // An ACK answers what is before it as well, a NAK of a gap what is before the gap.
        let is_answered = |psn: Psn| {
            answers.clone().any(|answer| match answer.syndrome() {
                Some(Syndrome::Ack { .. }) => answer.psn.since(psn) >= 0,
                _ => answer.psn.since(psn) > 0,
            })
        };
        let longest = |answered| {
            sent.clone().filter(move |head| is_answered(head.psn) == answered).map(|head| head.len)
        };
        if let (Some(most), Some(lost)) = (longest(true).max(), longest(false).min())
            && lost > most.max(1024)
        {
            return Self::LongPacketsLost { most, lost };
        }
        let is_lack = |head: &Head| head.nak() == Some(NakCode::PsnSequenceError) && !is_answered(head.psn);
        let lacks = answers.clone().filter(is_lack);
        if let Some(psn) = lacks.clone().last().map(|head| head.psn) {
            return Self::PacketsLost { naks: lacks.count(), psn };
        }
        Self::AnswersEnded { sent: sent.filter(|head| !is_answered(head.psn)).count(), last: Some(last.psn) }
    }

    /// The rule that makes it an error.
    pub const fn rule(&self) -> &'static str {
        match self {
            Self::NeverAnswered { .. }
            | Self::OneHop { .. }
            | Self::NoAnswer { .. }
            | Self::AnswersEnded { .. }
            | Self::LongPacketsLost { .. }
            | Self::PacketsLost { .. } => {
                "IBTA 9.7.6.1.3: after the local ACK timeout a request is sent again, retry_cnt times at most"
            }
            Self::NotReady { .. } => {
                "IBTA 9.7.5.2.8: a SEND, and a WRITE with immediate, take a receive work request; rnr_retry counts the waits for one"
            }
            Self::Refused { code: NakCode::RemoteAccessError, .. } => {
                "IBTA C9-88: the responder checks key, range, permission and protection domain"
            }
            Self::Refused { .. } => {
                "IBTA 9.7.5.2: the responder names what it refuses by the code of the NAK"
            }
            Self::Flushed { .. } => {
                "IBTA 10.3.1.5: in the error state each work request completes as flushed"
            }
            Self::Local { .. } => "IBTA 11.6.2: statuses of completions",
        }
    }

    /// The thing to do.
    pub const fn cure(&self) -> &'static str {
        match self {
            Self::NeverAnswered { .. } | Self::NoAnswer { .. } => {
                "check that the peer lives and was in RTR before this end sent, that dest_qp_num, dgid and sq_psn are those it gave, and that nothing filters UDP port 4791"
            }
            Self::OneHop { .. } => {
                "if there is a router between, raise the link's ttl (`ferroce link set DEV ttl -1`) or the route's hoplimit; otherwise check dest_qp_num, dgid and sq_psn, that the peer was in RTR, and that nothing filters UDP port 4791"
            }
            Self::AnswersEnded { .. } => {
                "see whether the peer ended, reset or destroyed its queue pair, or hangs"
            }
            Self::LongPacketsLost { .. } => {
                "see whether the peer lives; otherwise make path_mtu smaller: IPv4 needs 58 octets more than path_mtu, IPv6 78"
            }
            Self::PacketsLost { .. } => {
                "if this end's sq_psn is the peer's rq_psn, packets are lost on the way: look at the drops of interfaces and switches"
            }
            Self::NotReady { .. } => {
                "post receives before the peer sends, or make rnr_retry 7, which waits for ever"
            }
            Self::Refused { code: NakCode::RemoteAccessError, .. } => {
                "check rkey and remote_addr, and IBV_ACCESS_REMOTE_* of the region and of the peer's qp_access_flags"
            }
            Self::Refused { code: NakCode::InvalidRequest, .. } => {
                "check that the peer's receive buffer is as long as the message, that path_mtu is the same at both ends, and that the peer's qp_access_flags and max_dest_rd_atomic permit the operation"
            }
            Self::Refused { .. } => {
                "look at the peer's own completions: an error of its memory or queues is told there"
            }
            Self::Flushed { .. } => "the first error of the queue pair is the cause; this one only follows",
            Self::Local { status: WcStatus::LocProtErr, .. } => {
                "check lkey, addr and length of each sge, that the region is of the same protection domain, and IBV_ACCESS_LOCAL_WRITE where data arrives"
            }
            Self::Local { status: WcStatus::LocLenErr, .. } => {
                "make the receive buffer as long as the longest message, or the message shorter than the port's max_msg_sz"
            }
            Self::Local { .. } => "see ibv_poll_cq(3) for this status",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { sent } => {
                write!(f, "the peer does not answer; the same was sent {sent} times at least")
            }
            Self::NeverAnswered { sent: 0, .. } | Self::NeverAnswered { psn: None, .. } => {
                f.write_str("the peer never answered")
            }
            Self::NeverAnswered { sent, psn: Some(psn) } => {
                write!(f, "the peer never answered; PSN {} was sent {sent} times", psn.value())
            }
            Self::OneHop { sent } => write!(
                f,
                "the peer never answered, and hop_limit is 1: no router passes such packets on; sent {sent} times"
            ),
            Self::AnswersEnded { sent, last: Some(last) } => write!(
                f,
                "the peer answers no more: {sent} packets without an answer, PSN {} as the last that has one",
                last.value()
            ),
            Self::AnswersEnded { .. } => f.write_str("the peer answers no more, or has ended"),
            Self::LongPacketsLost { most, lost } => write!(
                f,
                "packets of {most} octets were answered, none of {lost} or more was: the MTU of the way is too small for them, or the peer has ended"
            ),
            Self::PacketsLost { naks, psn } => {
                write!(
                    f,
                    "the peer asked {naks} times for what it missed, the last time for PSN {}",
                    psn.value()
                )
            }
            Self::NotReady { naks } => {
                write!(f, "the peer has no receive posted, and said so {naks} times (RNR NAK)")
            }
            Self::Refused { code, request } => {
                f.write_str(match code {
                    NakCode::RemoteAccessError => {
                        "the peer refuses key, range or permission (NAK remote access error)"
                    }
                    NakCode::InvalidRequest => {
                        "the peer refuses the request as invalid (NAK invalid request)"
                    }
                    _ => "the peer could not complete the request (NAK remote operational error)",
                })?;
                request.map_or(Ok(()), |request| write!(f, ", PSN {}", request.psn.value()))
            }
            Self::Flushed { after: Some(status) } => {
                write!(f, "the queue pair was in the error state after {}", status.name())
            }
            Self::Flushed { after: None } => f.write_str("the queue pair was taken to the error state"),
            Self::Local { status, opcode } => f.write_str(match (status, opcode) {
                (WcStatus::LocProtErr, _) => "an sge names memory that is not registered so",
                (WcStatus::LocLenErr, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) => {
                    "the message is longer than the receive buffer"
                }
                (WcStatus::LocLenErr, _) => "the message is longer than this queue pair can send",
                (WcStatus::LocQpOpErr, _) => "the queue pair cannot execute the work request",
                (WcStatus::MwBindErr, _) => "the memory window cannot be bound so",
                (WcStatus::BadRespErr, _) => "the peer's answer breaks the protocol",
                (WcStatus::LocAccessErr, _) => "the peer may not access this memory so",
                (WcStatus::FatalErr, _) => "the device or a queue of it failed",
                _ => "no more is known",
            }),
        }
    }
}

#[cfg(test)]
mod tests;
