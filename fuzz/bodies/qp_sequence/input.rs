// Numbers, keys, addresses and lists for `qp_sequence`, from the octets of one input.

use ferroce_proto::Sge;
use ferroce_wire::Lkey;

use super::{BASE, OPEN, SEALED, SIZE, WINDOW};

/// The input, octet by octet; zeros when it is used up.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn bit(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    pub fn key(&mut self) -> u32 {
        match self.byte() % 8 {
            0..5 => OPEN,
            5 => SEALED,
            6 => WINDOW,
            _ => 0xbad,
        }
    }

    pub fn addr(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => u64::from(self.u32()) << 32 | u64::from(self.u32()),
            1 => u64::MAX - u64::from(self.byte()),
            2..5 => BASE + u64::from(self.byte()) * 8,
            _ => BASE + u64::from(self.u16() % SIZE as u16),
        }
    }

    pub fn length(&mut self) -> u32 {
        match self.byte() % 8 {
            0 => 0,
            1 => self.u32(),
            2 => 8,
            3..6 => u32::from(self.byte()),
            _ => u32::from(self.u16() % 6000),
        }
    }

    pub fn sges(&mut self) -> Vec<Sge> {
        (0..self.byte() % 5)
            .map(|_| Sge { addr: self.addr(), length: self.length(), lkey: Lkey::new(self.key()) })
            .collect()
    }
}
