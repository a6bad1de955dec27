//! Counters of the engine, in the ledger that the broker reads: see [`ferroce_ipc::ledger`].

pub use ferroce_ipc::ledger::DeviceCounters;
use ferroce_ipc::ledger::TRANSPORT_COUNTERS;
use ferroce_proto::{Counters, DropReason};

/// Takes every field, so that a counter that is new is missed by the compiler, and puts them in this order.
macro_rules! in_order {
    ($counters:expr; $($name:ident,)+) => {{
        let Counters { $($name),+ } = *$counters;
        [$($name),+]
    }};
}

/// The counters of a queue pair, in the order of [`TRANSPORT_COUNTERS`].
pub(crate) fn transport_values(of: &Counters) -> [u64; TRANSPORT_COUNTERS.len()] {
    in_order! { of;
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
        rcvd_ecn_marked,
        rcvd_cnps,
        spurious_resends,
        held_request,
        held_executed,
        held_no_room,
        selective_resends,
        sent_sacks,
        rcvd_sacks,
        spurious_go_backs,
        np_cnp_sent,
        rp_cnp_handled,
        rp_cnp_ignored,
    }
}

/// Counts a packet that had no effect.
pub(crate) fn count_drop(counters: &DeviceCounters, reason: DropReason) {
    DeviceCounters::count(match reason {
        DropReason::IcrcUnchecked => &counters.rx_icrc_errors,
        DropReason::WrongQpn => &counters.rx_no_qp,
        DropReason::WrongSource => &counters.rx_wrong_source,
        DropReason::WrongPkey => &counters.rx_wrong_pkey,
        DropReason::WrongService => &counters.rx_wrong_service,
        DropReason::WrongQkey => &counters.rx_wrong_qkey,
        DropReason::State => &counters.rx_wrong_state,
        DropReason::DuplicateRequest => &counters.rx_duplicate_request,
        DropReason::DuplicateNotFound => &counters.rx_duplicate_not_found,
        DropReason::OutOfSequence => &counters.rx_out_of_seq_request,
        DropReason::ReceiverNotReady | DropReason::NoReceiveWqe => &counters.rx_no_recv_wqe,
        DropReason::TooLong => &counters.rx_too_long,
        DropReason::InvalidRequest => &counters.rx_invalid_request,
        DropReason::AccessDenied => &counters.rx_access_denied,
        DropReason::LocalFault => &counters.rx_local_fault,
        DropReason::Refused => &counters.rx_refused,
        DropReason::Backlog => &counters.rx_backlog,
        DropReason::StaleResponse => &counters.rx_stale_response,
        DropReason::ResponseGap => &counters.rx_response_gap,
        DropReason::DuplicateNak => &counters.rx_duplicate_nak,
        DropReason::ReservedSyndrome => &counters.rx_reserved_syndrome,
        DropReason::BadResponse => &counters.rx_bad_response,
    });
}
