//! Rules that select frames.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Destination and source address, and the EtherType behind the last VLAN tag: 14 octets.
    Ethernet,
    /// Tag control information of the last VLAN tag: 2 octets.
    Vlan,
    /// IPv4 header without options: 20 octets.
    Ipv4,
    /// IPv6 header: 40 octets.
    Ipv6,
    /// The first 4 octets of a TCP header, directly behind IP: source and destination port.
    Tcp,
    /// As [`Layer::Tcp`], of UDP.
    Udp,
}

/// Required bits of a header: each bit set in the mask must equal that of the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    layer: Layer,
    value: [u8; Self::ROOM],
    mask: [u8; Self::ROOM],
}

/// Selects frames that match all patterns; without patterns, all frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    patterns: Vec<Pattern>,
    groups_only: bool,
    /// Selects leaving frames, too.
    outgoing: bool,
}

impl Layer {
    /// Octets of the header that can be matched.
    pub const fn octets(self) -> usize {
        match self {
            Self::Ethernet => 14,
            Self::Vlan => 2,
            Self::Ipv4 => 20,
            Self::Ipv6 => 40,
            Self::Tcp | Self::Udp => 4,
        }
    }
}

impl Pattern {
    const ROOM: usize = 40;

    /// Requires the header, with any content.
    pub const fn new(layer: Layer) -> Self {
        Self { layer, value: [0; Self::ROOM], mask: [0; Self::ROOM] }
    }

    /// Requires `value` at octet `offset` in the bits of `mask`, which has the same length. Octets beyond the
    /// header never match.
    #[must_use]
    pub fn at(mut self, offset: usize, value: &[u8], mask: &[u8]) -> Self {
        for (i, (value, mask)) in value.iter().zip(mask).enumerate() {
            if let (Some(v), Some(m)) = (self.value.get_mut(offset + i), self.mask.get_mut(offset + i)) {
                (*v, *m) = (*value & mask, *mask);
            }
        }
        self
    }

    fn fits(&self, header: &[u8]) -> bool {
        let wanted = self.value.iter().zip(&self.mask);
        let mut have = header.iter().copied();
        wanted
            .take(self.layer.octets())
            .all(|(value, mask)| have.next().is_some_and(|have| have & mask == *value))
    }

    /// The destination address that the pattern requires, if it is a single address.
    fn destination(&self) -> Option<[u8; 6]> {
        let ([value @ .., _, _, _, _, _, _, _, _], [mask @ .., _, _, _, _, _, _, _, _]) =
            (self.value.first_chunk::<14>()?, self.mask.first_chunk::<14>()?);
        (self.layer == Layer::Ethernet && *mask == [0xff; 6]).then_some(*value)
    }
}

impl Rule {
    /// Arriving frames that match all `patterns`.
    pub const fn arriving(patterns: Vec<Pattern>) -> Self {
        Self { patterns, groups_only: false, outgoing: false }
    }

    /// All arriving frames; with `groups_only` those to multicast addresses, broadcast included.
    pub const fn all(groups_only: bool) -> Self {
        Self { patterns: Vec::new(), groups_only, outgoing: false }
    }

    /// All arriving and leaving frames.
    pub const fn sniffer() -> Self {
        Self { patterns: Vec::new(), groups_only: false, outgoing: true }
    }

    pub const fn includes_outgoing(&self) -> bool {
        self.outgoing
    }

    /// The addresses that the interface must accept for this rule: `Some(None)` all, `None` only its own.
    pub fn required_address(&self) -> Option<Option<[u8; 6]>> {
        if self.patterns.is_empty() {
            return Some(None);
        }
        self.patterns.iter().find_map(Pattern::destination).map(Some)
    }

    pub fn matches(&self, frame: &[u8], outgoing: bool) -> bool {
        if outgoing && !self.outgoing {
            return false;
        }
        let Some(headers) = Headers::of(frame) else { return false };
        if self.groups_only && headers.ethernet[0] & 1 == 0 {
            return false;
        }
        self.patterns
            .iter()
            .all(|pattern| headers.get(pattern.layer).is_some_and(|header| pattern.fits(header)))
    }
}

/// The complete headers of a frame.
struct Headers<'a> {
    ethernet: [u8; 14],
    vlan: Option<&'a [u8]>,
    ip: Option<(Layer, &'a [u8])>,
    transport: Option<(Layer, &'a [u8])>,
}

impl<'a> Headers<'a> {
    fn of(frame: &'a [u8]) -> Option<Self> {
        let (addresses, mut rest) = frame.split_at_checked(12)?;
        let mut ethertype: [u8; 2] = *take(&mut rest)?;
        let mut vlan = None;
        while matches!(ethertype, [0x81, 0x00] | [0x88, 0xa8]) {
            let [tci @ .., a, b] = take::<4>(&mut rest)?;
            (vlan, ethertype) = (Some(tci.as_slice()), [*a, *b]);
        }
        let mut ethernet = [0; 14];
        ethernet[..12].copy_from_slice(addresses);
        ethernet[12..].copy_from_slice(&ethertype);
        let (ip, transport) = match ethertype {
            [0x08, 0x00] => ipv4(rest),
            [0x86, 0xdd] => ipv6(rest),
            _ => (None, None),
        };
        Some(Self { ethernet, vlan, ip, transport })
    }

    fn get(&self, layer: Layer) -> Option<&[u8]> {
        let of =
            |found: Option<(Layer, &'a [u8])>| found.filter(|(is, _)| *is == layer).map(|(_, bytes)| bytes);
        match layer {
            Layer::Ethernet => Some(&self.ethernet),
            Layer::Vlan => self.vlan,
            Layer::Ipv4 | Layer::Ipv6 => of(self.ip),
            Layer::Tcp | Layer::Udp => of(self.transport),
        }
    }
}

type Found<'a> = Option<(Layer, &'a [u8])>;

fn ipv4(bytes: &[u8]) -> (Found<'_>, Found<'_>) {
    let Some(header) = bytes.first_chunk::<20>().filter(|header| header[0] >> 4 == 4) else {
        return (None, None);
    };
    // Only the first fragment has the ports.
    let first = header[6] & 0x1f == 0 && header[7] == 0;
    let rest = bytes.get(usize::from(header[0] & 0xf).max(5) * 4..).filter(|_| first);
    (Some((Layer::Ipv4, header)), rest.and_then(|rest| ports(header[9], rest)))
}

fn ipv6(bytes: &[u8]) -> (Found<'_>, Found<'_>) {
    let Some(header) = bytes.first_chunk::<40>().filter(|header| header[0] >> 4 == 6) else {
        return (None, None);
    };
    (Some((Layer::Ipv6, header)), ports(header[6], &bytes[40..]))
}

fn ports(protocol: u8, rest: &[u8]) -> Found<'_> {
    let layer = match protocol {
        6 => Layer::Tcp,
        17 => Layer::Udp,
        _ => return None,
    };
    Some((layer, rest.get(..layer.octets())?))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(first)
}

#[cfg(test)]
mod tests;
