//! Settings of devices: a few bytes at the end of each device's row, their rules in a table, and changes of
//! them.

use ferroce_wire::{Gid, PathMtu};

use crate::codec::{MessageError, Reader, Writer};
use crate::datapath::{Datapath, XdpPorts};
use crate::gid::GidType;
use crate::settings::{LinkSettings, Prefix, RoceMode, Setting, TcRule};

pub(super) const RULE_ROW: u16 = 40;
pub(super) const SETTING_ROW: u16 = 40;

// Bits of a device's flags.
const TCLASS: u8 = 1;
const TTL: u8 = 2;
const NO_CRC: u8 = 4;
const NO_ROCE: u8 = 8;
const PORTS_DIRECT: u8 = 16;
const PORTS_PAIRS: u8 = 32;
const NO_CONGESTION: u8 = 64;

/// The fixed part: 8 bytes.
pub(super) fn encode(settings: &LinkSettings, w: &mut Writer<'_>) {
    let mut flags = 0;
    for (bit, set) in [
        (TCLASS, settings.tclass.is_some()),
        (TTL, settings.ttl.is_some()),
        (NO_CRC, !settings.crc),
        (NO_ROCE, !settings.roce),
        (NO_CONGESTION, !settings.congestion),
        (PORTS_DIRECT, settings.xdp_ports == XdpPorts::Direct),
        (PORTS_PAIRS, settings.xdp_ports == XdpPorts::Pairs),
    ] {
        flags |= if set { bit } else { 0 };
    }
    w.u8(settings.roce_mode as u8);
    w.u8(settings.cm_mode.map_or(0, |mode| mode as u8));
    w.u8(settings.cm_tos);
    w.u8(flags);
    w.u8(settings.tclass.unwrap_or(0));
    w.u8(settings.ttl.unwrap_or(0));
    w.u8(settings.mtu.map_or(0, |mtu| mtu as u8));
    w.u8(settings.datapath as u8);
}

/// Without rules.
pub(super) fn decode(row: &mut Reader<'_>) -> Result<LinkSettings, MessageError> {
    let mut settings = LinkSettings {
        roce_mode: row.enumeration("roce_mode", RoceMode::from_u8)?,
        cm_mode: match row.u8()? {
            0 => None,
            value => Some(gid_type("cm_mode", value)?),
        },
        cm_tos: row.u8()?,
        ..LinkSettings::default()
    };
    let flags = row.u8()?;
    let (tclass, ttl) = (row.u8()?, row.u8()?);
    settings.tclass = (flags & TCLASS != 0).then_some(tclass);
    settings.ttl = (flags & TTL != 0).then_some(ttl);
    settings.crc = flags & NO_CRC == 0;
    settings.roce = flags & NO_ROCE == 0;
    settings.congestion = flags & NO_CONGESTION == 0;
    settings.xdp_ports = match (flags & PORTS_DIRECT, flags & PORTS_PAIRS) {
        (0, 0) => XdpPorts::Auto,
        (_, 0) => XdpPorts::Direct,
        _ => XdpPorts::Pairs,
    };
    settings.mtu = match row.u8()? {
        0 => None,
        code => Some(path_mtu(code)?),
    };
    // The broker alone acts on it, so one that this build does not know must not make the list of devices
    // unreadable.
    settings.datapath = Datapath::from_u8(row.u8()?).unwrap_or_default();
    Ok(settings)
}

pub(super) fn encode_rule(device: u16, rule: &TcRule, w: &mut Writer<'_>) {
    w.u16(device);
    w.u8(rule.tclass);
    w.u8(0);
    encode_prefixes(rule.source, rule.destination, w);
}

/// The device's number and its rule.
pub(super) fn decode_rule(row: &mut Reader<'_>) -> Result<(u16, TcRule), MessageError> {
    let (device, tclass) = (row.u16()?, row.u8()?);
    row.u8()?;
    let (source, destination) = decode_prefixes(row)?;
    Ok((device, TcRule { tclass, source, destination }))
}

/// Kind, whether there is a value, the value, a zero, and two prefixes.
pub(super) fn encode_setting(setting: &Setting, w: &mut Writer<'_>) {
    let any = (Prefix::ANY, Prefix::ANY);
    let ((kind, value), (source, destination)) = match *setting {
        Setting::RoceMode(mode) => ((1, Some(mode as u8)), any),
        Setting::CmMode(mode) => ((2, Some(mode as u8)), any),
        Setting::CmTos(tos) => ((3, Some(tos)), any),
        Setting::Tclass(tclass) => ((4, tclass), any),
        Setting::Ttl(ttl) => ((5, ttl), any),
        Setting::Rule(rule) => ((6, Some(rule.tclass)), (rule.source, rule.destination)),
        Setting::NoRule { source, destination } => ((6, None), (source, destination)),
        Setting::Crc(check) => ((7, Some(check.into())), any),
        Setting::Roce(on) => ((8, Some(on.into())), any),
        Setting::Mtu(mtu) => ((9, mtu.map(|mtu| mtu as u8)), any),
        Setting::Datapath(datapath) => ((10, Some(datapath as u8)), any),
        Setting::XdpPorts(ports) => ((11, Some(ports as u8)), any),
        Setting::Congestion(on) => ((12, Some(on.into())), any),
        Setting::Unknown(kind) => ((kind, None), any),
    };
    w.u8(kind);
    w.u8(value.is_some().into());
    w.u8(value.unwrap_or(0));
    w.u8(0);
    encode_prefixes(source, destination, w);
}

pub(super) fn decode_setting(row: &mut Reader<'_>) -> Result<Setting, MessageError> {
    let kind = row.u8()?;
    let there = row.bool("value there")?;
    let value = row.u8()?;
    row.u8()?;
    let (source, destination) = decode_prefixes(row)?;
    let wrong = MessageError::Value { field: "setting", value: value.into() };
    let bool = || match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(wrong.clone()),
    };
    Ok(match (kind, there.then_some(value)) {
        (1, Some(value)) => Setting::RoceMode(RoceMode::from_u8(value).ok_or(wrong)?),
        (2, Some(value)) => Setting::CmMode(gid_type("cm_mode", value)?),
        (3, Some(tos)) => Setting::CmTos(tos),
        (4, tclass) => Setting::Tclass(tclass),
        (5, ttl) => Setting::Ttl(ttl),
        (6, Some(tclass)) => Setting::Rule(TcRule { tclass, source, destination }),
        (6, None) => Setting::NoRule { source, destination },
        (7, Some(_)) => Setting::Crc(bool()?),
        (8, Some(_)) => Setting::Roce(bool()?),
        (9, None) => Setting::Mtu(None),
        (9, Some(code)) => Setting::Mtu(Some(path_mtu(code)?)),
        // A datapath of a newer build is refused as an unknown setting, in a sentence.
        (10, Some(code)) => Datapath::from_u8(code).map_or(Setting::Unknown(10), Setting::Datapath),
        (11, Some(code)) => XdpPorts::from_u8(code).map_or(Setting::Unknown(11), Setting::XdpPorts),
        (12, Some(_)) => Setting::Congestion(bool()?),
        (1..=8 | 10..=12, None) => return Err(MessageError::Value { field: "value there", value: 0 }),
        (unknown, _) => Setting::Unknown(unknown),
    })
}

fn path_mtu(code: u8) -> Result<PathMtu, MessageError> {
    PathMtu::try_from(code).map_err(|_| MessageError::Value { field: "mtu", value: code.into() })
}

fn gid_type(field: &'static str, value: u8) -> Result<GidType, MessageError> {
    GidType::from_u8(value).ok_or(MessageError::Value { field, value: value.into() })
}

fn encode_prefixes(source: Prefix, destination: Prefix, w: &mut Writer<'_>) {
    let ((source, source_length), (destination, destination_length)) = (source.gid(), destination.gid());
    w.u8(source_length);
    w.u8(destination_length);
    w.u16(0);
    w.bytes(&source.0);
    w.bytes(&destination.0);
}

fn decode_prefixes(row: &mut Reader<'_>) -> Result<(Prefix, Prefix), MessageError> {
    let (source, destination) = (row.u8()?, row.u8()?);
    row.u16()?;
    let mut prefix = |length: u8| {
        let wrong = MessageError::Value { field: "prefix", value: length.into() };
        Prefix::of_gid(Gid(row.array()?), length).ok_or(wrong)
    };
    Ok((prefix(source)?, prefix(destination)?))
}
