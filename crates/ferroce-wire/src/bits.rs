//! Fields in their order on the wire: one description of a message reads it and writes it.

/// Octets that are read or written from the first bit to the last. Each method takes the value of a field and
/// returns the one on the wire: while reading the value that is there, while writing the given one without
/// the bits for which the field has no room. What lies behind the octets reads as 0.
pub(crate) struct Bits<'b> {
    octets: &'b mut [u8],
    at: usize,
    writes: bool,
}

/// A message or header that can be described by its fields.
pub(crate) trait Fields: Sized {
    /// Passes all fields, in their order on the wire. Fields that the octets do not have keep their values.
    fn pass(&self, io: &mut Bits<'_>) -> Self;

    /// Reads the message from a copy of the octets.
    fn read<const N: usize>(&self, mut octets: [u8; N]) -> Self {
        self.pass(&mut Bits::reading(&mut octets))
    }

    /// Writes the message. Reserved bits are 0.
    fn write<const N: usize>(&self) -> [u8; N] {
        let mut octets = [0; N];
        self.pass(&mut Bits::writing(&mut octets));
        octets
    }
}

impl<'b> Bits<'b> {
    pub(crate) const fn reading(octets: &'b mut [u8]) -> Self {
        Self { octets, at: 0, writes: false }
    }

    /// The octets are zeros.
    pub(crate) const fn writing(octets: &'b mut [u8]) -> Self {
        Self { octets, at: 0, writes: true }
    }

    fn bits(&mut self, width: usize, value: u64) -> u64 {
        let (mut left, mut read) = (width, 0);
        while left > 0 {
            let Some(octet) = self.octets.get_mut(self.at / 8) else { return 0 };
            let free = 8 - self.at % 8;
            let taken = left.min(free);
            let (shift, mask) = (free - taken, 0xff >> (8 - taken));
            left -= taken;
            self.at += taken;
            if self.writes {
                *octet |= ((value >> left) as u8 & mask) << shift;
            }
            read = read << taken | u64::from(*octet >> shift & mask);
        }
        read
    }

    /// Passes reserved bits.
    pub(crate) const fn skip(&mut self, width: usize) -> &mut Self {
        self.at += width;
        self
    }

    pub(crate) fn flag(&mut self, value: bool) -> bool {
        self.bits(1, value.into()) != 0
    }

    /// A number of at most 8 bits.
    pub(crate) fn u8(&mut self, width: usize, value: u8) -> u8 {
        self.bits(width, value.into()) as u8
    }

    /// A number of at most 16 bits.
    pub(crate) fn u16(&mut self, width: usize, value: u16) -> u16 {
        self.bits(width, value.into()) as u16
    }

    /// A number of at most 32 bits.
    pub(crate) fn u32(&mut self, width: usize, value: u32) -> u32 {
        self.bits(width, value.into()) as u32
    }

    pub(crate) fn u64(&mut self, value: u64) -> u64 {
        self.bits(64, value)
    }

    /// Whole octets, at the beginning of an octet.
    pub(crate) fn octets<const N: usize>(&mut self, value: [u8; N]) -> [u8; N] {
        let here = self.octets.get_mut(self.at / 8..).and_then(|rest| rest.first_chunk_mut());
        let Some(here) = here else { return [0; N] };
        self.at += 8 * N;
        if self.writes {
            *here = value;
        }
        *here
    }
}
