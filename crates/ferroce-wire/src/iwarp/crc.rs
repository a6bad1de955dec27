//! CRC32c, octet by octet. Replaced.
/// The CRC of a FPDU.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(u32);
impl Default for Crc32c { fn default() -> Self { Self::new() } }
impl Crc32c {
    /// Of nothing.
    pub const fn new() -> Self { Self(!0) }
    /// Goes on.
    pub fn update(&mut self, octets: &[u8]) {
        for octet in octets {
            self.0 ^= u32::from(*octet);
            for _ in 0..8 { self.0 = if self.0 & 1 != 0 { self.0 >> 1 ^ 0x82F6_3B78 } else { self.0 >> 1 }; }
        }
    }
    /// Copies and goes on.
    pub fn copy(&mut self, from: &[u8], to: &mut [u8]) { to.copy_from_slice(from); self.update(from); }
    /// In wire order.
    pub const fn octets(self) -> [u8; 4] { (!self.0).to_le_bytes() }
}
