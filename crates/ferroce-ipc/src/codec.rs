//! Codec for the little-endian fields of a message. The reader checks every length.

/// Reasons why the bytes of a message are invalid. The receiver closes the connection, except for
/// [`MessageError::UnknownKind`], which a newer peer may send and which the receiver ignores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The packet ends inside a field.
    #[error("the message ends after {have} bytes, a field needs {need}")]
    Truncated {
        /// Bytes in the packet.
        have: usize,
        /// Bytes up to the end of the field.
        need: usize,
    },
    /// The length field and the packet disagree, or the packet did not fit the receiver's buffer.
    #[error("the message says {said} bytes, {got} came")]
    Length {
        /// Length field of the header.
        said: usize,
        /// Length of the packet.
        got: usize,
    },
    /// The number of descriptors differs from the header's, or from the number that this kind of message
    /// carries.
    #[error("{got} descriptors came with the message, {want} belong to it")]
    Descriptors {
        /// Expected number of descriptors.
        want: usize,
        /// Received number of descriptors.
        got: usize,
    },
    /// A number is outside its enum or range.
    #[error("field {field} has the value {value}")]
    Value { field: &'static str, value: u64 },
    /// A text is empty, too long, not UTF-8 or not printable.
    #[error("field {field} is not a text")]
    Text { field: &'static str },
    /// This build does not know the kind of message and ignores it.
    #[error("unknown message kind {0}")]
    UnknownKind(u16),
    /// A field does not fit into one message: this is a bug of the sender.
    #[error("{field} does not fit one message")]
    TooLong { field: &'static str },
}

/// Reads fields in order.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A field that an older minor version does not send: `None` at the end of the fixed part.
    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Option<T>, MessageError> {
        if self.at == self.bytes.len() { Ok(None) } else { read(self).map(Some) }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let end = self.at.saturating_add(count);
        let found = self
            .bytes
            .get(self.at..end)
            .ok_or(MessageError::Truncated { have: self.bytes.len(), need: end })?;
        self.at = end;
        Ok(found)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, MessageError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, MessageError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MessageError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a byte that must be 0 or 1.
    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, MessageError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(MessageError::Value { field, value: other.into() }),
        }
    }

    /// Reads a byte that must be the number of an enum's variant.
    pub(crate) fn enumeration<T>(
        &mut self,
        field: &'static str,
        from: impl FnOnce(u8) -> Option<T>,
    ) -> Result<T, MessageError> {
        let value = self.u8()?;
        from(value).ok_or(MessageError::Value { field, value: value.into() })
    }

    /// Reads a text from a field of `N` bytes that the sender padded with zeros.
    pub(crate) fn padded<const N: usize>(&mut self, field: &'static str) -> Result<String, MessageError> {
        let bytes = self.take(N)?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(N);
        let (head, tail) = bytes.split_at_checked(end).ok_or(MessageError::Text { field })?;
        if tail.iter().any(|&b| b != 0) {
            return Err(MessageError::Text { field });
        }
        printable(field, head)
    }

    /// Reads `count` bytes of text.
    pub(crate) fn text(&mut self, field: &'static str, count: usize) -> Result<String, MessageError> {
        printable(field, self.take(count)?)
    }

    /// Reads the rows of a table. A row has `stride` bytes, of which a newer peer may fill more than this
    /// build reads.
    pub(crate) fn rows<T>(
        &mut self,
        table: Table,
        mut row: impl FnMut(&mut Reader<'a>) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        // The packet must contain the whole table before the reader allocates memory for it.
        let bytes = self.take(usize::from(table.count) * usize::from(table.stride))?;
        if table.count > 0 && table.stride == 0 {
            return Err(MessageError::Value { field: "stride", value: 0 });
        }
        bytes
            .chunks_exact(usize::from(table.stride).max(1))
            .map(|chunk| row(&mut Reader::new(chunk)))
            .collect()
    }
}

fn printable(field: &'static str, bytes: &[u8]) -> Result<String, MessageError> {
    let text = std::str::from_utf8(bytes).map_err(|_| MessageError::Text { field })?;
    if text.chars().any(|c| c.is_control()) {
        return Err(MessageError::Text { field });
    }
    Ok(text.to_owned())
}

/// As many whole characters of `text` as fit `limit` bytes.
pub(crate) fn clipped(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.get(..end).unwrap_or("")
}

/// Dimensions of a table that follows the fixed part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) count: u16,
    pub(crate) stride: u16,
}

impl Table {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self { count: reader.u16()?, stride: reader.u16()? })
    }
}

/// Appends fields in order.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn padded<const N: usize>(
        &mut self,
        field: &'static str,
        text: &str,
    ) -> Result<(), MessageError> {
        let fill = N.checked_sub(text.len()).ok_or(MessageError::TooLong { field })?;
        self.bytes(text.as_bytes());
        self.0.resize(self.0.len() + fill, 0);
        Ok(())
    }

    pub(crate) fn table(
        &mut self,
        field: &'static str,
        count: usize,
        stride: u16,
    ) -> Result<(), MessageError> {
        self.u16(u16::try_from(count).map_err(|_| MessageError::TooLong { field })?);
        self.u16(stride);
        Ok(())
    }
}
