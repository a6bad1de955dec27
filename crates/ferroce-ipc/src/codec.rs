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

    /// Reads as many bytes as a length of two bytes says.
    pub(crate) fn block(&mut self) -> Result<&'a [u8], MessageError> {
        let length = u16::from_le_bytes(self.array()?);
        self.take(length.into())
    }
}

/// Appends fields in order. A field that cannot be written is an error of the whole message.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    error: Option<MessageError>,
}

impl Writer {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn fail(&mut self, error: MessageError) {
        self.error.get_or_insert(error);
    }

    /// Appends a length or a number of rows, in two bytes.
    pub(crate) fn length(&mut self, field: &'static str, length: usize) {
        match u16::try_from(length) {
            Ok(length) => self.bytes(&length.to_le_bytes()),
            Err(_) => self.fail(MessageError::TooLong { field }),
        }
    }

    /// Appends a length and as many bytes.
    pub(crate) fn block(&mut self, field: &'static str, bytes: &[u8]) {
        self.length(field, bytes.len());
        self.bytes(bytes);
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>, MessageError> {
        self.error.map_or(Ok(self.bytes), Err)
    }
}
