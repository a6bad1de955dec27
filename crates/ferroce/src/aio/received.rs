//! Received messages.

use std::ops::Deref;

use super::Buffer;
use crate::Imm;

/// A received message. It derefs to the message's octets.
#[derive(Debug)]
pub struct Received {
    buffer: Buffer,
    len: usize,
    imm: Option<Imm>,
}

impl Received {
    pub(super) fn new(buffer: Buffer, len: u32, imm: Option<Imm>) -> Self {
        Self { buffer, len: len as usize, imm }
    }

    /// The immediate data of the message. The peer's WRITE with immediate data is a message without octets.
    pub fn imm(&self) -> Option<Imm> {
        self.imm
    }

    /// Returns the buffer of the message, for [`Endpoint::post_recv`](super::Endpoint::post_recv) or
    /// [`Endpoint::send`](super::Endpoint::send).
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}
