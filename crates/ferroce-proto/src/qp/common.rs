//! What the three roles of a queue pair share.

use alloc::sync::Arc;

use ferroce_wire::{AckTimeout, Bth, Operation, Psn, Qpn, RcPacket, SrqNumber};

use crate::{AsyncEvent, Budget, Counters, QpAttr, QpCaps, QpState, Service};

/// Attributes, state, counters and events: passed to the roles, owned by the queue pair.
#[derive(Debug)]
pub(crate) struct Common {
    pub qpn: Qpn,
    service: Service,
    pub caps: QpCaps,
    pub attr: QpAttr,
    pub counters: Counters,
    pub events: Events,
    pub budget: Arc<Budget>,
    pub early_resends: bool,
    /// It takes from a shared receive queue, and has to say when it will take no more.
    pub tells_last_wqe: bool,
    /// A request was processed since RTR.
    pub established: bool,
    state: QpState,
}

impl Common {
    pub fn new(qpn: Qpn, service: Service, caps: QpCaps, budget: Arc<Budget>, early_resends: bool) -> Self {
        Self {
            qpn,
            service,
            caps,
            attr: QpAttr::default(),
            counters: Counters::default(),
            events: Events::default(),
            budget,
            early_resends,
            tells_last_wqe: false,
            established: false,
            state: QpState::Reset,
        }
    }

    pub const fn state(&self) -> QpState {
        self.state
    }

    /// The one place where the state changes.
    pub fn transition(&mut self, event: &'static str, to: QpState) {
        tracing::debug!(qpn = self.qpn.value(), from = ?self.state, event, ?to, "queue pair");
        if to == QpState::Error && self.state != QpState::Error && self.tells_last_wqe {
            // Fetched behind all completions, so behind that of a WQE in use (IBTA 11.6.3.2).
            self.events.raise(AsyncEvent::QpLastWqeReached);
        }
        self.state = to;
    }

    /// Whether requests are served.
    pub const fn answers(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// A reliable packet as the service has it; `queue` is what a request of XRC's is for.
    pub const fn reliable<'a>(&self, packet: RcPacket<'a>, queue: Option<SrqNumber>) -> Operation<'a> {
        match self.service {
            Service::XrcInitiator | Service::XrcTarget => Operation::Xrc { srq: queue, packet },
            Service::Rc | Service::Uc | Service::Ud | Service::RawPacket => Operation::Rc(packet),
        }
    }

    pub const fn service(&self) -> Service {
        self.service
    }

    /// Octets of payload in a full packet.
    pub const fn mtu(&self) -> u32 {
        self.attr.path_mtu.bytes() as u32
    }

    pub fn ack_timeout(&self) -> Option<core::time::Duration> {
        AckTimeout::new(self.attr.timeout).and_then(AckTimeout::delay)
    }

    /// A header to the peer. The M bit stays clear, as rxe's; nobody reads it on RoCE.
    pub const fn bth(&self, psn: Psn) -> Bth {
        Bth::new(self.attr.dest_qp, psn)
    }
}

/// Asynchronous events waiting to be fetched, each at most once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Events(u32);

impl Events {
    const ORDER: [AsyncEvent; 6] = [
        AsyncEvent::CommEst,
        AsyncEvent::SqDrained,
        AsyncEvent::QpReqErr,
        AsyncEvent::QpAccessErr,
        AsyncEvent::QpFatal,
        AsyncEvent::QpLastWqeReached,
    ];

    pub fn raise(&mut self, event: AsyncEvent) {
        self.0 |= 1 << event as u32;
    }

    pub fn pop(&mut self) -> Option<AsyncEvent> {
        let event = Self::ORDER.into_iter().find(|&event| self.0 & (1 << event as u32) != 0)?;
        self.0 &= !(1 << event as u32);
        Some(event)
    }

    pub fn clear(&mut self) {
        self.0 = 0;
    }
}
