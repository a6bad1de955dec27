//! Counters of queue pairs and of dropped packets, in the ledger that the broker reads: see
//! [`ferroce_ipc::ledger`].

use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_ipc::ledger::DeviceCounters;
use ferroce_ipc::ledger::TRANSPORT_COUNTERS;
use ferroce_proto::{Counters, DropReason};

/// Hands the names of the counters of a queue pair to a macro, in the order of [`TRANSPORT_COUNTERS`].
macro_rules! in_order {
    ($take:ident) => {
        $take! {
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
    };
}

/// The counters of a queue pair, in the order of [`TRANSPORT_COUNTERS`].
pub fn transport_values(of: &Counters) -> [u64; TRANSPORT_COUNTERS.len()] {
    macro_rules! values {
        ($($name:ident,)+) => {{
            // The pattern names every field, so the compiler misses none that is new.
            let Counters { $($name),+ } = *of;
            [$($name),+]
        }};
    }
    in_order!(values)
}

/// Stores the values of [`transport_values`] one by one: an array would be copied through the stack.
#[inline]
pub fn store_transport_values(of: &Counters, to: &[AtomicU64; TRANSPORT_COUNTERS.len()]) {
    macro_rules! stores {
        ($($name:ident,)+) => {
            let [$($name),+] = to;
            $($name.store(of.$name, Ordering::Relaxed);)+
        };
    }
    in_order!(stores);
}

/// As [`store_transport_values`], for the counters alone that grow on the straight way, see
/// [`ferroce_proto::QueuePair::take_strayed`].
#[inline]
pub fn store_straight_values(of: &Counters, to: &[AtomicU64; TRANSPORT_COUNTERS.len()]) {
    const fn grows(name: &str) -> bool {
        matches!(name.as_bytes(), b"sent_pkts" | b"rcvd_pkts" | b"sent_acks" | b"rdma_sends" | b"rdma_recvs")
    }
    macro_rules! stores {
        ($($name:ident,)+) => {
            let [$($name),+] = to;
            $(if const { grows(stringify!($name)) } { $name.store(of.$name, Ordering::Relaxed) })+
        };
    }
    in_order!(stores);
}

/// Counts a packet that had no effect.
pub fn count_drop(counters: &DeviceCounters, reason: DropReason) {
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
