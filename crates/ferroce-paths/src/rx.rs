//! Packets as they arrive, up to the place where a queue pair is looked for.

use std::net::IpAddr;
use std::slice::Chunks;

use ferroce_datapath::udp::{self, Datagram};
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_ipc::pipe::Batch;
use ferroce_wire::icrc::{IcrcChecker, Verdict};
use ferroce_wire::{Flow, Frame, IcrcStatus, LinkLayer, Packet, Qpn, RoceVersion};

/// The packets of one batch, one after the other. An iterator could not lend its buffer.
pub trait RxBatch {
    /// Takes the next packet; `None` at the end of the batch.
    fn next(&mut self) -> Option<Arrival<'_>>;
}

/// A packet that arrived and is not checked yet.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    pub flow: &'a Flow,
    /// From BTH to ICRC; empty if the headers in front of that are malformed.
    pub octets: &'a [u8],
    icrc: Icrc,
}

/// The knowledge about the ICRC of an [`Arrival`].
#[derive(Clone, Copy)]
enum Icrc {
    /// The system took the headers in front of the packet away: it is found by trial whether the ICRC holds.
    Unknown,
    /// The ICRC holds, or does not count.
    Good,
    /// The ICRC does not hold.
    Bad,
}

impl<'a> Arrival<'a> {
    /// A packet of which nothing is known.
    pub const fn new(flow: &'a Flow, octets: &'a [u8]) -> Self {
        Self { flow, octets, icrc: Icrc::Unknown }
    }

    /// A packet behind a GRH or IP header, by `link`. Its ICRC counts if `checks` says so. Its flow is
    /// written to `flow`.
    pub(crate) fn behind_headers(
        link: LinkLayer,
        checks: bool,
        octets: &'a [u8],
        flow: &'a mut Flow,
    ) -> Self {
        let frame = match link.version {
            RoceVersion::V1 => Frame::parse_grh(octets),
            RoceVersion::V2 => Frame::parse_ip(octets),
        };
        let Ok(frame) = frame else { return Self { flow: &NO_FLOW, octets: &[], icrc: Icrc::Good } };
        // All 32 bits: nothing of the headers is hidden here.
        let icrc = if !checks || frame.icrc_holds() { Icrc::Good } else { Icrc::Bad };
        *flow = Flow { link, ..frame.way() };
        Self { flow, octets: frame.transport, icrc }
    }

    /// The destination queue pair: BTH octets 5 to 7, if the packet is so long.
    #[inline]
    pub fn destination(&self) -> Option<Qpn> {
        destination(self.octets)
    }

    /// Reads the packet, if it is one for this process. Counts it otherwise. `checker` checks an ICRC of
    /// which nothing is known; without one it does not count. `is_ours` tells whether a queue pair number is
    /// one of this process.
    #[inline(always)]
    pub fn read(
        &self,
        checker: Option<&mut IcrcChecker>,
        is_ours: impl FnOnce(Qpn) -> bool,
        counters: &DeviceCounters,
    ) -> Option<Packet<'a>> {
        let Some(qpn) = self.destination() else {
            DeviceCounters::count(&counters.rx_malformed);
            return None;
        };
        let verdict = match (self.icrc, checker) {
            (Icrc::Unknown, Some(checker)) => checker.check(self.flow, self.octets),
            (Icrc::Unknown, None) | (Icrc::Good, _) => Verdict::Good,
            (Icrc::Bad, _) => Verdict::Bad,
        };
        match verdict {
            Verdict::Good => {}
            Verdict::Solved(_) => DeviceCounters::count(&counters.icrc_id_solved),
            Verdict::Bad => {
                DeviceCounters::count(&counters.rx_icrc_errors);
                return None;
            }
        }
        if !is_ours(qpn) {
            DeviceCounters::count(&counters.rx_stray_slot);
            return None;
        }
        match Packet::parse(self.octets) {
            Ok(mut packet) => {
                packet.icrc = IcrcStatus::Checked;
                Some(packet)
            }
            Err(error) => {
                DeviceCounters::count(&counters.rx_malformed);
                tracing::debug!(%error, source = %self.flow.source, "malformed packet");
                None
            }
        }
    }
}

/// The flow of a packet that has none.
pub(crate) const NO_FLOW: Flow = Flow {
    source: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    destination: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    source_port: 0,
    traffic_class: 0,
    hop_limit: 0,
    link: LinkLayer::UDP,
};

/// The destination queue pair of octets from the BTH on.
#[inline]
fn destination(octets: &[u8]) -> Option<Qpn> {
    match octets {
        [_, _, _, _, _, a, b, c, ..] => Some(Qpn::from_be_bytes([*a, *b, *c])),
        _ => None,
    }
}

/// The datagrams that one receive call took from a socket.
pub struct Datagrams<'a> {
    datagrams: udp::Datagrams<'a>,
    /// That of the last packet; its destination is the address of the socket.
    flow: Flow,
}

impl<'a> Datagrams<'a> {
    pub fn new(datagrams: udp::Datagrams<'a>, destination: IpAddr) -> Self {
        Self { datagrams, flow: Flow { destination, ..NO_FLOW } }
    }
}

impl RxBatch for Datagrams<'_> {
    #[inline]
    fn next(&mut self) -> Option<Arrival<'_>> {
        let Datagram { source, source_port, bytes, traffic_class, hop_limit, .. } = self.datagrams.next()?;
        self.flow = Flow { source, source_port, traffic_class, hop_limit, ..self.flow };
        Some(Arrival::new(&self.flow, bytes))
    }
}

/// The packets of a batch out of a pipe.
pub struct Segments<'a> {
    flow: Flow,
    segments: Chunks<'a, u8>,
}

impl<'a> Segments<'a> {
    /// The packets of `batch`, whose octets were copied to the front of `buffer`.
    pub fn new(batch: &Batch, buffer: &'a [u8]) -> Self {
        let flow = batch.way;
        let octets = buffer.get(..batch.len).unwrap_or_default();
        Self { flow, segments: octets.chunks(batch.segment_size.max(1)) }
    }

    /// The destination queue pair of the next packet.
    pub fn destination(&self) -> Option<Qpn> {
        self.segments.clone().next().and_then(destination)
    }
}

impl RxBatch for Segments<'_> {
    #[inline]
    fn next(&mut self) -> Option<Arrival<'_>> {
        let octets = self.segments.next()?;
        Some(Arrival::new(&self.flow, octets))
    }
}
