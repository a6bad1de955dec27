//! Which bit of a packet a fault flips.

/// The part of a packet that a corruption changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Any bit between BTH and ICRC.
    Anywhere,
    /// The opcode, BTH octet 0.
    Opcode,
    /// The partition key, BTH octets 2 and 3.
    Pkey,
    /// The destination queue pair, BTH octets 5 to 7.
    DestQp,
    /// The PSN, BTH octets 9 to 11.
    Psn,
    /// The header behind the BTH (RETH, AETH, DETH, …): the first 16 octets there.
    Extension,
    /// The last 8 octets in front of the ICRC, which are payload where there is so much.
    Payload,
    /// The ICRC.
    Icrc,
    /// This bit of this octet, counted from the BTH.
    Bit(u16, u8),
}

/// A flipped bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corruption {
    /// The ICRC is to be computed again after the change.
    pub icrc_ok: bool,
    /// The octet, counted from the BTH.
    pub octet: u16,
    /// The bit, 0 to 7 from the lowest.
    pub bit: u8,
}

impl Place {
    pub(crate) const WORDS: &'static [(&'static str, Self)] = &[
        ("opcode", Self::Opcode),
        ("pkey", Self::Pkey),
        ("destqp", Self::DestQp),
        ("psn", Self::Psn),
        ("ext", Self::Extension),
        ("payload", Self::Payload),
        ("icrc", Self::Icrc),
    ];

    /// The octets of a packet of `len` octets from BTH to ICRC: first and number.
    const fn range(self, len: u32) -> (u32, u32) {
        let body = len.saturating_sub(4);
        match self {
            Self::Anywhere => (0, body),
            Self::Opcode => (0, 1),
            Self::Pkey => (2, 2),
            Self::DestQp => (5, 3),
            Self::Psn => (9, 3),
            Self::Extension => (12, 16),
            Self::Payload => (body.saturating_sub(8), 8),
            Self::Icrc => (body, 4),
            Self::Bit(octet, _) => (octet as u32, 1),
        }
    }

    /// Whether it is a place in an FPDU too.
    pub(crate) const fn is_in_streams(self) -> bool {
        matches!(self, Self::Anywhere | Self::Payload | Self::Bit(..))
    }

    /// Chooses the bit of an FPDU. Without a place of its own it is behind the length field, whose change
    /// would make the peer wait for octets that never come.
    pub(crate) fn choose_in_stream(self, len: u32, noise: u64) -> Corruption {
        const LENGTH: u16 = 2;
        match self {
            Self::Anywhere => {
                let chosen = self.choose(len.saturating_sub(LENGTH.into()), false, noise);
                let last = len.saturating_sub(1).min(0xffff) as u16;
                Corruption { octet: chosen.octet.saturating_add(LENGTH).min(last), ..chosen }
            }
            _ => self.choose(len, false, noise),
        }
    }

    /// Chooses the bit by 64 random bits.
    pub(crate) fn choose(self, len: u32, icrc_ok: bool, noise: u64) -> Corruption {
        let (first, count) = self.range(len);
        let octet = first + ((noise >> 8) % u64::from(count.max(1))) as u32;
        let bit = match self {
            Self::Bit(_, bit) => bit,
            _ => (noise & 7) as u8,
        };
        Corruption { icrc_ok, octet: octet.min(len.saturating_sub(1)).min(0xffff) as u16, bit }
    }
}

impl Corruption {
    /// Flips the bit in a packet from BTH to ICRC; nothing if the packet is shorter. The caller computes the
    /// ICRC again if [`Self::icrc_ok`].
    pub fn apply(&self, packet: &mut [u8]) {
        if let Some(octet) = packet.get_mut(usize::from(self.octet)) {
            *octet ^= 1 << (self.bit & 7);
        }
    }
}
