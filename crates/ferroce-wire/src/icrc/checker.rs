//! The ICRC of packets whose IPv4 identification and DF bit the receiver cannot see.
//!
//! The ICRC covers both, and a UDP socket hides them. The checker therefore accepts a packet if the ICRC is
//! right with *any* identification, with DF or without: packet generators and switches that make RoCE packets
//! often leave DF out, and rxe takes those. Every packet of an honest sender passes. Of corrupt packets one
//! in 32,768 passes: over IPv4 the check has the strength of 15 bits. Over IPv6, where nothing is hidden, it
//! has all 32.
//!
//! The checker does not refuse an unusual identification, although that could win some bits back. Senders
//! choose the identification freely (RFC 6864 section 4.1), and kernel rxe takes it from one counter for all
//! queue pairs when it prepares packets; a queueing discipline or another CPU can then reorder thousands of
//! packets. A refused packet is lost without need. A peer with kernel rxe can lose the connection for half a
//! minute by that, because it executes fast registrations again after any loss.
//!
//! Other checks run before: Ethernet's on each link, and the kernel's of the UDP checksum where the sender
//! computed one. Our UDP sockets compute it; kernel rxe and cards send 0.

use super::{IdSolver, Starts, compute, stored};
use crate::Flow;

/// The result of an ICRC check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The ICRC is correct in all 32 bits, without solving for an identification.
    Good,
    /// The ICRC is correct with this identification, or without DF (counter `icrc_id_solved`).
    Solved(u16),
    /// The ICRC is correct with no identification, with DF or without.
    Bad,
}

/// Checks ICRCs of packets that a UDP socket receives. It caches the constants of recent lengths and flows,
/// and keeps no state about senders.
#[derive(Clone, Debug, Default)]
pub struct IcrcChecker {
    solver: IdSolver,
    starts: Starts,
}

impl IcrcChecker {
    /// Creates an empty cache.
    pub const fn new() -> Self {
        Self { solver: IdSolver::new(), starts: Starts::new() }
    }

    /// Checks the octets from BTH to ICRC. `flow` is the packet's own direction: its source is the peer.
    pub fn check(&mut self, flow: &Flow, transport: &[u8]) -> Verdict {
        let Some(stored) = stored(transport) else { return Verdict::Bad };
        let difference = self.with_id_zero(flow, transport) ^ stored;
        if difference == 0 {
            return Verdict::Good;
        }
        let id = if flow.is_ipv4() { self.solver.solve(difference, transport.len()) } else { None };
        id.map_or(Verdict::Bad, Verdict::Solved)
    }

    /// The ICRC with identification 0. Flow and length usually equal those of a recent packet.
    fn with_id_zero(&mut self, flow: &Flow, transport: &[u8]) -> u32 {
        let start = self.starts.of(flow, transport.len());
        let change = self.solver.mask_change(transport.len());
        change
            .and_then(|change| start.compute(transport, change))
            .unwrap_or_else(|| compute(flow, 0, transport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::seal;

    fn flow(source: [u8; 4]) -> Flow {
        Flow {
            source: source.into(),
            destination: [192, 0, 2, 2].into(),
            source_port: 0xc123,
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        }
    }

    #[test]
    fn ipv6_has_no_id_to_solve() {
        let mut checker = IcrcChecker::new();
        let flow = Flow {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            ..flow([0; 4])
        };
        let mut packet = [7; 64];
        seal(&flow, 0, &mut packet);
        assert_eq!(checker.check(&flow, &packet), Verdict::Good);
        for bit in (0..60 * 8).step_by(if cfg!(miri) { 7 } else { 1 }) {
            // The ICRC does not cover octet 4 of the BTH.
            if bit / 8 != 4 {
                packet[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(checker.check(&flow, &packet), Verdict::Bad);
                packet[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(checker.check(&flow, &[]), Verdict::Bad);
    }

    /// A packet passes with any identification, in any order of arrival.
    #[test]
    fn a_packet_holds_with_every_id() {
        let mut checker = IcrcChecker::new();
        let flow = flow([192, 0, 2, 1]);
        let mut packet = [7; 64];
        for k in (0..=u16::MAX).step_by(if cfg!(miri) { 2111 } else { 1 }) {
            let id = k.wrapping_mul(0x9e37);
            seal(&flow, id, &mut packet);
            let good = if id == 0 { Verdict::Good } else { Verdict::Solved(id) };
            assert_eq!(checker.check(&flow, &packet), good);
        }
    }

    /// A packet of any length is checked without reading beyond its end.
    #[test]
    fn every_length_is_judged() {
        let mut checker = IcrcChecker::new();
        for len in (0..100).step_by(if cfg!(miri) { 7 } else { 1 }) {
            let mut packet = [3; 100];
            assert_eq!(checker.check(&flow([1, 2, 3, 4]), &packet[..len]), Verdict::Bad, "{len}");
            seal(&flow([1, 2, 3, 4]), 0, &mut packet[..len]);
            let good = if len < 4 { Verdict::Bad } else { Verdict::Good };
            assert_eq!(checker.check(&flow([1, 2, 3, 4]), &packet[..len]), good, "{len}");
        }
    }
}
