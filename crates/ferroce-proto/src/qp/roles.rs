//! Who serves and who sends, by service.

use ferroce_wire::{Flow, Instant, Operation, Packet, Psn, RcPacket, SrqNumber, TxBatch};

use super::common::Common;
use super::completer::Refusal;
use super::pipeline::Pipeline;
use super::receive_source::Receives;
use super::reliable::Reliable;
use super::requester::Requester;
use super::{raw, uc, ud, unreliable};
use crate::{
    DropReason, Memory, PostSendError, ReceiveSource, SendOp, SendTo, SendWr, Service, WorkCompletion,
};

/// The roles of a queue pair. Unreliable services send without any state beside the send queue's, see [`unreliable`].
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most queue pairs are of the large one, which is used the most"
)]
pub(crate) enum Roles {
    Reliable(Reliable),
    Uc(uc::Responder),
    Ud(ud::Receiver),
    Raw(raw::Receiver),
}

/// Sizes of the receive WQEs that may come, from whichever queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveDepth {
    /// How many there can be at a time.
    pub max_wr: u32,
    /// SGEs of one.
    pub max_sge: u32,
}

/// A receive completion, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub completion: WorkCompletion,
    /// The shared receive queue whose completion queue it is for, if not the queue pair's: XRC.
    pub queue: Option<SrqNumber>,
}

impl From<WorkCompletion> for Received {
    fn from(completion: WorkCompletion) -> Self {
        Self { completion, queue: None }
    }
}

/// What waits: send WQEs and receive WQEs.
pub(crate) struct Queues<'a, S> {
    pub pipeline: &'a mut Pipeline,
    pub receives: Receives<'a, S>,
}

impl Roles {
    pub fn new(service: Service, depth: ReceiveDepth, seed: u64) -> Self {
        match service {
            Service::Rc | Service::XrcInitiator | Service::XrcTarget => {
                Self::Reliable(Reliable::new(depth, seed))
            }
            Service::Uc => Self::Uc(uc::Responder::new(depth)),
            Service::Ud => Self::Ud(ud::Receiver::new(depth)),
            Service::RawPacket => Self::Raw(raw::Receiver::new(depth)),
        }
    }

    /// Takes a packet of this QPN, of the right partition, in a state that takes packets.
    pub fn handle(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        common: &mut Common,
        mut queues: Queues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        match (self, &packet.op) {
            (Self::Reliable(reliable), Operation::Rc(rc)) if common.service() == Service::Rc => {
                reliable.handle(now, &packet.bth, rc, common, queues, mem)
            }
            // An initiator asks, a target answers, neither does both (IBTA A14).
            (Self::Reliable(reliable), Operation::Xrc { packet: rc, .. })
                if match rc {
                    RcPacket::Request(_) => common.service() == Service::XrcTarget,
                    RcPacket::Response(_) => common.service() == Service::XrcInitiator,
                } =>
            {
                reliable.handle(now, &packet.bth, rc, common, queues, mem)
            }
            (Self::Reliable(reliable), Operation::Cnp) => {
                common.counters.rcvd_cnps += 1;
                reliable.requester.congested();
                Ok(())
            }
            (Self::Uc(responder), Operation::Uc(request)) => {
                Ok(responder.handle_request(common, &packet.bth, request, &mut queues.receives, mem)?)
            }
            (Self::Ud(receiver), Operation::Ud(datagram)) => {
                Ok(receiver.handle(common, from, &packet.bth, datagram, &mut queues.receives, mem)?)
            }
            // There is nothing that it could slow down.
            (Self::Uc(_) | Self::Ud(_) | Self::Raw(_), Operation::Cnp) => Ok(()),
            (_, Operation::Rc(_) | Operation::Uc(_) | Operation::Ud(_) | Operation::Xrc { .. }) => {
                Err(DropReason::WrongService.into())
            }
        }
    }

    /// Takes a frame.
    pub fn handle_frame(
        &mut self,
        frame: &[u8],
        common: &mut Common,
        receives: &mut Receives<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        match self {
            Self::Raw(receiver) => receiver.handle(common, frame, receives, mem),
            Self::Reliable(_) | Self::Uc(_) | Self::Ud(_) => Err(DropReason::WrongService),
        }
    }

    /// Writes the next frame; its length.
    pub fn next_frame(
        &mut self,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &impl Memory,
        out: &mut [u8],
    ) -> Option<usize> {
        match self {
            Self::Raw(_) => raw::next_frame(common, pipeline, mem, out),
            Self::Reliable(_) | Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    /// Whether packets come from one peer alone.
    pub const fn is_connected(&self) -> bool {
        match self {
            Self::Reliable(_) | Self::Uc(_) => true,
            Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// Whether an error of a send work request ends the send queue alone (SQE, IBTA 10.3.1).
    pub const fn survives_send_errors(&self) -> bool {
        match self {
            Self::Reliable(_) => false,
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => true,
        }
    }

    /// Begins to serve: the first PSN, and how many reads and atomics the peer may have outstanding.
    pub fn begin_receiving(&mut self, psn: Psn, depth: u8) {
        match self {
            Self::Reliable(reliable) => reliable.responder.begin(psn, depth),
            Self::Uc(responder) => responder.begin(psn),
            Self::Ud(receiver) => receiver.reset(),
            Self::Raw(receiver) => receiver.reset(),
        }
    }

    /// Begins to send.
    pub fn begin_sending(&mut self, common: &Common) {
        match self {
            Self::Reliable(reliable) => reliable.begin_sending(common),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    /// Packets that one READ request may ask for.
    pub fn read_chunk(&self, common: &Common) -> u32 {
        match self {
            Self::Reliable(_) => Requester::read_chunk(common),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => 1,
        }
    }

    /// Changes how many reads and atomics the peer may have outstanding.
    pub fn set_depth(&mut self, depth: u8) {
        match self {
            Self::Reliable(reliable) => reliable.responder.set_depth(depth),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    /// The PSN expected next; `None` where none is.
    pub const fn expected(&self) -> Option<Psn> {
        match self {
            Self::Reliable(reliable) => Some(reliable.responder.expected()),
            Self::Uc(responder) => Some(responder.expected()),
            Self::Ud(_) | Self::Raw(_) => None,
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self, common: &Common) {
        self.stop_sending(common);
        match self {
            Self::Reliable(reliable) => reliable.responder.reset(),
            Self::Uc(responder) => responder.begin(Psn::new(0)),
            Self::Ud(receiver) => receiver.reset(),
            Self::Raw(receiver) => receiver.reset(),
        }
    }

    /// The application ended the queue pair: no more answers.
    pub fn silence(&mut self) {
        match self {
            Self::Reliable(reliable) => reliable.responder.silence(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    /// Sends no requests any more.
    pub fn stop_sending(&mut self, common: &Common) {
        match self {
            Self::Reliable(reliable) => reliable.stop_sending(common),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    /// Adds packets to the batch; the number of packets.
    pub fn transmit(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> u32 {
        match self {
            Self::Reliable(reliable) => reliable.transmit(now, common, pipeline, mem, out),
            Self::Uc(_) => unreliable::transmit(common, pipeline, mem, out, uc::push),
            Self::Ud(_) => unreliable::transmit(common, pipeline, mem, out, ud::push),
            // Frames are no RoCE packets, see [`Self::next_frame`].
            Self::Raw(_) => 0,
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        match self {
            Self::Reliable(reliable) => reliable.handle_timeout(now, common, pipeline),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => Ok(()),
        }
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn timeout(&self) -> Option<Instant> {
        match self {
            Self::Reliable(reliable) => reliable.timeout(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => None,
        }
    }

    /// Whether one ACK is all there is to send.
    pub fn owes_only_ack(&self, pipeline: &Pipeline) -> bool {
        match self {
            Self::Reliable(reliable) => reliable.owes_only_ack(pipeline),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// See [`super::QueuePair::hold_ack`].
    pub fn hold_ack(&mut self, hold: bool) {
        match self {
            Self::Reliable(reliable) => reliable.hold_ack(hold),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    /// Whether an ACK is held back.
    pub fn holds_ack(&self) -> bool {
        match self {
            Self::Reliable(reliable) => reliable.holds_ack(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// The next receive completion; in the error state, once those of success are out, of the WQE in use.
    pub fn poll_completion(&mut self, common: &Common) -> Option<Received> {
        match self {
            Self::Reliable(reliable) => reliable.responder.poll_completion(common),
            Self::Uc(responder) => responder.poll_completion(common).map(Received::from),
            Self::Ud(receiver) => receiver.poll_completion().map(Received::from),
            Self::Raw(receiver) => receiver.poll_completion().map(Received::from),
        }
    }
}

/// Whether the service knows what is asked, and to whom (IBTA 10.8.3, table 92).
pub(crate) fn check_service(service: Service, wr: &SendWr<'_>) -> Result<(), PostSendError> {
    let (operation, destination) = match service {
        Service::Rc => (true, matches!(wr.to, SendTo::Peer)),
        Service::XrcInitiator => (
            true,
            matches!(
                (wr.op, wr.to),
                (SendOp::LocalInvalidate(_) | SendOp::BindMw(_), _) | (_, SendTo::XrcSrq(_))
            ),
        ),
        // It has no send queue.
        Service::XrcTarget => (false, false),
        Service::Uc => (
            match wr.op {
                SendOp::Send
                | SendOp::SendImm(_)
                | SendOp::Write { .. }
                | SendOp::WriteImm { .. }
                | SendOp::LocalInvalidate(_)
                | SendOp::BindMw(_) => true,
                SendOp::SendInvalidate(_)
                | SendOp::Read { .. }
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite { .. }
                | SendOp::Flush { .. } => false,
            },
            matches!(wr.to, SendTo::Peer),
        ),
        Service::RawPacket => (matches!(wr.op, SendOp::Send), matches!(wr.to, SendTo::Peer)),
        Service::Ud => {
            (matches!(wr.op, SendOp::Send | SendOp::SendImm(_)), matches!(wr.to, SendTo::Datagram { .. }))
        }
    };
    if !operation {
        Err(PostSendError::Operation(service))
    } else if !destination && !wr.op.is_local() {
        Err(PostSendError::Destination(service))
    } else {
        Ok(())
    }
}
