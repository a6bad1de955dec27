//! The roles that a queue pair has, by service.

use alloc::boxed::Box;

use ferroce_wire::{Flow, Instant, Operation, Packet, Psn, RcPacket, TxBatch};

use super::common::Common;
use super::iwarp::Iwarp;
use super::pipeline::Pipeline;
use super::receiving::SharedQueues;
use super::recovery::Refusal;
use super::reliable::Reliable;
use super::{uc, ud, unreliable};
use crate::{
    DropReason, Memory, PostSendError, ReceiveSource, SelectiveRepeat, SendOp, SendTo, SendWr, Service,
};

/// The roles of a queue pair, as far as they have a state beside [`Common`] and the send queue.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most queue pairs are of the large one, which is used the most"
)]
pub(crate) enum Roles {
    Reliable(Reliable),
    Uc(uc::Responder),
    Ud,
    /// Ethernet frames, which are no RoCE packets, see [`super::raw`].
    Raw,
    /// A stream of octets, see [`super::iwarp`].
    Iwarp(Box<Iwarp>),
}

impl Roles {
    pub fn new(service: Service, seed: u64) -> Self {
        match service {
            Service::Rc | Service::XrcInitiator | Service::XrcTarget => Self::Reliable(Reliable::new(seed)),
            Service::Uc => Self::Uc(uc::Responder::new()),
            Service::Ud => Self::Ud,
            Service::RawPacket => Self::Raw,
            Service::Iwarp => Self::Iwarp(Box::default()),
        }
    }

    pub const fn reliable(&self) -> Option<&Reliable> {
        match self {
            Self::Reliable(reliable) => Some(reliable),
            Self::Uc(_) | Self::Ud | Self::Raw | Self::Iwarp(_) => None,
        }
    }

    pub const fn reliable_mut(&mut self) -> Option<&mut Reliable> {
        match self {
            Self::Reliable(reliable) => Some(reliable),
            Self::Uc(_) | Self::Ud | Self::Raw | Self::Iwarp(_) => None,
        }
    }

    pub const fn stream_mut(&mut self) -> Option<&mut Iwarp> {
        match self {
            Self::Iwarp(stream) => Some(stream),
            Self::Reliable(_) | Self::Uc(_) | Self::Ud | Self::Raw => None,
        }
    }

    pub const fn stream(&self) -> Option<&Iwarp> {
        match self {
            Self::Iwarp(stream) => Some(stream),
            Self::Reliable(_) | Self::Uc(_) | Self::Ud | Self::Raw => None,
        }
    }

    /// Takes a packet of this QPN, of the right partition, in a state that takes packets.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one queue pair, and what comes with a packet"
    )]
    pub fn handle(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        common: &mut Common,
        pipeline: &mut Pipeline,
        source: &mut impl ReceiveSource,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let bth = &packet.bth;
        if from.is_marked()
            && let Self::Reliable(reliable) = self
            && let Operation::Rc(op) | Operation::Xrc { packet: op, .. } = &packet.op
        {
            reliable.marked(now, bth.psn, op, common, pipeline);
        }
        let mut queues = SharedQueues { source, named: None };
        if bth.extended
            && let Self::Reliable(reliable) = self
        {
            reliable.note_agreement(bth.psn, &packet.op, common, pipeline);
        }
        match (self, &packet.op) {
            (Self::Reliable(reliable), Operation::Rc(RcPacket::Request(request)))
                if common.service() == Service::Rc =>
            {
                Ok(reliable.responder.handle_request(now, common, bth, request, &mut queues, mem)?)
            }
            // An initiator sends requests and a target responses, neither does both (IBTA A14).
            (Self::Reliable(reliable), Operation::Xrc { srq, packet: RcPacket::Request(request) })
                if common.service() == Service::XrcTarget =>
            {
                queues.named = *srq;
                Ok(reliable.responder.handle_request(now, common, bth, request, &mut queues, mem)?)
            }
            (Self::Reliable(reliable), Operation::Rc(RcPacket::Response(response)))
                if common.service() == Service::Rc =>
            {
                reliable.completer(now, common, pipeline)?.handle_response(bth.psn, response, mem)
            }
            (Self::Reliable(reliable), Operation::Xrc { packet: RcPacket::Response(response), .. })
                if common.service() == Service::XrcInitiator =>
            {
                reliable.completer(now, common, pipeline)?.handle_response(bth.psn, response, mem)
            }
            (Self::Reliable(reliable), Operation::Cnp) => {
                reliable.congested(now, common, pipeline);
                Ok(())
            }
            (Self::Reliable(reliable), Operation::Sack { aeth, held })
                if common.selective_repeat != SelectiveRepeat::Off =>
            {
                reliable.completer(now, common, pipeline)?.handle_sack(bth.psn, *aeth, *held)
            }
            (Self::Uc(responder), Operation::Uc(request)) => {
                Ok(responder.handle_request(common, bth, request, &mut queues, mem)?)
            }
            (Self::Ud, Operation::Ud(datagram)) => {
                Ok(ud::receive(common, from, bth, datagram, &mut queues, mem)?)
            }
            // Nothing is slowed down without acknowledgements.
            (Self::Uc(_) | Self::Ud | Self::Raw | Self::Iwarp(_), Operation::Cnp) => Ok(()),
            (
                _,
                Operation::Rc(_)
                | Operation::Uc(_)
                | Operation::Ud(_)
                | Operation::Xrc { .. }
                | Operation::Sack { .. },
            ) => Err(DropReason::WrongService.into()),
        }
    }

    /// Begins to serve: the first PSN, and how many reads and atomics the peer may have outstanding.
    pub fn begin_receiving(&mut self, psn: Psn, depth: u8, common: &Common) {
        match self {
            Self::Reliable(reliable) => reliable.responder.begin(psn, depth, common),
            Self::Uc(responder) => responder.begin(psn),
            Self::Ud | Self::Raw | Self::Iwarp(_) => {}
        }
    }

    /// The PSN expected next; `None` where none is.
    pub const fn expected(&self) -> Option<Psn> {
        match self {
            Self::Reliable(reliable) => Some(reliable.responder.expected()),
            Self::Uc(responder) => Some(responder.expected()),
            Self::Ud | Self::Raw | Self::Iwarp(_) => None,
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
            Self::Ud => unreliable::transmit(common, pipeline, mem, out, ud::push),
            Self::Raw | Self::Iwarp(_) => 0,
        }
    }
}

/// Whether the service supports the operation and the destination (IBTA 10.8.3, table 92).
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
        // An XRC target has no send queue.
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
        Service::Iwarp => (
            !matches!(wr.op, SendOp::SendImm(_) | SendOp::AtomicWrite { .. } | SendOp::Flush { .. }),
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
