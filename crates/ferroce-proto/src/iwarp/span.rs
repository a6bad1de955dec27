//! Registered memory that payload of a stream leaves from, or arrives in, without a copy by the queue pair.

use alloc::vec::Vec;

use ferroce_wire::Rkey;

use crate::{Domain, Sge};

/// Registered memory, as a work request or the peer names it. The caller checks key, domain, permission and
/// range when it uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    /// Memory of a work request of this end; of this protection domain, if that is not the queue pair's.
    Local(Sge, Option<Domain>),
    /// Memory that the peer names.
    Remote {
        /// The peer's key for it.
        rkey: Rkey,
        /// Address of the first octet, in the key's address space.
        addr: u64,
        /// Octets, never 0.
        length: u32,
    },
}

impl Span {
    /// Octets, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a span is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Local(Sge { length, .. }, _) | Self::Remote { length, .. } => *length as usize,
        }
    }
}

/// The octets that a stream is to receive next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// The place of the first of them. They may be received there, and [`crate::QueuePair::stream_placed`]
    /// told; or they may be given to [`crate::QueuePair::handle_stream`] as all others.
    pub memory: Option<Span>,
    /// The most octets to receive behind those of `memory`: further ones probably belong into memory too.
    /// `None`: as many as there are.
    pub most: Option<usize>,
}

/// Payload that leaves from registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    pub(crate) at: usize,
    pub(crate) fpdu: usize,
    pub(crate) span: Span,
    pub(crate) source: Source,
}

/// The reason for which payload leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The request of this index in the send queue; whether its first segment has the payload.
    Request { index: u64, begins: bool },
    /// A read of the peer's.
    Reply,
}

impl Payload {
    /// The number of octets of the buffer that leave before it.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The number of octets of the buffer that leave before its FPDU.
    pub const fn fpdu(&self) -> usize {
        self.fpdu
    }

    /// The memory that the payload belongs to.
    pub const fn span(&self) -> &Span {
        &self.span
    }
}

/// The payload that leaves with a buffer of other octets, in order.
#[derive(Debug)]
pub struct Payloads {
    list: Vec<Payload>,
    octets: usize,
}

impl Payloads {
    /// The most of them.
    pub const MAX: usize = 8;

    /// None; room for all.
    pub fn new() -> Self {
        Self { list: Vec::with_capacity(Self::MAX), octets: 0 }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.octets = 0;
    }

    /// All of them, in order.
    pub fn as_slice(&self) -> &[Payload] {
        &self.list
    }

    /// The sum of their octets.
    pub const fn octets(&self) -> usize {
        self.octets
    }

    /// Adds `spans`, if they have the given number of octets together and the list has room for them. Returns
    /// whether they were added.
    pub(crate) fn add(
        &mut self,
        (fpdu, at): (usize, usize),
        source: Source,
        spans: impl Iterator<Item = Span>,
        octets: usize,
    ) -> bool {
        let (before, mut left) = (self.list.len(), octets);
        for span in spans {
            if self.list.len() == Self::MAX || span.len() > left {
                break;
            }
            left -= span.len();
            self.list.push(Payload { at, fpdu, span, source });
        }
        if left > 0 {
            self.list.truncate(before);
            return false;
        }
        self.octets += octets;
        true
    }
}

impl Default for Payloads {
    fn default() -> Self {
        Self::new()
    }
}
