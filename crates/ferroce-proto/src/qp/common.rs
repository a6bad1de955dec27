//! State that the requester, the completer and the responder of a queue pair have in common.

use alloc::sync::Arc;

use ferroce_wire::{AckTimeout, Bth, Imm, Instant, Operation, Psn, Qpn, RcPacket, Rkey, Span, SrqNumber};

use super::congestion::Limiter;
use super::pipeline::PACKET_OVERHEAD;
use super::receiving::{Message, Receiving, SharedQueues};
use crate::budget::Accounts;
use crate::counting::Counting;
use crate::{
    AsyncEventKind, Budget, CongestionControl, Counters, CreateQpError, DropReason, Memory, QpAttr, QpCaps,
    QpConfig, QpState, ReceiveSource, SelectiveRepeat, Service, Taken, WcOpcode, WcStatus, WorkCompletion,
};

/// Most octets that one READ request asks for.
const READ_REQUEST: u64 = 64 << 10;

/// Attributes, state, counters, events and the receive half: passed to the roles, owned by the queue pair.
#[derive(Debug)]
pub(crate) struct Common {
    pub qpn: Qpn,
    service: Service,
    pub caps: QpCaps,
    pub attr: QpAttr,
    pub counters: Counters,
    /// Completion counters that the program attached.
    pub counting: Counting,
    pub events: Events,
    pub budget: Arc<Budget>,
    /// The budget limits it.
    pub limited: bool,
    pub early_resends: bool,
    pub receiving: Receiving,
    /// The reaction point, since the first CNP.
    pub limiter: Option<Limiter>,
    /// Time at which a packet that waits for the reaction point may leave.
    pub paced: Option<Instant>,
    pub congestion: CongestionControl,
    pub selective_repeat: SelectiveRepeat,
    /// The peer offered selective repeat, and the answers say that it is agreed.
    pub announces: bool,
    /// The straight way is tried before the state machine; for RC alone.
    pub straight: bool,
    /// The queue pair takes from a shared receive queue, and has to report when it will take no more.
    tells_last_wqe: bool,
    /// A request was processed since RTR.
    established: bool,
    state: QpState,
}

impl Common {
    pub fn new(config: QpConfig) -> Result<Self, CreateQpError> {
        let receiving = Receiving::new(&config)?;
        let QpConfig { qpn, service, caps, srq, early_resends, budget, .. } = config;
        Ok(Self {
            qpn,
            service,
            caps,
            attr: QpAttr::default(),
            counters: Counters::default(),
            counting: Counting::default(),
            events: Events::default(),
            budget,
            limited: true,
            early_resends,
            receiving,
            limiter: None,
            paced: None,
            congestion: CongestionControl::React,
            selective_repeat: SelectiveRepeat::Off,
            announces: false,
            straight: service == Service::Rc,
            tells_last_wqe: srq.is_some(),
            established: false,
            state: QpState::Reset,
        })
    }

    pub const fn state(&self) -> QpState {
        self.state
    }

    /// The one place where the state changes.
    pub fn transition(&mut self, event: &'static str, to: QpState) {
        tracing::debug!(qpn = self.qpn.value(), from = ?self.state, event, ?to, "queue pair");
        if to == QpState::Error && self.state != QpState::Error && self.tells_last_wqe {
            // Fetched behind all completions, so behind that of a WQE in use (IBTA 11.6.3.2).
            self.events.raise(AsyncEventKind::QpLastWqeReached);
        }
        if to == QpState::Rtr {
            self.established = false;
        }
        self.state = to;
    }

    /// Whether congestion control holds nothing back.
    pub const fn is_calm(&self) -> bool {
        self.limiter.is_none() && self.paced.is_none()
    }

    /// A request was processed: the first one in RTR raises an event.
    pub fn processed(&mut self) {
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            self.events.raise(AsyncEventKind::CommEst);
        }
    }

    /// Binds a receive WQE of at least `least` octets, for services in which no answer tells the peer of an
    /// empty queue.
    pub fn bind(
        &mut self,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        least: u64,
    ) -> Result<(), DropReason> {
        match self.receiving.take(queues, least) {
            Taken::Wqe => Ok(()),
            Taken::Empty => Err(DropReason::NoReceiveWqe),
            Taken::TooShort => Err(DropReason::TooLong),
            Taken::Failed => Err(self.local_fault()),
        }
    }

    /// Copies a message's octets from `offset` on into the receive WQE in use.
    pub fn place(&mut self, offset: u64, octets: &[u8], mem: &mut impl Memory) -> Result<(), DropReason> {
        match self.receiving.scatter(offset, octets, mem) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.local_fault()),
        }
    }

    /// Waits until all octets of a message are in the receive WQE in use, before it completes.
    #[inline]
    pub fn finish_placing(&mut self, mem: &mut impl Memory) -> Result<(), DropReason> {
        mem.finish_writes().map_err(|_| self.local_fault())
    }

    /// Completes the WQE in use with success, for a message from `completion.src_qp`.
    #[inline(always)]
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.counters.rdma_recvs += 1;
        self.receiving.complete(WorkCompletion { status: WcStatus::Success, qpn: self.qpn, ..completion });
    }

    /// Completes the WQE in use with a message of the connected peer, whose last packet had this header.
    ///
    /// The completion is made where it is kept, because nothing on the way there is a call.
    #[inline(always)]
    pub fn complete_message(
        &mut self,
        message: Option<Message>,
        bth: &Bth,
        imm: Option<Imm>,
        invalidated: Option<Rkey>,
    ) {
        let (opcode, byte_len) = match message {
            Some(Message::Write { length, .. }) => (WcOpcode::RecvRdmaWithImm, length),
            Some(Message::Send { received }) => (WcOpcode::Recv, received as u32),
            None => (WcOpcode::Recv, 0),
        };
        self.complete(WorkCompletion {
            opcode,
            byte_len,
            imm,
            invalidated,
            src_qp: self.attr.dest_qp,
            solicited: bth.solicited,
            grh: true,
            ..WorkCompletion::BLANK
        });
    }

    /// The receive WQE in use cannot be written, or the shared queue failed: the queue pair ends, and no
    /// answer tells the peer.
    fn local_fault(&mut self) -> DropReason {
        self.receiving.fail(WcStatus::LocProtErr, self.qpn);
        self.transition("receive WQE cannot be used", QpState::Error);
        DropReason::LocalFault
    }

    /// Whether a request was processed since RTR.
    pub const fn is_established(&self) -> bool {
        self.established
    }

    /// Whether requests are served.
    pub const fn answers(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// A reliable packet as the service has it; `queue` is what a request of XRC's is for.
    pub const fn reliable<'a>(&self, packet: RcPacket<'a>, queue: Option<SrqNumber>) -> Operation<'a> {
        match self.service {
            Service::XrcInitiator | Service::XrcTarget => Operation::Xrc { srq: queue, packet },
            Service::Rc | Service::Uc | Service::Ud | Service::RawPacket | Service::Iwarp => {
                Operation::Rc(packet)
            }
        }
    }

    pub const fn service(&self) -> Service {
        self.service
    }

    /// Octets of payload in a full packet.
    pub const fn mtu(&self) -> u32 {
        self.attr.path_mtu.bytes() as u32
    }

    /// The charge of a full packet.
    pub fn full_charge(&self) -> u64 {
        u64::from(self.mtu()) + PACKET_OVERHEAD
    }

    /// The counters of the budget that it is charged to.
    pub fn accounts(&self) -> Accounts {
        Budget::accounts(self.attr.path.destination, self.limited)
    }

    /// Packets that one READ request may ask for: four requests fill the budget, so that queue pairs can
    /// share it, and one is no longer than what the responder's kernel takes at once.
    pub fn read_chunk(&self) -> u32 {
        let octets = (self.budget.read_limit() / 4).min(READ_REQUEST);
        (octets / u64::from(self.mtu())).max(1) as u32
    }

    #[inline]
    pub fn ack_timeout(&self) -> Option<Span> {
        AckTimeout::new(self.attr.timeout).and_then(AckTimeout::span)
    }

    /// A header to the peer. The M bit stays clear, as rxe's; RoCE does not use it.
    pub const fn bth(&self, psn: Psn) -> Bth {
        Bth::new(self.attr.dest_qp, psn)
    }
}

/// Asynchronous events waiting to be fetched, each at most once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Events(u32);

impl Events {
    const ORDER: [AsyncEventKind; 6] = [
        AsyncEventKind::CommEst,
        AsyncEventKind::SqDrained,
        AsyncEventKind::QpReqErr,
        AsyncEventKind::QpAccessErr,
        AsyncEventKind::QpFatal,
        AsyncEventKind::QpLastWqeReached,
    ];

    pub fn raise(&mut self, event: AsyncEventKind) {
        self.0 |= 1 << event as u32;
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn pop(&mut self) -> Option<AsyncEventKind> {
        if self.is_empty() {
            return None;
        }
        let event = Self::ORDER.into_iter().find(|&event| self.0 & (1 << event as u32) != 0)?;
        self.0 &= !(1 << event as u32);
        Some(event)
    }

    pub fn clear(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
impl Common {
    /// A queue pair with a path MTU of 256 and no shared receive queue, which may send nothing.
    pub fn for_test(service: crate::Service, caps: crate::QpCaps) -> Self {
        let config = crate::QpConfig {
            qpn: ferroce_wire::Qpn::new(1),
            service,
            caps,
            srq: None,
            sq_sig_all: false,
            port_mtu: ferroce_wire::PathMtu::B256,
            seed: 0,
            early_resends: false,
            budget: alloc::sync::Arc::new(crate::Budget::new(0)),
        };
        Self::new(config).unwrap()
    }
}
