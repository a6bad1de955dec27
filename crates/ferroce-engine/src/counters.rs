//! What the engine counts of the packets that reach it, apart from what each queue pair counts.

use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_proto::{Counters, DropReason};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of a process since its engine started. They wrap.
        #[derive(Debug, Default)]
        pub struct DeviceCounters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        impl DeviceCounters {
            /// Every counter by name, in a fixed order.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
    /// Datagrams received.
    rcvd_pkts,
    /// Packets sent.
    sent_pkts,
    /// System calls that sent.
    tx_calls,
    /// System calls that received something.
    rx_calls,
    /// The system refused to send; the packets count as lost on the way.
    send_err,
    /// The system refused to receive.
    rx_err,
    /// Not a RoCE packet: too short, unknown opcode, bad pad, reserved version.
    rx_malformed,
    /// ICRC wrong.
    rx_icrc_errors,
    /// ICRC right with an IPv4 identification that had to be solved for.
    icrc_id_solved,
    /// For another process's slot: dropped alone.
    rx_stray_slot,
    /// For no queue pair that exists.
    rx_no_qp,
    /// Not from the connected peer's address.
    rx_wrong_source,
    /// Not of the queue pair's partition.
    rx_wrong_pkey,
    /// Opcode of another service.
    rx_wrong_service,
    /// Datagrams without the queue pair's Q_Key.
    rx_wrong_qkey,
    /// The queue pair's state takes no packets.
    rx_wrong_state,
    /// Requests executed before.
    rx_duplicate_request,
    /// Duplicates of READs and atomics that are not retained.
    rx_duplicate_not_found,
    /// Requests ahead of the expected PSN.
    rx_out_of_seq_request,
    /// Requests without a receive WQE.
    rx_no_recv_wqe,
    /// Messages of unreliable services that are longer than the receive WQE.
    rx_too_long,
    /// Requests of unreliable services with a wrong opcode, length or permission.
    rx_invalid_request,
    /// Requests of unreliable services with a wrong key or range.
    rx_access_denied,
    /// Messages whose receive WQE's memory cannot be written.
    rx_local_fault,
    /// Requests refused with a fatal NAK.
    rx_refused,
    /// Packets that came faster than their answers could be fetched.
    rx_backlog,
    /// Answers to nothing outstanding.
    rx_stale_response,
    /// Answers after a gap.
    rx_response_gap,
    /// NAKs that were acted upon already.
    rx_duplicate_nak,
    /// AETHs of a reserved kind.
    rx_reserved_syndrome,
    /// Answers that break the protocol.
    rx_bad_response,
    /// Times that a completion queue overflowed.
    cq_overruns,
}

/// Adds what a queue pair counted to a sum over queue pairs.
pub(crate) fn add_counters(sum: &mut Counters, of: &Counters) {
    let Counters {
        sent_pkts,
        rcvd_pkts,
        dropped_pkts,
        duplicate_request,
        out_of_seq_request,
        sent_seq_err,
        send_rnr_err,
        sent_acks,
        rcvd_rnr_err,
        rcvd_seq_err,
        implied_nak,
        resent_pkts,
        early_resends,
        timeouts,
        retry_exceeded_err,
        retry_rnr_exceeded_err,
        rdma_sends,
        rdma_recvs,
    } = sum;
    for (total, part) in [
        (sent_pkts, of.sent_pkts),
        (rcvd_pkts, of.rcvd_pkts),
        (dropped_pkts, of.dropped_pkts),
        (duplicate_request, of.duplicate_request),
        (out_of_seq_request, of.out_of_seq_request),
        (sent_seq_err, of.sent_seq_err),
        (send_rnr_err, of.send_rnr_err),
        (sent_acks, of.sent_acks),
        (rcvd_rnr_err, of.rcvd_rnr_err),
        (rcvd_seq_err, of.rcvd_seq_err),
        (implied_nak, of.implied_nak),
        (resent_pkts, of.resent_pkts),
        (early_resends, of.early_resends),
        (timeouts, of.timeouts),
        (retry_exceeded_err, of.retry_exceeded_err),
        (retry_rnr_exceeded_err, of.retry_rnr_exceeded_err),
        (rdma_sends, of.rdma_sends),
        (rdma_recvs, of.rdma_recvs),
    ] {
        *total = total.wrapping_add(part);
    }
}

/// The counters that kernel rxe has too, by its names, in its order. `ack_deferred` and
/// `link_downed` never happen here and are 0.
pub(crate) fn rxe_counters(device: &DeviceCounters, sum: &Counters) -> Vec<(&'static str, u64)> {
    let of_device = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    vec![
        ("sent_pkts", of_device(&device.sent_pkts)),
        ("rcvd_pkts", of_device(&device.rcvd_pkts)),
        ("duplicate_request", sum.duplicate_request),
        ("out_of_seq_request", sum.out_of_seq_request),
        ("rcvd_rnr_err", sum.rcvd_rnr_err),
        ("send_rnr_err", sum.send_rnr_err),
        ("rcvd_seq_err", sum.rcvd_seq_err),
        ("ack_deferred", 0),
        ("retry_exceeded_err", sum.retry_exceeded_err),
        ("retry_rnr_exceeded_err", sum.retry_rnr_exceeded_err),
        ("completer_retry_err", sum.implied_nak.wrapping_add(sum.timeouts)),
        ("send_err", of_device(&device.send_err)),
        ("link_downed", 0),
        ("rdma_sends", sum.rdma_sends),
        ("rdma_recvs", sum.rdma_recvs),
    ]
}

impl DeviceCounters {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn count_drop(&self, reason: DropReason) {
        Self::count(match reason {
            DropReason::IcrcUnchecked => &self.rx_icrc_errors,
            DropReason::WrongQpn => &self.rx_no_qp,
            DropReason::WrongSource => &self.rx_wrong_source,
            DropReason::WrongPkey => &self.rx_wrong_pkey,
            DropReason::WrongService => &self.rx_wrong_service,
            DropReason::WrongQkey => &self.rx_wrong_qkey,
            DropReason::State => &self.rx_wrong_state,
            DropReason::DuplicateRequest => &self.rx_duplicate_request,
            DropReason::DuplicateNotFound => &self.rx_duplicate_not_found,
            DropReason::OutOfSequence => &self.rx_out_of_seq_request,
            DropReason::ReceiverNotReady | DropReason::NoReceiveWqe => &self.rx_no_recv_wqe,
            DropReason::TooLong => &self.rx_too_long,
            DropReason::InvalidRequest => &self.rx_invalid_request,
            DropReason::AccessDenied => &self.rx_access_denied,
            DropReason::LocalFault => &self.rx_local_fault,
            DropReason::Refused => &self.rx_refused,
            DropReason::Backlog => &self.rx_backlog,
            DropReason::StaleResponse => &self.rx_stale_response,
            DropReason::ResponseGap => &self.rx_response_gap,
            DropReason::DuplicateNak => &self.rx_duplicate_nak,
            DropReason::ReservedSyndrome => &self.rx_reserved_syndrome,
            DropReason::BadResponse => &self.rx_bad_response,
        });
    }
}
