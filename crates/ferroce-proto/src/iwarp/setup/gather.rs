//! Collects a set-up frame from pieces of the stream, and writes one.

use alloc::vec::Vec;

use ferroce_wire::iwarp::mpa::{self, Parsed, SetupError, SetupFrame, SetupKind};

/// The octets of one frame, at most [`mpa::MAX_LEN`].
#[derive(Debug)]
pub(super) struct Gather {
    kind: SetupKind,
    octets: Vec<u8>,
}

impl Gather {
    pub(super) const fn new(kind: SetupKind) -> Self {
        Self { kind, octets: Vec::new() }
    }

    /// Takes the octets that belong to the frame. Returns the frame, once it is whole, and the octets behind
    /// it.
    pub(super) fn take<'a>(
        &mut self,
        mut input: &'a [u8],
    ) -> Result<Option<(SetupFrame<'_>, &'a [u8])>, SetupError> {
        // The header tells the length of the frame, so two rounds complete one.
        while let Parsed::NeedMore(need) = mpa::parse(self.kind, &self.octets)? {
            let missing = need.saturating_sub(self.octets.len());
            let (taken, rest) = input.split_at_checked(missing).unwrap_or((input, &[]));
            if taken.is_empty() {
                return Ok(None);
            }
            self.octets.extend_from_slice(taken);
            input = rest;
        }
        match mpa::parse(self.kind, &self.octets)? {
            Parsed::Done(frame, _) => Ok(Some((frame, input))),
            Parsed::NeedMore(_) => Ok(None),
        }
    }
}

/// The octets of a frame. Our own frames keep the bounds of the format.
pub(super) fn emitted(frame: &SetupFrame<'_>) -> Vec<u8> {
    let mut octets = alloc::vec![0; frame.frame_len()];
    let written = frame.emit(&mut octets);
    debug_assert_eq!(written, Ok(octets.len()), "{frame:?}");
    octets
}
