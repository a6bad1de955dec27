//! The packets that simulated hosts exchange.

use std::rc::Rc;

use ferroce_fault::{Dir, Facts, Side};
use ferroce_wire::{Flow, IcrcStatus, Packet, icrc};

use crate::Datagram;

/// A RoCE datagram under way.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Addresses and traffic class of its IP header.
    pub flow: Flow,
    /// The ID of its IPv4 header.
    pub ip_id: u16,
    /// From BTH to ICRC.
    pub bytes: Rc<Vec<u8>>,
}

impl Frame {
    /// The packet, if its ICRC is right.
    pub fn packet(&self) -> Option<Packet<'_>> {
        let mut packet = Packet::parse(&self.bytes).ok()?;
        if !icrc::verify(&self.flow, self.ip_id, &self.bytes) {
            return None;
        }
        packet.icrc = IcrcStatus::Checked;
        Some(packet)
    }
}

impl Datagram for Frame {
    fn corrupt(&mut self, noise: u64) {
        let bit = (noise % (self.bytes.len() as u64 * 8)) as usize;
        Rc::make_mut(&mut self.bytes)[bit / 8] ^= 1 << (bit % 8);
    }

    fn seal(&mut self) {
        let bytes: &mut Vec<u8> = Rc::make_mut(&mut self.bytes);
        icrc::seal(&self.flow, self.ip_id, bytes);
    }

    fn wire_len(&self) -> usize {
        // Ethernet with preamble and gap, IPv4, UDP.
        38 + 20 + 8 + self.bytes.len()
    }

    fn mark_ce(&mut self) -> bool {
        let capable = self.flow.traffic_class & Flow::CONGESTION_EXPERIENCED != 0;
        if capable {
            self.flow.traffic_class |= Flow::CONGESTION_EXPERIENCED;
        }
        capable
    }

    fn facts(&self, to: usize) -> Option<Facts<'_>> {
        let packet = Packet::parse(&self.bytes).ok()?;
        let (peer, class) = (self.flow.source, self.flow.traffic_class);
        // Simulated hosts have no devices with names.
        let side = Side { dir: Dir::Rx, dev: None, qp: to as u32, peer };
        Some(Facts::of(&packet, &side, class, self.bytes.len()))
    }
}
