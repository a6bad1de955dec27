//! Computes the IPv4 ID that a UDP socket hides.
//!
//! A CRC is linear: the ICRC of a packet with ID `i` is that with ID 0 plus `i(x) * x^(8n+32) mod P`, where
//! `n` octets are hashed after the ID. So the difference, multiplied by the inverse of that power of `x`, is
//! the ID, if it fits 16 bits. The socket also hides whether the packet has DF: without it the difference has
//! that bit behind the ID. Of all 2^32 differences 2^17 have one of the two forms.
//!
//! Polynomials are kept as CRC-32 registers: bit 31 is the coefficient of 1, bit 0 that of x^31.

use super::BTH_ECN;
use crate::opcode::ICRC_LEN;

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

/// `base^(8 * 2^k)`.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time: out of bounds does not compile")]
const fn octet_powers(base: u32) -> [u32; 17] {
    let mut powers = [base; 17];
    let mut k = 0;
    while k < 3 {
        powers[0] = times(powers[0], powers[0]);
        k += 1;
    }
    k = 1;
    while k < powers.len() {
        powers[k] = times(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
}

const POWERS: [u32; 17] = octet_powers(times_x(ONE));
const INVERSE_POWERS: [u32; 17] = octet_powers(over_x(ONE));

/// The product of the powers of two that add up to `octets`, which is below 2^17.
fn power(of: &[u32; 17], octets: usize) -> u32 {
    let used = of.iter().enumerate().filter(|(k, _)| octets >> k & 1 != 0);
    used.fold(ONE, |product, (_, &power)| times(product, power))
}

/// The change of the register after the headers before BTH, by nibble of the ID.
const ID_CHANGE: [[u32; 16]; 4] = products(times(POWERS[4], POWERS[3]));
const _: () = assert!(2 + BETWEEN == 16 + 8);

/// The change of the register after the headers before BTH, if the ID is `id` instead of 0.
pub(super) fn id_change(id: u16) -> u32 {
    lookup(&ID_CHANGE, id.swap_bytes().into())
}

/// The products of `factor` with every value of the `N` lowest nibbles of a register.
#[expect(clippy::indexing_slicing, reason = "the bounds are the arrays'; const code has no iterators")]
const fn products<const N: usize>(factor: u32) -> [[u32; 16]; N] {
    let mut products = [[0; 16]; N];
    let mut of_bit = factor;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        if bit < 4 * N {
            let mut value = 0;
            while value < 16 {
                if value >> (bit % 4) & 1 != 0 {
                    products[bit / 4][value] ^= of_bit;
                }
                value += 1;
            }
        }
        of_bit = times_x(of_bit);
    }
    products
}

/// The product of a register with the factor of the table. Nibbles beyond the table must be 0.
fn lookup<const N: usize>(products: &[[u32; 16]; N], register: u32) -> u32 {
    let (mut product, mut rest) = (0, register);
    for of_nibble in products {
        product ^= of_nibble.get((rest & 0xf) as usize).copied().unwrap_or(0);
        rest >>= 4;
    }
    product
}

/// The factor for a difference: the ID enters the register 16 bits before the octets after it.
fn factor(transport_len: usize) -> u32 {
    power(&INVERSE_POWERS, 2 + BETWEEN + transport_len.saturating_sub(ICRC_LEN))
}

/// DF in the octet behind the ID.
const DONT_FRAGMENT: u32 = 0x40 << 16;

/// The ID of this polynomial, if there is one, with DF or without.
fn id_of(register: u32) -> Option<u16> {
    u16::try_from(register & !DONT_FRAGMENT).ok().map(u16::swap_bytes)
}

/// The IPv4 ID that makes the packet's ICRC correct, if there is one.
///
/// `difference` is the ICRC of the packet XOR the ICRC it must carry with ID 0 and DF; `transport_len` its
/// octets from BTH to ICRC, below 65536. One of 32768 random differences has a solution. For more than one
/// packet use [`IdSolver`].
pub fn solve_id(difference: u32, transport_len: usize) -> Option<u16> {
    id_of(times(difference, factor(transport_len)))
}

/// As [`solve_id`], with the factors of recent lengths kept as tables: a few nanoseconds instead of hundreds.
#[derive(Clone, Debug)]
pub struct IdSolver {
    entries: [Entry; Self::ENTRIES],
}

/// The constants for one length.
#[derive(Clone, Copy, Debug)]
struct Entry {
    transport_len: usize,
    /// The products of the factor.
    products: [[u32; 16]; 8],
    /// The change of the CRC by masking BTH octet 4, if that octet is 0.
    mask_change: u32,
}

impl IdSolver {
    /// Lengths kept. A packet's length is a multiple of four, so 16 neighbours do not displace each other.
    const ENTRIES: usize = 16;

    /// Creates an empty cache.
    pub const fn new() -> Self {
        // No packet has this length, so the entry matches none.
        let none = Entry { transport_len: usize::MAX, products: [[0; 16]; 8], mask_change: 0 };
        Self { entries: [none; Self::ENTRIES] }
    }

    /// As [`solve_id`].
    pub fn solve(&mut self, difference: u32, transport_len: usize) -> Option<u16> {
        id_of(lookup(&self.entry(transport_len)?.products, difference))
    }

    /// The change of the CRC by masking BTH octet 4, if that octet is 0.
    pub(super) fn mask_change(&mut self, transport_len: usize) -> Option<u32> {
        self.entry(transport_len).map(|entry| entry.mask_change)
    }

    fn entry(&mut self, transport_len: usize) -> Option<&Entry> {
        let entry = self.entries.get_mut(transport_len / 4 % Self::ENTRIES)?;
        if entry.transport_len != transport_len {
            *entry = Entry::new(transport_len);
        }
        Some(entry)
    }
}

impl Default for IdSolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Entry {
    fn new(transport_len: usize) -> Self {
        // The octet enters the register 8 bits before those after it.
        let from_ecn = transport_len.saturating_sub(BTH_ECN + ICRC_LEN);
        let mask_change = times(0xff, power(&POWERS, from_ecn));
        Self { transport_len, products: products(factor(transport_len)), mask_change }
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
            link: Default::default(),
        }
    }

    #[test]
    fn inverse_times_power_is_one() {
        let mut expected = ONE;
        for octets in 0..if cfg!(miri) { 100 } else { 5000 } {
            assert_eq!(power(&POWERS, octets), expected, "{octets}");
            assert_eq!(times(expected, power(&INVERSE_POWERS, octets)), ONE, "{octets}");
            (0..8).for_each(|_| expected = times_x(expected));
        }
        assert_eq!(over_x(times_x(0x1234_5678)), 0x1234_5678);
    }

    #[test]
    fn every_id_is_found() {
        let packet = [0x5a; 1024 + 24];
        let mut solver = IdSolver::new();
        for len in (16..1048).step_by(if cfg!(miri) { 172 } else { 4 }).chain([1048]) {
            let packet = &packet[..len];
            let zero = icrc::compute(&flow(), 0, packet);
            for id in [0, 1, 2, 0xff, 0x100, 0x1234, 0x8000, 0xffff] {
                let difference = icrc::compute(&flow(), id, packet) ^ zero;
                assert_eq!(solve_id(difference, len), Some(id), "{len}");
                assert_eq!(solver.solve(difference, len), Some(id), "{len}");
            }
        }
        let zero = icrc::compute(&flow(), 0, &packet);
        for id in (0..=u16::MAX).step_by(if cfg!(miri) { 8191 } else { 1 }) {
            let difference = icrc::compute(&flow(), id, &packet) ^ zero;
            assert_eq!(solver.solve(difference, packet.len()), Some(id));
        }
    }

    #[test]
    fn solver_agrees_with_plain_arithmetic() {
        let mut solver = IdSolver::new();
        let mut random = 1u64;
        for _ in 0..if cfg!(miri) { 30 } else { 20_000 } {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (difference, len) = ((random >> 32) as u32, (random >> 20 & 0x3ff) as usize * 4);
            assert_eq!(solver.solve(difference, len), solve_id(difference, len));
        }
    }
}
