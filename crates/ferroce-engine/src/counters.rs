//! What the engine counts of the packets that reach it, apart from what each queue pair counts.

use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_proto::DropReason;

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
    /// The queue pair's state takes no packets.
    rx_wrong_state,
    /// Requests executed before.
    duplicate_request,
    /// Duplicates of READs and atomics that are not retained.
    duplicate_not_found,
    /// Requests ahead of the expected PSN.
    out_of_seq_request,
    /// Requests without a receive WQE.
    send_rnr_err,
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
            DropReason::State => &self.rx_wrong_state,
            DropReason::DuplicateRequest => &self.duplicate_request,
            DropReason::DuplicateNotFound => &self.duplicate_not_found,
            DropReason::OutOfSequence => &self.out_of_seq_request,
            DropReason::ReceiverNotReady => &self.send_rnr_err,
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
