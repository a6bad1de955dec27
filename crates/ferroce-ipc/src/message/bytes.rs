//! Messages to bytes and back.

mod faults;
mod leases;
mod settings;
mod status;

use std::collections::BTreeMap;

use ferroce_wire::Gid;

use super::fields::Field;
use super::*;
use crate::codec::{MessageError, Reader, Table, Writer, clipped};
use crate::datapath::DatapathState;
use crate::device::{Origin, PhysState};
use crate::gid::{GidEntry, GidType};
use crate::packet::MAX_DESCRIPTORS;
use leases::{
    SLOT_ROW, decode_lease, decode_members, decode_order, decode_slots, encode_lease, encode_order,
    encode_slots,
};

const MAGIC: u32 = u32::from_le_bytes(*b"fRoC");
const HEADER: usize = 16;
const DEVICE_ROW: u16 = 132;
const GID_ROW: u16 = 28;
const MAC_ROW: u16 = 12;
/// Bytes of a device in [`Message::Devices`].
pub const DEVICE_BYTES: usize = DEVICE_ROW as usize;
/// Bytes of a GID there.
pub const GID_BYTES: usize = GID_ROW as usize;
/// Bytes of a hardware address there.
pub const MAC_BYTES: usize = MAC_ROW as usize;
/// Bytes of a traffic class rule there.
pub const RULE_BYTES: usize = settings::RULE_ROW as usize;
/// Most programs in a [`Message::Status`].
pub const STATUS_PROGRAMS: usize = 880;
const COUNTER_ROW: u16 = 48;
const CM_ID_ROW: u16 = 50;
/// Octets of DPDK's device arguments.
const LONGEST_DEVARGS: usize = 256;

impl Message {
    /// The message's bytes.
    ///
    /// # Errors
    /// [`MessageError::TooLong`] if a text or table does not fit: nothing of it should be sent.
    pub fn encode(&self, id: u32) -> Result<Vec<u8>, MessageError> {
        let mut bytes = vec![0; HEADER];
        let fixed_end = self.encode_body(&mut bytes)?;
        let too_long = MessageError::TooLong { field: "message" };
        if bytes.len() > MAX_MESSAGE || self.descriptors() > MAX_DESCRIPTORS {
            return Err(too_long);
        }
        let mut header = Vec::with_capacity(HEADER);
        let mut w = Writer(&mut header);
        w.u16(self.kind());
        w.u16(u16::try_from(self.descriptors()).map_err(|_| too_long.clone())?);
        w.u32(id);
        w.u16(u16::try_from(fixed_end.saturating_sub(HEADER)).map_err(|_| too_long.clone())?);
        w.u16(0);
        w.u32(u32::try_from(bytes.len()).map_err(|_| too_long)?);
        for (to, from) in bytes.iter_mut().zip(header) {
            *to = from;
        }
        Ok(bytes)
    }

    /// Appends the body; returns where its fixed part ends.
    fn encode_body(&self, bytes: &mut Vec<u8>) -> Result<usize, MessageError> {
        let mut w = Writer(bytes);
        match self {
            Self::Done
            | Self::ListDevices
            | Self::Parked
            | Self::GetStatus
            | Self::Ledger
            | Self::GetLedgers
            | Self::GetMadFaults
            | Self::MadFaultHits
            | Self::SettleRings
            | Self::Rings => {}
            Self::Hello(hello) => {
                w.u32(MAGIC);
                w.u16(hello.major);
                w.u16(hello.minor);
                w.u64(hello.features);
                w.u64(hello.pid_namespace);
                w.padded::<32>("build", &hello.build)?;
                w.padded::<16>("netdev", &hello.netdev)?;
            }
            Self::Refused(refusal) => {
                w.u16(refusal.code as u16);
                let sentence = clipped(&refusal.sentence, 1024);
                w.u16(sentence.len() as u16);
                let end = w.0.len();
                w.bytes(sentence.as_bytes());
                return Ok(end);
            }
            Self::Devices(devices) => return encode_devices(devices, w),
            Self::Lease(count) => w.u8(*count),
            Self::OpenRings { v2 } => w.u8(u8::from(*v2)),
            Self::OfferPipes { direct } => w.u8(u8::from(*direct)),
            Self::OpenPipe(slot) => w.u16(*slot),
            Self::OpenXdp(ifindex) => w.u32(*ifindex),
            Self::Xdp { ifindex, direct } => {
                w.u32(*ifindex);
                w.u8(u8::from(*direct));
            }
            Self::Pipe { first, direct, slots } => {
                w.u8(u8::from(*first));
                w.u8(u8::from(*direct));
                return encode_slots(slots, w);
            }
            Self::Stop { force } => w.u8(u8::from(*force)),
            Self::Leased(leased) => {
                let notice = clipped(&leased.notice, 1024);
                w.u16(leased.addresses);
                w.u16(notice.len() as u16);
                w.u8(u8::from(leased.by_rings));
                w.table("slots", leased.slots.len(), SLOT_ROW)?;
                encode_order(leased.order, &mut w);
                let end = w.0.len();
                leased.slots.iter().for_each(|slot| w.u16(*slot));
                w.bytes(notice.as_bytes());
                return Ok(end);
            }
            Self::Address(address) => {
                w.bytes(&Gid::from_ip(address.ip).0);
                w.u32(address.scope_id);
                w.table("members", address.members.len(), 1)?;
                let end = w.0.len();
                w.bytes(&address.members);
                return Ok(end);
            }
            Self::Release(slots) | Self::Resume(slots) | Self::ResumeByRings(slots) => {
                return encode_slots(slots, w);
            }
            Self::LinkAdd { name, kind, netdev, transient } => {
                let devargs = netdev.strip_prefix(DPDK_PREFIX);
                w.padded::<64>("name", name)?;
                // No interface has this name.
                w.padded::<16>("netdev", devargs.map_or(netdev, |_| DPDK_PREFIX))?;
                w.u8(*kind as u8);
                w.u8(u8::from(*transient));
                if let Some(devargs) = devargs {
                    w.u16(
                        u16::try_from(devargs.len())
                            .map_err(|_| MessageError::TooLong { field: "netdev" })?,
                    );
                    let end = w.0.len();
                    w.bytes(devargs.as_bytes());
                    return Ok(end);
                }
            }
            Self::LinkDel { name, transient } => {
                w.padded::<64>("name", name)?;
                w.u8(u8::from(*transient));
            }
            Self::Status(status) => return status::encode_status(status, w),
            Self::Report(counts) => encode_counts(counts, &mut w),
            Self::Cm(request) => return cm::encode(request, request.record(), w),
            Self::CmDone(done) => return cm::encode(done, &done.record, w),
            Self::CmEvent(notice) => return cm::encode(notice, &notice.record, w),
            Self::LinkRename { name, to, transient } => {
                w.padded::<64>("name", name)?;
                w.padded::<64>("to", to)?;
                w.u8(u8::from(*transient));
            }
            Self::LinkSet { name, settings, transient, force } => {
                w.padded::<64>("name", name)?;
                w.u8(u8::from(*transient));
                w.u8(u8::from(*force));
                w.table("settings", settings.len(), settings::SETTING_ROW)?;
                let end = w.0.len();
                settings.iter().for_each(|setting| settings::encode_setting(setting, &mut w));
                return Ok(end);
            }
            Self::GetStatistics(device) => w.padded::<64>("device", device)?,
            Self::Statistics(counters) => {
                w.table("counters", counters.len(), COUNTER_ROW)?;
                let end = w.0.len();
                for (name, value) in counters {
                    w.padded::<40>("counter", name)?;
                    w.u64(*value);
                }
                return Ok(end);
            }
            Self::FaultRequest { slot, pid, order } => {
                w.u16(*slot);
                w.u32(*pid);
                return faults::encode_order(order, w);
            }
            Self::FaultOrder { number, order } => {
                w.u32(*number);
                return faults::encode_order(order, w);
            }
            Self::FaultReport { number, result } => {
                w.u32(*number);
                return faults::encode_report(result, w);
            }
            Self::MadFaults { generation, rules } => {
                w.u32(*generation);
                return faults::encode_rules(rules, w);
            }
            Self::MadFaultReport(report) => return faults::encode_mads(report, w),
            Self::Ledgers(count) => w.u16(*count),
            Self::LedgerOf(program) => encode_lease(program, &mut w)?,
            Self::GetCmIds(without) => w.u32(*without),
            Self::CmIds { ids, more } => {
                w.table("cm ids", ids.len(), CM_ID_ROW)?;
                w.u8(u8::from(*more));
                let end = w.0.len();
                for id in ids {
                    w.u32(id.number);
                    w.u32(id.qpn);
                    w.u16(id.slot);
                    w.u8(id.state as u8);
                    w.u8(id.qp_type);
                    w.u16(id.space);
                    for address in [id.local, id.remote] {
                        w.u16(address.port());
                        w.bytes(&Gid::from_ip(address.ip()).0);
                    }
                }
                return Ok(end);
            }
        }
        Ok(bytes.len())
    }

    /// The message in a packet that came with `descriptors` descriptors, and its request id.
    ///
    /// # Errors
    /// [`MessageError::UnknownKind`] is to be ignored; after any other the connection is not to be trusted.
    /// The id is there as soon as the header is whole.
    pub fn decode(bytes: &[u8], descriptors: usize) -> Result<(u32, Self), MessageError> {
        let mut header = Reader::new(bytes);
        let kind = header.u16()?;
        let said = usize::from(header.u16()?);
        let id = header.u32()?;
        let fixed = usize::from(header.u16()?);
        header.u16()?;
        let length = header.u32()? as usize;
        if length != bytes.len() {
            return Err(MessageError::Length { said: length, got: bytes.len() });
        }
        if said != descriptors {
            return Err(MessageError::Descriptors { want: said, got: descriptors });
        }
        let body = Reader::new(header.take(fixed)?);
        let tail = Reader::new(header.take(length.saturating_sub(HEADER + fixed))?);
        let message = Self::decode_body(kind, body, tail)?;
        if message.descriptors() != descriptors {
            return Err(MessageError::Descriptors { want: message.descriptors(), got: descriptors });
        }
        Ok((id, message))
    }

    fn decode_body(kind: u16, mut body: Reader<'_>, mut tail: Reader<'_>) -> Result<Self, MessageError> {
        Ok(match kind {
            1 => {
                let magic = body.u32()?;
                if magic != MAGIC {
                    return Err(MessageError::Value { field: "magic", value: magic.into() });
                }
                Self::Hello(Hello {
                    major: body.u16()?,
                    minor: body.u16()?,
                    features: body.u64()?,
                    pid_namespace: body.u64()?,
                    build: body.padded::<32>("build")?,
                    netdev: body.padded::<16>("netdev")?,
                })
            }
            2 => {
                let code = body.u16()?;
                let length = body.u16()?;
                let code = RefusalCode::ALL.into_iter().find(|known| *known as u16 == code);
                Self::Refused(Refusal {
                    code: code.unwrap_or(RefusalCode::Failed),
                    sentence: tail.text("sentence", length.into())?,
                })
            }
            3 => Self::Done,
            4 => Self::ListDevices,
            5 => Self::Devices(decode_devices(body, tail)?),
            6 => match body.u8()? {
                count @ 1..=254 => Self::Lease(count),
                other => return Err(MessageError::Value { field: "count", value: other.into() }),
            },
            7 => {
                let addresses = body.u16()?;
                let notice = body.u16()?;
                let by_rings = body.bool("by rings")?;
                let slots = decode_slots(&mut body, &mut tail)?;
                Self::Leased(Leased {
                    order: decode_order(&mut body)?,
                    slots,
                    by_rings,
                    addresses,
                    notice: tail.text("notice", notice.into())?,
                })
            }
            8 => {
                let gid = Gid(body.array()?);
                let scope_id = body.u32()?;
                let members = decode_members(&mut body, &mut tail)?;
                if members.is_empty() {
                    return Err(MessageError::Value { field: "members", value: 0 });
                }
                Self::Address(AddressSockets { ip: gid.to_ip(), scope_id, members })
            }
            9 => Self::Release(decode_slots(&mut body, &mut tail)?),
            10 => Self::Resume(decode_slots(&mut body, &mut tail)?),
            11 => Self::Parked,
            12 => {
                let name = device_name(body.padded::<64>("name")?)?;
                let netdev = body.padded::<16>("netdev")?;
                let kind = body.enumeration("kind", LinkKind::from_u8)?;
                let transient = body.bool("transient")?;
                let netdev = match netdev == DPDK_PREFIX {
                    true => {
                        let length = body.u16()?;
                        device_arguments(netdev, &tail.text("netdev", length.into())?)?
                    }
                    false => netdev_name(netdev)?,
                };
                Self::LinkAdd { name, kind, netdev, transient }
            }
            13 => Self::LinkDel {
                name: device_name(body.padded::<64>("name")?)?,
                transient: body.bool("transient")?,
            },
            14 => Self::GetStatus,
            15 => Self::Status(status::decode_status(body, tail)?),
            16 => Self::Report(decode_counts(&mut body)?),
            17 => Self::Cm(Field::take(&mut body)?),
            18 => Self::CmDone(Field::take(&mut body)?),
            19 => Self::CmEvent(Field::take(&mut body)?),
            20 => {
                let name = device_name(body.padded::<64>("name")?)?;
                let (transient, force) = (body.bool("transient")?, body.bool("force")?);
                let table = Table::read(&mut body)?;
                let settings = tail.rows(table, settings::decode_setting)?;
                Self::LinkSet { name, settings, transient, force }
            }
            21 => Self::OpenRings { v2: body.bool("v2")? },
            22 => Self::Rings,
            23 => Self::Stop { force: body.bool("force")? },
            24 => Self::OfferPipes { direct: body.bool("direct")? },
            25 => Self::OpenPipe(body.u16()?),
            26 => {
                let (first, direct) = (body.bool("first")?, body.bool("direct")?);
                let slots = decode_slots(&mut body, &mut tail)?;
                Self::Pipe { first, direct, slots }
            }
            27 => Self::ResumeByRings(decode_slots(&mut body, &mut tail)?),
            28 => Self::OpenXdp(body.u32()?),
            29 => Self::Xdp { ifindex: body.u32()?, direct: body.bool("direct")? },
            33 => Self::LinkRename {
                name: device_name(body.padded::<64>("name")?)?,
                to: device_name(body.padded::<64>("to")?)?,
                transient: body.bool("transient")?,
            },
            40 => Self::Ledger,
            41 => Self::GetStatistics(device_name(body.padded::<64>("device")?)?),
            42 => {
                let table = Table::read(&mut body)?;
                Self::Statistics(tail.rows(table, |row| Ok((row.padded::<40>("counter")?, row.u64()?)))?)
            }
            43 => Self::GetLedgers,
            44 => Self::Ledgers(body.u16()?),
            45 => Self::LedgerOf(decode_lease(&mut body)?),
            46 => Self::GetCmIds(body.u32()?),
            47 => {
                let table = Table::read(&mut body)?;
                let more = body.bool("more")?;
                Self::CmIds { ids: tail.rows(table, decode_cm_id)?, more }
            }
            48 => Self::FaultRequest {
                slot: body.u16()?,
                pid: body.u32()?,
                order: faults::decode_order(&mut body, &mut tail)?,
            },
            49 => {
                Self::FaultOrder { number: body.u32()?, order: faults::decode_order(&mut body, &mut tail)? }
            }
            50 => Self::FaultReport {
                number: body.u32()?,
                result: faults::decode_report(&mut body, &mut tail)?,
            },
            51 => Self::MadFaults {
                generation: body.u32()?,
                rules: faults::decode_rules(&mut body, &mut tail)?,
            },
            52 => Self::GetMadFaults,
            53 => Self::MadFaultReport(faults::decode_mads(&mut body, &mut tail)?),
            54 => Self::MadFaultHits,
            55 => Self::SettleRings,
            other => return Err(MessageError::UnknownKind(other)),
        })
    }
}

/// Whether a device may be called so: 1 to 63 characters that are safe in paths and shells, the first neither
/// `-` nor `.`.
pub fn is_device_name(name: &str) -> bool {
    let safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    (1..=63).contains(&name.len()) && safe && !name.starts_with(['-', '.'])
}

fn device_name(name: String) -> Result<String, MessageError> {
    match is_device_name(&name) {
        true => Ok(name),
        false => Err(MessageError::Text { field: "name" }),
    }
}

/// An interface name as the kernel allows it: 1 to 15 bytes, no `/`, `:` or space.
fn netdev_name(name: String) -> Result<String, MessageError> {
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(['/', ':', ' ']) {
        return Err(MessageError::Text { field: "netdev" });
    }
    Ok(name)
}

/// DPDK's device arguments behind `prefix`.
fn device_arguments(prefix: String, devargs: &str) -> Result<String, MessageError> {
    if devargs.is_empty() || devargs.len() > LONGEST_DEVARGS || devargs.contains(char::is_whitespace) {
        return Err(MessageError::Text { field: "netdev" });
    }
    Ok(prefix + devargs)
}

fn encode_devices(devices: &[DeviceInfo], mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.table("devices", devices.len(), DEVICE_ROW)?;
    w.table("gids", devices.iter().map(|device| device.gids.len()).sum(), GID_ROW)?;
    let rules = devices.iter().map(|device| device.settings.rules.len()).sum();
    w.table("rules", rules, settings::RULE_ROW)?;
    w.table("macs", devices.iter().map(|device| device.macs.len()).sum(), MAC_ROW)?;
    let end = w.0.len();
    for device in devices {
        w.u32(device.id);
        w.u32(device.ifindex);
        w.u32(device.mtu);
        w.bytes(&device.node_guid);
        w.padded::<64>("name", &device.name)?;
        w.padded::<16>("dev_name", &device.dev_name)?;
        w.padded::<16>("netdev", &device.netdev)?;
        w.u8(device.port_active.into());
        w.u8(device.phys_state as u8);
        w.u8(device.origin as u8);
        w.u8(device.kind as u8);
        w.u8(device.datapath as u8);
        w.bytes(&[0; 3]);
        settings::encode(&device.settings, &mut w);
    }
    for (number, device) in devices.iter().enumerate() {
        for entry in &device.gids {
            w.u16(number as u16);
            w.u16(entry.index);
            w.u8(entry.gid_type as u8);
            w.bytes(&[0; 3]);
            w.u32(entry.ifindex);
            w.bytes(&entry.gid.0);
        }
    }
    for (number, device) in devices.iter().enumerate() {
        device.settings.rules.iter().for_each(|rule| settings::encode_rule(number as u16, rule, &mut w));
    }
    for (number, device) in devices.iter().enumerate() {
        for (ifindex, mac) in &device.macs {
            w.u16(number as u16);
            w.bytes(mac);
            w.u32(*ifindex);
        }
    }
    Ok(end)
}

fn decode_devices(mut body: Reader<'_>, mut tail: Reader<'_>) -> Result<Vec<DeviceInfo>, MessageError> {
    let device_table = Table::read(&mut body)?;
    let gid_table = Table::read(&mut body)?;
    let (rule_table, mac_table) = (Table::read(&mut body)?, Table::read(&mut body)?);
    let mut devices = tail.rows(device_table, |row| {
        Ok(DeviceInfo {
            id: row.u32()?,
            ifindex: row.u32()?,
            mtu: row.u32()?,
            node_guid: row.array()?,
            name: device_name(row.padded::<64>("name")?)?,
            dev_name: device_name(row.padded::<16>("dev_name")?)?,
            netdev: netdev_name(row.padded::<16>("netdev")?)?,
            port_active: row.bool("port_active")?,
            phys_state: row.enumeration("phys_state", PhysState::from_u8)?,
            origin: row.enumeration("origin", Origin::from_u8)?,
            kind: row.enumeration("link kind", LinkKind::from_u8)?,
            datapath: DatapathState::from_u8(row.u8()?),
            gids: Vec::new(),
            settings: {
                row.take(3)?;
                settings::decode(row)?
            },
            macs: BTreeMap::new(),
        })
    })?;
    let gids = tail.rows(gid_table, |row| {
        let device = row.u16()?;
        let index = row.u16()?;
        let gid_type = row.enumeration("gid_type", GidType::from_u8)?;
        row.take(3)?;
        let ifindex = row.u32()?;
        Ok((device, GidEntry { index, gid: Gid(row.array()?), gid_type, ifindex }))
    })?;
    for (number, entry) in gids {
        let wrong = MessageError::Value { field: "device", value: number.into() };
        let device = devices.get_mut(usize::from(number)).ok_or(wrong)?;
        // Ascending, so that an index names one entry.
        if entry.index >= GID_TABLE || device.gids.last().is_some_and(|last| last.index >= entry.index) {
            return Err(MessageError::Value { field: "gid index", value: entry.index.into() });
        }
        device.gids.push(entry);
    }
    for (number, rule) in tail.rows(rule_table, settings::decode_rule)? {
        let wrong = MessageError::Value { field: "device", value: number.into() };
        devices.get_mut(usize::from(number)).ok_or(wrong)?.settings.rules.push(rule);
    }
    for (number, mac, ifindex) in tail.rows(mac_table, |row| Ok((row.u16()?, row.array()?, row.u32()?)))? {
        let wrong = MessageError::Value { field: "device", value: number.into() };
        devices.get_mut(usize::from(number)).ok_or(wrong)?.macs.insert(ifindex, mac);
    }
    Ok(devices)
}

fn encode_counts(counts: &ResourceCounts, w: &mut Writer<'_>) {
    for count in [counts.pds, counts.cqs, counts.qps, counts.mrs] {
        w.u32(count);
    }
}

fn decode_counts(r: &mut Reader<'_>) -> Result<ResourceCounts, MessageError> {
    Ok(ResourceCounts { pds: r.u32()?, cqs: r.u32()?, qps: r.u32()?, mrs: r.u32()? })
}

fn decode_cm_id(row: &mut Reader<'_>) -> Result<CmIdEntry, MessageError> {
    let (number, qpn, slot) = (row.u32()?, row.u32()?, row.u16()?);
    let state = row.enumeration("state", |value| match value {
        0 => Some(CmIdState::AddrBound),
        1 => Some(CmIdState::Listen),
        2 => Some(CmIdState::Connect),
        3 => Some(CmIdState::Disconnect),
        _ => None,
    })?;
    let qp_type = row.u8()?;
    let space = row.u16()?;
    let mut address = || {
        let port = row.u16()?;
        Ok(SocketAddr::new(Gid(row.array()?).to_ip(), port))
    };
    Ok(CmIdEntry { number, slot, state, qp_type, space, qpn, local: address()?, remote: address()? })
}
