//! The wire format of iWARP: MPA set-up frames and the CRC of FPDUs.

pub mod crc;
pub mod mpa;
