//! Counters. A name that kernel rxe also has means the same there.

/// Counters of one queue pair since its creation. They wrap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets handed to `poll_transmit`'s batches.
    pub sent_pkts: u64,
    /// Packets given to `handle_datagram`.
    pub rcvd_pkts: u64,
    /// Received packets that were dropped with a [`crate::DropReason`].
    pub dropped_pkts: u64,
    /// Responder: requests whose PSN was executed before.
    pub duplicate_request: u64,
    /// Responder: requests ahead of the expected PSN.
    pub out_of_seq_request: u64,
    /// Responder: sequence NAKs sent.
    pub sent_seq_err: u64,
    /// Responder: RNR NAKs sent.
    pub send_rnr_err: u64,
    /// Responder: ACKs sent, each for any number of requests.
    pub sent_acks: u64,
    /// Requester: RNR NAKs received.
    pub rcvd_rnr_err: u64,
    /// Requester: sequence NAKs received that caused a resend.
    pub rcvd_seq_err: u64,
    /// Requester: answers that showed a missing read response or atomic result.
    pub implied_nak: u64,
    /// Requester: packets sent again.
    pub resent_pkts: u64,
    /// Requester: resends by the RTT-derived timer, free of charge.
    pub early_resends: u64,
    /// Requester: expiries of the local ACK timeout.
    pub timeouts: u64,
    /// Requester: retry_cnt used up.
    pub retry_exceeded_err: u64,
    /// Requester: rnr_retry used up.
    pub retry_rnr_exceeded_err: u64,
    /// Requester: messages sent, without reads and atomics.
    pub rdma_sends: u64,
    /// Responder: messages received that took a receive WQE.
    pub rdma_recvs: u64,
    /// Packets that came marked as having met congestion (RFC 3168 section 5: ECN field 3).
    pub rcvd_ecn_marked: u64,
    /// Requester: congestion notifications received (RoCEv2 A17.9).
    pub rcvd_cnps: u64,
    /// Requester: of `early_resends`, those that proved needless: the peer was late, and nothing was lost.
    pub spurious_resends: u64,
    /// Responder: of `out_of_seq_request`, those that were held until their turn.
    pub held_request: u64,
    /// Responder: held requests that were executed in their turn.
    pub held_executed: u64,
    /// Responder: of `out_of_seq_request`, those dropped because there was no room to hold them, or because
    /// they came too far ahead.
    pub held_no_room: u64,
    /// Responder: reports of held requests sent, to a peer that agreed to selective repeat.
    pub sent_sacks: u64,
    /// Requester: such reports received.
    pub rcvd_sacks: u64,
    /// Requester: of `resent_pkts`, those sent again because of such a report.
    pub selective_resends: u64,
    /// Requester: NAKs after which an answer came too soon to be one to the resend: the network had changed
    /// the order.
    pub spurious_go_backs: u64,
    /// CNPs sent: the notification point.
    pub np_cnp_sent: u64,
    /// Received CNPs that cut the rate: the reaction point.
    pub rp_cnp_handled: u64,
    /// Received CNPs that did not cut the rate: others of the same round trip had, the reaction is off, or
    /// this end's packets carry no ECT.
    pub rp_cnp_ignored: u64,
}
