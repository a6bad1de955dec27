//! The counters and their names.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// The engine's counters of a device in one process, apart from the counters of each queue pair. They
        /// wrap.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct DeviceCounters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        /// Names of [`DeviceCounters`], in their order. A new counter is added at the end.
        pub const DEVICE_COUNTERS: &[&str] = &[$(stringify!($name),)+];

        impl DeviceCounters {
            /// Returns every counter, in the order of [`DEVICE_COUNTERS`].
            pub fn values(&self) -> Vec<u64> {
                let mut values = vec![$(self.$name.load(Ordering::Relaxed),)+];
                add_pipes(&mut values);
                values
            }
        }
    };
}

counters! {
    /// Packets received; as stored, without those of `pipe_rcvd_pkts`.
    rcvd_pkts,
    /// Packets sent; as stored, without those of `pipe_sent_pkts`.
    sent_pkts,
    /// System calls that sent.
    tx_calls,
    /// System calls that received something.
    rx_calls,
    /// The system refused to send; the packets count as lost.
    send_err,
    /// The system refused to receive.
    rx_err,
    /// Not a RoCE packet: too short, unknown opcode, bad pad, reserved version.
    rx_malformed,
    /// ICRC wrong.
    rx_icrc_errors,
    /// Packets with a valid ICRC for which the receiver had to find the IPv4 identification.
    icrc_id_solved,
    /// Packets for another process's slot, which the engine drops.
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
    /// Packets for a queue pair whose state accepts none.
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
    /// Packets that arrived faster than the engine could send their responses.
    rx_backlog,
    /// Answers to nothing outstanding.
    rx_stale_response,
    /// Answers after a gap.
    rx_response_gap,
    /// NAKs that the requester has already handled.
    rx_duplicate_nak,
    /// AETHs of a reserved kind.
    rx_reserved_syndrome,
    /// Answers that break the protocol.
    rx_bad_response,
    /// Times that a completion queue overflowed.
    cq_overruns,
    /// Octets of the packets sent, from the BTH to the ICRC; as stored, without `pipe_sent_octets`.
    sent_octets,
    /// Octets of the packets received, from the BTH to the ICRC; as stored, without `pipe_rcvd_octets`.
    rcvd_octets,
    /// Packets sent to programs of this host by shared memory; part of the packets sent.
    pipe_sent_pkts,
    /// Packets received from programs of this host by shared memory; part of the packets received.
    pipe_rcvd_pkts,
    /// Requests executed by direct copies, without packets.
    direct_ops,
    /// Octets that direct copies moved, in either direction.
    direct_octets,
    /// Packets sent by AF_XDP; part of the packets sent.
    xdp_sent_pkts,
    /// Packets received by AF_XDP; part of the packets received.
    xdp_rcvd_pkts,
    /// Octets of the packets sent by shared memory; part of all octets.
    pipe_sent_octets,
    /// Octets of the packets received by shared memory; part of all octets.
    pipe_rcvd_octets,
}

/// Each counter of all packets, and the one of those that went through shared memory. The packet path counts
/// a packet once.
const PARTS: [(&str, &str); 4] = [
    ("rcvd_pkts", "pipe_rcvd_pkts"),
    ("sent_pkts", "pipe_sent_pkts"),
    ("rcvd_octets", "pipe_rcvd_octets"),
    ("sent_octets", "pipe_sent_octets"),
];

/// Adds what went through shared memory to the counters of all packets. `values` are as stored, in the order
/// of [`DEVICE_COUNTERS`].
pub(super) fn add_pipes(values: &mut [u64]) {
    let place = |name| DEVICE_COUNTERS.iter().position(|known| *known == name);
    for (all, part) in PARTS {
        let part = place(part).and_then(|place| values.get(place)).copied().unwrap_or(0);
        if let Some(all) = place(all).and_then(|place| values.get_mut(place)) {
            *all = all.wrapping_add(part);
        }
    }
}

impl DeviceCounters {
    /// Adds one with relaxed ordering.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`Self::add`], for a counter that no other thread adds to at the same time.
    #[inline]
    pub fn add_alone(counter: &AtomicU64, amount: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds `amount` with relaxed ordering.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

/// Names of the counters of each queue pair, in the order of its record. A new counter is added at the end.
pub const TRANSPORT_COUNTERS: &[&str] = &[
    "sent_pkts",
    "rcvd_pkts",
    "dropped_pkts",
    "duplicate_request",
    "out_of_seq_request",
    "sent_seq_err",
    "send_rnr_err",
    "sent_acks",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "implied_nak",
    "resent_pkts",
    "early_resends",
    "timeouts",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rdma_sends",
    "rdma_recvs",
    "rcvd_ecn_marked",
    "rcvd_cnps",
    "spurious_resends",
    "held_request",
    "held_executed",
    "held_no_room",
    "selective_resends",
    "sent_sacks",
    "rcvd_sacks",
    "spurious_go_backs",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
];

/// The counters that the kernel's rxe has, in its order. `ack_deferred` and `link_downed` never happen here
/// and are 0.
pub const RXE_COUNTERS: &[&str] = &[
    "sent_pkts",
    "rcvd_pkts",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "send_rnr_err",
    "rcvd_seq_err",
    "ack_deferred",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
    "link_downed",
    "rdma_sends",
    "rdma_recvs",
];

/// Counters of one device, in the order of [`DEVICE_COUNTERS`] and [`TRANSPORT_COUNTERS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    pub device: Vec<u64>,
    /// Sum over its queue pairs.
    pub transport: Vec<u64>,
}

impl Default for Totals {
    fn default() -> Self {
        Self { device: vec![0; DEVICE_COUNTERS.len()], transport: vec![0; TRANSPORT_COUNTERS.len()] }
    }
}

impl Totals {
    /// Adds another sum. Numbers wrap.
    pub fn add(&mut self, device: &[u64], transport: &[u64]) {
        let sums = self.device.iter_mut().zip(device).chain(self.transport.iter_mut().zip(transport));
        sums.for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }

    /// Returns a counter by its name, and prefers the device's to the queue pairs'.
    pub fn by_name(&self, name: &str) -> u64 {
        let device = DEVICE_COUNTERS.iter().zip(&self.device);
        let transport = TRANSPORT_COUNTERS.iter().zip(&self.transport);
        device.chain(transport).find(|(known, _)| **known == name).map_or(0, |(_, value)| *value)
    }

    pub fn rxe(&self) -> Vec<(&'static str, u64)> {
        let value = |name| match name {
            "completer_retry_err" => self.by_name("implied_nak").wrapping_add(self.by_name("timeouts")),
            name => self.by_name(name),
        };
        RXE_COUNTERS.iter().map(|name| (*name, value(*name))).collect()
    }

    /// Returns all counters: rxe's first, then ours.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.rxe();
        for name in DEVICE_COUNTERS.iter().chain(TRANSPORT_COUNTERS) {
            if !all.iter().any(|(known, _)| known == name) {
                all.push((name, self.by_name(name)));
            }
        }
        all
    }
}

/// Computes the counters that every port has (IBTA 16.1.3.5, 16.1.4.11) from [`Totals::named`], by the names
/// that Linux gives them. Packets that are no RoCE packets are errors; data is in units of 4 octets.
pub fn port_counters<S: AsRef<str>>(named: &[(S, u64)]) -> [(&'static str, u64); 17] {
    let of =
        |wanted: &str| named.iter().find(|(name, _)| name.as_ref() == wanted).map_or(0, |(_, value)| *value);
    let errors = of("rx_malformed").wrapping_add(of("rx_icrc_errors"));
    [
        ("symbol_error", 0),
        ("link_error_recovery", 0),
        ("link_downed", of("link_downed")),
        ("port_rcv_errors", errors),
        ("port_rcv_remote_physical_errors", 0),
        ("port_rcv_switch_relay_errors", 0),
        ("port_xmit_discards", of("send_err")),
        ("port_xmit_constraint_errors", 0),
        ("port_rcv_constraint_errors", of("rx_wrong_pkey")),
        ("local_link_integrity_errors", 0),
        ("excessive_buffer_overrun_errors", 0),
        ("VL15_dropped", 0),
        ("port_xmit_data", of("sent_octets") / 4),
        ("port_rcv_data", of("rcvd_octets") / 4),
        ("port_xmit_packets", of("sent_pkts")),
        ("port_rcv_packets", of("rcvd_pkts")),
        ("port_xmit_wait", 0),
    ]
}
