//! Finding the IPv4 ID that a UDP socket hides.
//!
//! A CRC is linear: the ICRC of a packet with ID `i` is that with ID 0 plus `i(x) * x^(8n+32) mod P`, where `n` octets
//! are hashed after the ID. So the difference, multiplied by the inverse of that power of `x`, is the ID, if it fits 16
//! bits. Of all 2^32 differences 2^16 do.
//!
//! Polynomials are kept as CRC-32 registers: bit 31 is the coefficient of 1, bit 0 that of x^31.

/// The polynomial of Ethernet's CRC-32 without its x^32.
const P: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// Octets hashed between ID and BTH: the rest of the IPv4 header, and UDP.
const BETWEEN: usize = 14 + 8;

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (P & (a & 1).wrapping_neg())
}

const fn over_x(a: u32) -> u32 {
    let carry = a >> 31;
    ((a ^ (P & carry.wrapping_neg())) << 1) | carry
}

const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

/// `x^-(8 * 2^k)`.
const INVERSE_POWERS: [u32; 17] = {
    let mut powers = [0; 17];
    let (mut power, mut k) = (ONE, 0);
    while k < 8 {
        power = over_x(power);
        k += 1;
    }
    k = 0;
    while k < 17 {
        #[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
        {
            powers[k] = power;
        }
        power = times(power, power);
        k += 1;
    }
    powers
};

/// `x^-(8 * octets)`, for fewer than 2^17 octets.
fn inverse_power(octets: usize) -> u32 {
    let used = INVERSE_POWERS.iter().enumerate().filter(|(k, _)| octets >> k & 1 != 0);
    used.fold(ONE, |product, (_, &power)| times(product, power))
}

/// What a difference is multiplied with: the ID enters the register 16 bits before the octets after it.
fn factor(transport_len: usize) -> u32 {
    inverse_power(2 + BETWEEN + transport_len.saturating_sub(4))
}

/// The ID whose polynomial this is, if it is one.
fn id_of(register: u32) -> Option<u16> {
    u16::try_from(register).ok().map(u16::swap_bytes)
}

/// The IPv4 ID with which the packet's ICRC holds, if any does.
///
/// `difference` is the ICRC of the packet XOR the ICRC it must carry with ID 0; `transport_len` its octets from BTH to
/// ICRC, below 65536. One of 65536 random differences has a solution. For more than one packet use [`IdSolver`].
pub fn solve_id(difference: u32, transport_len: usize) -> Option<u16> {
    id_of(times(difference, factor(transport_len)))
}

/// As [`solve_id`], with the factors of recent lengths kept as tables: a few nanoseconds instead of hundreds.
#[derive(Clone, Debug)]
pub struct IdSolver {
    entries: [Entry; Self::ENTRIES],
}

/// The products of one factor with every value of every nibble.
#[derive(Clone, Copy, Debug)]
struct Entry {
    transport_len: usize,
    products: [[u32; 16]; 8],
}

impl IdSolver {
    /// Lengths kept; a packet's is a multiple of four, so this covers 64 neighbours.
    const ENTRIES: usize = 16;

    /// Knows no length yet.
    pub const fn new() -> Self {
        // Right for no packet: none is this long.
        Self { entries: [Entry { transport_len: usize::MAX, products: [[0; 16]; 8] }; Self::ENTRIES] }
    }

    /// As [`solve_id`].
    pub fn solve(&mut self, difference: u32, transport_len: usize) -> Option<u16> {
        let entry = self.entries.get_mut(transport_len / 4 % Self::ENTRIES)?;
        if entry.transport_len != transport_len {
            *entry = Entry::new(transport_len);
        }
        let mut register = 0;
        let mut rest = difference;
        for products in &entry.products {
            register ^= products.get((rest & 0xf) as usize)?;
            rest >>= 4;
        }
        id_of(register)
    }
}

impl Default for IdSolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Entry {
    fn new(transport_len: usize) -> Self {
        let mut products = [[0; 16]; 8];
        // Of each bit from bit 31 down: one more power of x.
        let mut of_bit = factor(transport_len);
        for nibble in products.iter_mut().rev() {
            for bit in [8, 4, 2, 1] {
                for (value, product) in nibble.iter_mut().enumerate() {
                    if value & bit != 0 {
                        *product ^= of_bit;
                    }
                }
                of_bit = times_x(of_bit);
            }
        }
        Self { transport_len, products }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Flow, icrc};

    fn flow() -> Flow {
        Flow {
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            source_port: 0xc123,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    #[test]
    fn inverse_times_power_is_one() {
        let mut power = ONE;
        for octets in 0..5000 {
            assert_eq!(times(power, inverse_power(octets)), ONE, "{octets}");
            (0..8).for_each(|_| power = times_x(power));
        }
        assert_eq!(over_x(times_x(0x1234_5678)), 0x1234_5678);
    }

    /// DESIGN.md section 6.
    #[test]
    fn every_id_is_found() {
        let packet = [0x5a; 1024 + 24];
        let mut solver = IdSolver::new();
        for len in (16..1048).step_by(4).chain([1048]) {
            let packet = &packet[..len];
            let zero = icrc::compute(&flow(), 0, packet);
            for id in [0, 1, 2, 0xff, 0x100, 0x1234, 0x8000, 0xffff] {
                let difference = icrc::compute(&flow(), id, packet) ^ zero;
                assert_eq!(solve_id(difference, len), Some(id), "{len}");
                assert_eq!(solver.solve(difference, len), Some(id), "{len}");
            }
        }
        let zero = icrc::compute(&flow(), 0, &packet);
        for id in 0..=u16::MAX {
            let difference = icrc::compute(&flow(), id, &packet) ^ zero;
            assert_eq!(solver.solve(difference, packet.len()), Some(id));
        }
    }

    #[test]
    fn solver_agrees_with_plain_arithmetic() {
        let mut solver = IdSolver::new();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (difference, len) = ((random >> 32) as u32, (random >> 20 & 0x3ff) as usize * 4);
            assert_eq!(solver.solve(difference, len), solve_id(difference, len));
        }
    }
}
