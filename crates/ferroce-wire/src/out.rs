//! Writes headers one after the other.

use zerocopy::{Immutable, IntoBytes};

use crate::WireError;

/// The free rest of the output buffer.
pub(crate) struct Out<'b> {
    rest: &'b mut [u8],
    small: WireError,
}

impl<'b> Out<'b> {
    /// Reserves a buffer for `need` octets; the error names them if the buffer is smaller.
    pub(crate) fn new(rest: &'b mut [u8], need: usize) -> Self {
        Self { small: WireError::BufferTooSmall { need, have: rest.len() }, rest }
    }

    pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, header: &T) -> Result<(), WireError> {
        let bytes = header.as_bytes();
        let (here, rest) =
            core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len()).ok_or(self.small)?;
        here.copy_from_slice(bytes);
        self.rest = rest;
        Ok(())
    }
}
