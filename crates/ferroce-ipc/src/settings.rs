//! An administrator's settings for a device, and their effect on a packet.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ferroce_wire::{Gid, PathMtu};

use crate::datapath::{Datapath, XdpPorts};
use crate::gid::GidType;
use crate::kind::LinkKind;
use crate::words::words;

/// Settings of one device. The default applies to a device without settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Which entries its GID table has.
    pub roce_mode: RoceMode,
    /// Which of its GIDs connection management takes for an address; see [`LinkSettings::cm_type`].
    pub cm_mode: Option<GidType>,
    /// Type of service of connections whose program sets none: 0 to 255.
    pub cm_tos: u8,
    /// Traffic class of all packets whatever programs say, before every rule.
    pub tclass: Option<u8>,
    /// Hop limit of all packets whatever programs say: 1 to 255.
    pub ttl: Option<u8>,
    /// Traffic classes by addresses; no two have the same pair of prefixes.
    pub rules: Vec<TcRule>,
    /// RoCE: whether the ICRC of what arrives is checked; it is always sent. iWARP: whether our end asks for
    /// the CRC of MPA, which then both ends send and check (RFC 5044 7.1).
    pub crc: bool,
    /// Whether its queue pairs adapt to the network. If not, CNPs and queues on the way do not slow them
    /// down, and their packets ask for no marks. A loss slows them down in any case.
    pub congestion: bool,
    /// Whether it speaks RoCE at all: without, its GID table is empty.
    pub roce: bool,
    /// Largest path MTU of its port, whatever the interface would carry.
    pub mtu: Option<PathMtu>,
    /// The way that its packets take, if that is possible; [`DatapathState`](crate::DatapathState) says which
    /// one it is.
    pub datapath: Datapath,
    /// Which AF_XDP sockets programs get.
    pub xdp_ports: XdpPorts,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            roce_mode: RoceMode::V2,
            cm_mode: None,
            cm_tos: 0,
            tclass: None,
            ttl: None,
            rules: Vec::new(),
            crc: true,
            congestion: true,
            roce: true,
            mtu: None,
            datapath: Datapath::default(),
            xdp_ports: XdpPorts::default(),
        }
    }
}

impl LinkSettings {
    /// Rules of one device.
    pub const MOST_RULES: usize = 64;

    /// The RoCE version of connections: the one asked for where there are such GIDs, else v2 before v1.
    pub fn cm_type(&self) -> GidType {
        match (self.roce_mode, self.cm_mode) {
            (RoceMode::V1, _) | (RoceMode::Both, Some(GidType::RoceV1)) => GidType::RoceV1,
            _ => GidType::RoceV2,
        }
    }

    /// Returns the traffic class of packets from `source` to `destination` for which the program requested
    /// `own`. A class set for the device takes precedence. Otherwise, of the rules that match both addresses,
    /// the rule with the longest destination prefix applies, and among those the rule with the longest source
    /// prefix.
    pub fn traffic_class(&self, source: IpAddr, destination: IpAddr, own: u8) -> u8 {
        let matching =
            |rule: &&TcRule| rule.source.contains(source) && rule.destination.contains(destination);
        let best = || self.rules.iter().filter(matching).max_by_key(|rule| rule.precedence());
        self.tclass.or_else(|| best().map(|rule| rule.tclass)).unwrap_or(own)
    }

    /// The hop limit of packets for which the program asked for `own`.
    pub fn hop_limit(&self, own: u8) -> u8 {
        self.ttl.unwrap_or(own)
    }

    /// Returns the settings with one change.
    ///
    /// # Errors
    /// A sentence why not.
    pub fn with(&self, setting: &Setting) -> Result<Self, String> {
        let mut new = self.clone();
        match *setting {
            Setting::RoceMode(mode) => new.roce_mode = mode,
            Setting::CmMode(mode) => {
                new.cm_mode = Some(mode);
                if new.cm_type() != mode {
                    let missing = if mode == GidType::RoceV1 { "v1" } else { "v2" };
                    return Err(format!("it has no RoCE {missing} GIDs; roce-mode both makes them"));
                }
            }
            Setting::CmTos(tos) => new.cm_tos = tos,
            Setting::Tclass(tclass) => new.tclass = tclass,
            Setting::Ttl(Some(0)) => return Err("a hop limit is 1 to 255".to_owned()),
            Setting::Ttl(ttl) => new.ttl = ttl,
            Setting::Rule(rule) => {
                match new.rules.iter_mut().find(|old| old.matches_as(&rule)) {
                    Some(old) => old.tclass = rule.tclass,
                    None => new.rules.push(rule),
                }
                // In the order of precedence, which does not depend on that of insertion.
                new.rules.sort_by_key(|rule| {
                    std::cmp::Reverse((rule.precedence(), rule.source, rule.destination))
                });
                if new.rules.len() > Self::MOST_RULES {
                    return Err(format!("it has {} rules, the most there can be", Self::MOST_RULES));
                }
            }
            Setting::NoRule { source, destination } => {
                let gone = TcRule { tclass: 0, source, destination };
                let before = new.rules.len();
                new.rules.retain(|rule| !rule.matches_as(&gone));
                if new.rules.len() == before {
                    return Err(format!("it has no rule for src={source} dst={destination}"));
                }
            }
            Setting::Crc(check) => new.crc = check,
            Setting::Congestion(on) => new.congestion = on,
            Setting::Roce(on) => new.roce = on,
            Setting::Mtu(mtu) => new.mtu = mtu,
            Setting::Datapath(datapath) => new.datapath = datapath,
            Setting::XdpPorts(ports) => new.xdp_ports = ports,
            Setting::Unknown(kind) => return Err(format!("this ferroced does not know setting {kind}")),
        }
        Ok(new)
    }
}

/// A change of [`LinkSettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`LinkSettings::roce_mode`].
    RoceMode(RoceMode),
    /// [`LinkSettings::cm_mode`].
    CmMode(GidType),
    /// [`LinkSettings::cm_tos`].
    CmTos(u8),
    /// [`LinkSettings::tclass`].
    Tclass(Option<u8>),
    /// [`LinkSettings::ttl`].
    Ttl(Option<u8>),
    /// A rule, in place of one for the same prefixes.
    Rule(TcRule),
    /// No rule for these prefixes any more.
    NoRule {
        /// [`TcRule::source`].
        source: Prefix,
        /// [`TcRule::destination`].
        destination: Prefix,
    },
    /// [`LinkSettings::crc`].
    Crc(bool),
    /// [`LinkSettings::congestion`].
    Congestion(bool),
    /// [`LinkSettings::roce`].
    Roce(bool),
    /// [`LinkSettings::mtu`].
    Mtu(Option<PathMtu>),
    /// [`LinkSettings::datapath`].
    Datapath(Datapath),
    /// [`LinkSettings::xdp_ports`].
    XdpPorts(XdpPorts),
    /// A setting that only a newer build knows, by its number.
    Unknown(u8),
}

impl Setting {
    /// Returns whether the setting means something on a device of this kind. On iWARP only [`Setting::Crc`]
    /// does: it says whether our end asks for the CRC of MPA (RFC 5044 4.4), which is on by default because
    /// the checksum of TCP is weak.
    ///
    /// # Errors
    /// A sentence that says what means nothing.
    pub fn applies_to(&self, kind: LinkKind) -> Result<(), String> {
        let word = match self {
            _ if kind == LinkKind::Rxe => return Ok(()),
            Self::Crc(_) | Self::Unknown(_) => return Ok(()),
            Self::RoceMode(_) => "roce-mode",
            Self::CmMode(_) => "cm-mode",
            Self::CmTos(_) => "cm-tos",
            Self::Tclass(_) => "tclass",
            Self::Ttl(_) => "ttl",
            Self::Rule(_) | Self::NoRule { .. } => "tc",
            Self::Congestion(_) => "congestion",
            Self::Roce(_) => "roce",
            Self::Mtu(_) => "mtu",
            Self::Datapath(_) => "datapath",
            Self::XdpPorts(_) => "xdp-ports",
        };
        Err(format!("{word} means nothing on an iWARP link; only crc can be set there"))
    }
}

/// Which entries a GID table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RoceMode {
    /// RoCE v1 alone.
    V1 = 1,
    /// RoCE v2 alone.
    V2 = 2,
    /// Two for each address: v2, then v1.
    Both = 3,
}

impl RoceMode {
    /// The types of each address's entries, in their order in the table.
    pub const fn types(self) -> &'static [GidType] {
        match self {
            Self::V1 => &[GidType::RoceV1],
            Self::V2 => &[GidType::RoceV2],
            Self::Both => &[GidType::RoceV2, GidType::RoceV1],
        }
    }
}

words! {
    RoceMode {
        V1 => "v1",
        V2 => "v2",
        Both => "both",
    }
}

/// A traffic class for packets between addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcRule {
    /// The traffic class: DSCP times 4.
    pub tclass: u8,
    /// Local addresses it is for.
    pub source: Prefix,
    /// Addresses of peers.
    pub destination: Prefix,
}

impl TcRule {
    /// Precedence of the rule: if two rules match, the rule with the greater precedence counts.
    fn precedence(&self) -> (u8, u8) {
        (self.destination.length, self.source.length)
    }

    fn matches_as(&self, other: &Self) -> bool {
        (self.source, self.destination) == (other.source, other.destination)
    }
}

/// A range of addresses. IPv4 addresses are in their IPv4-mapped form, so that both families are compared
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    bits: u128,
    /// Bits that count: 0 to 128, an IPv4 prefix's own and 96.
    length: u8,
}

impl Prefix {
    /// All addresses of both families.
    pub const ANY: Self = Self { bits: 0, length: 0 };

    /// The first `length` bits of an address.
    ///
    /// # Errors
    /// [`BadPrefix`] if the address has fewer bits.
    pub fn new(ip: IpAddr, length: u8) -> Result<Self, BadPrefix> {
        let (family, offset) = if ip.is_ipv4() { (32, 96) } else { (128, 0) };
        if length > family {
            return Err(BadPrefix);
        }
        Self::of_gid(Gid::from_ip(ip), length + offset).ok_or(BadPrefix)
    }

    /// The first `length` bits of a GID, 128 at most.
    pub fn of_gid(gid: Gid, length: u8) -> Option<Self> {
        (length <= 128).then(|| Self { bits: u128::from_be_bytes(gid.0) & mask(length), length })
    }

    /// The GID of its first address, and its length.
    pub fn gid(self) -> (Gid, u8) {
        (Gid(self.bits.to_be_bytes()), self.length)
    }

    /// Whether an address is in it. No IPv4 address is in a prefix of IPv6 ones.
    pub fn contains(self, ip: IpAddr) -> bool {
        let other_family = ip.is_ipv4() && (1..96).contains(&self.length);
        !other_family && u128::from_be_bytes(Gid::from_ip(ip).0) & mask(self.length) == self.bits
    }
}

/// `length` bits set from the top.
const fn mask(length: u8) -> u128 {
    match u128::MAX.checked_shl(128 - length as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

/// A text that is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address, nor one with a mask as 10.1.0.0/16")]
pub struct BadPrefix;

/// `10.1.0.0/16`, `2001:db8::/32`, an address alone, or `any`. IPv4 masks may be written `/255.255.0.0`. Bits
/// beyond the mask do not count.
impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        if text == "any" {
            return Ok(Self::ANY);
        }
        let (ip, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
        let ip: IpAddr = ip.parse().map_err(|_| BadPrefix)?;
        let length = match length {
            None => {
                if ip.is_ipv4() {
                    32
                } else {
                    128
                }
            }
            Some(dotted) if dotted.contains('.') => {
                let mask = u32::from(dotted.parse::<std::net::Ipv4Addr>().map_err(|_| BadPrefix)?);
                if ip.is_ipv6() || mask.leading_ones() + mask.trailing_zeros() < 32 {
                    return Err(BadPrefix);
                }
                mask.leading_ones() as u8
            }
            Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map_err(|_| BadPrefix)?
            }
            Some(_) => return Err(BadPrefix),
        };
        Self::new(ip, length)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ANY {
            return f.write_str("any");
        }
        match (Gid(self.bits.to_be_bytes()).to_ip(), self.length) {
            (ip @ IpAddr::V4(_), length) if length >= 96 => write!(f, "{ip}/{}", length - 96),
            (IpAddr::V4(ip), length) => write!(f, "{}/{length}", ip.to_ipv6_mapped()),
            (ip, length) => write!(f, "{ip}/{length}"),
        }
    }
}

#[cfg(test)]
mod tests;
