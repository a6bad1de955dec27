//! What others see of a queue pair: its record in the ledger.

use ferroce_ipc::ledger::QP_COUNTERS;
use ferroce_proto::{QueuePair, Service};

use super::Qp;
use crate::counters::{record_head, transport_values};

impl Qp {
    /// Writes what stays as it is.
    pub(super) fn introduce(&self) {
        let core = self.core.lock();
        let pair = |upper: u32, lower: u32| u64::from(upper) << 32 | u64::from(lower);
        let number = |cq: Option<&std::sync::Arc<crate::CompletionQueue>>| cq.map_or(0, |cq| cq.number());
        let srq = self.srq.as_ref().map_or(0, |srq| srq.number().value());
        self.entry.store(
            3,
            &[
                pair(self.pd.number(), self.context().number()),
                pair(number(self.send_cq.as_ref()), number(self.recv_cq.as_ref())),
                pair(srq, 0),
            ],
        );
        self.show(&core.transport);
    }

    /// Brings the record up to date: some stores to memory that is this process's own as far as the processor is concerned.
    pub(super) fn show(&self, transport: &QueuePair) {
        let (remote, expected, next) = transport.progress();
        let kind = service_code(self.service) << 16 | (transport.state() as u64) << 24;
        self.entry.store(
            0,
            &[
                record_head(self.context().block()) | kind,
                u64::from(self.qpn.value()) << 32 | u64::from(remote.value()),
                u64::from(expected.value()) << 32 | u64::from(next.value()),
            ],
        );
        self.entry.store(QP_COUNTERS, &transport_values(transport.counters()));
    }

    /// Its numbers stay in its device's sum, its record ends.
    pub(super) fn retire(&self, transport: &QueuePair) {
        let ledger = &self.context().engine().hub().ledger;
        ledger.retire(self.context().block(), &transport_values(transport.counters()), &self.entry);
    }
}

/// The numbers that the verbs give to services (`enum ibv_qp_type`).
const fn service_code(service: Service) -> u64 {
    match service {
        Service::Rc => 2,
        Service::Uc => 3,
        Service::Ud => 4,
        Service::RawPacket => 8,
        Service::XrcInitiator => 9,
        Service::XrcTarget => 10,
    }
}
