//! Received messages.

use std::ops::Deref;

use super::Buffer;
use crate::{Completion, Imm, Opcode};

/// A received message. It derefs to the message's octets.
#[derive(Debug)]
pub struct Received {
    buffer: Buffer,
    message: Message,
}

/// The part of a completion that describes a message.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Message {
    /// Octets of the buffer.
    len: usize,
    /// Octets that a WRITE with immediate data wrote elsewhere.
    written: Option<u32>,
    imm: Option<Imm>,
}

impl Message {
    pub(super) fn of(completion: &Completion) -> Self {
        let Completion { opcode, len, imm, .. } = *completion;
        match opcode {
            Opcode::RecvRdmaWithImm => Self { len: 0, written: Some(len), imm },
            _ => Self { len: len as usize, written: None, imm },
        }
    }
}

impl Received {
    pub(super) fn new(buffer: Buffer, message: Message) -> Self {
        Self { buffer, message }
    }

    /// The immediate data of the message. The peer's WRITE with immediate data is a message without octets.
    pub fn imm(&self) -> Option<Imm> {
        self.message.imm
    }

    /// The number of octets that the peer's WRITE with immediate data wrote to remote memory of this process;
    /// `None` for a message of a send.
    pub fn written(&self) -> Option<u32> {
        self.message.written
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
        &self.buffer[..self.message.len]
    }
}
