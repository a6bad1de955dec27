//! Messages to bytes and back.

use ferroce_wire::Gid;

use super::fields::{Check, Field, SENTENCE, Text, fields, is_printable, variants};
use super::*;
use crate::codec::{MessageError, Reader, Writer};
use crate::datapath::{Datapath, DatapathState, XdpPorts};
use crate::device::{Origin, PhysState};
use crate::gid::{GidEntry, GidType};
use crate::packet::MAX_DESCRIPTORS;
use crate::settings::{LinkSettings, Prefix, RoceMode, TcRule};

const KIND: &str = "kind of message";
const HEADER: usize = 10;
const MAGIC: u32 = u32::from_le_bytes(*b"fRoC");
/// Most bytes of a device in [`Message::Devices`], without its tables.
pub const DEVICE_BYTES: usize = 147;
/// Bytes of a GID there.
pub const GID_BYTES: usize = 25;
/// Bytes of a hardware address there.
pub const MAC_BYTES: usize = 10;
/// Bytes of a traffic class rule there.
pub const RULE_BYTES: usize = 37;
/// Most programs in a [`Message::Status`].
pub const STATUS_PROGRAMS: usize = 880;

const NAME: Text = Text { field: "name", most: 63, cut: false, is_valid: is_device_name };
const DEV_NAME: Text = Text { field: "dev_name", most: 15, cut: false, is_valid: is_device_name };
const NETDEV: Text = Text { field: "netdev", most: 15, cut: false, is_valid: is_netdev_name };
const LINK_NETDEV: Text = Text {
    field: "netdev",
    // DPDK's device arguments have at most 256 octets.
    most: DPDK_PREFIX.len() + 256,
    cut: false,
    is_valid: |text| match text.strip_prefix(DPDK_PREFIX) {
        Some(devargs) => {
            !devargs.is_empty() && !devargs.contains(char::is_whitespace) && is_printable(devargs)
        }
        None => is_netdev_name(text),
    },
};
/// The netdev of a greeting may be empty.
const WANTED: Text = Text { field: "netdev", most: 16, cut: false, is_valid: is_printable };
const BUILD: Text = Text { field: "build", most: 32, cut: false, is_valid: is_printable };
/// Text of several lines: printable, but for the ends of lines and tabs.
const LINES: Text = Text {
    field: "rules",
    most: MAX_MESSAGE,
    cut: false,
    is_valid: |text| !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')),
};

/// Slots that programs may hold: those of members 1 to 254, each once.
const SLOTS: Check<Vec<u16>> = Check(|slots| each_once("slot", slots, |slot| is_leasable(*slot)));
/// Members that programs may hold: 1 to 254, each once; at least one.
const MEMBERS: Check<Vec<u8>> = Check(|members| {
    if members.is_empty() {
        return Err(MessageError::Value { field: "members", value: 0 });
    }
    each_once("member", members, |member| (1..=LAST_MEMBER).contains(member))
});
const LEASES: Check<u8> = Check(|count| match count {
    1..=254 => Ok(()),
    other => Err(MessageError::Value { field: "count", value: u64::from(*other) }),
});
/// Ascending, so that an index names one entry.
const GIDS: Check<Vec<GidEntry>> = Check(|gids| {
    let mut next = 0;
    for GidEntry { index, .. } in gids {
        if !(next..GID_TABLE).contains(index) {
            return Err(MessageError::Value { field: "gid index", value: u64::from(*index) });
        }
        next = index + 1;
    }
    Ok(())
});
/// 0 stands for no order.
const ORDER_KEY: Check<u64> = Check(|key| match key {
    0 => Err(MessageError::Value { field: "key", value: 0 }),
    _ => Ok(()),
});

fn each_once<T: Copy + Ord + Into<u64>>(
    field: &'static str,
    all: &[T],
    is_valid: fn(&T) -> bool,
) -> Result<(), MessageError> {
    let mut seen = std::collections::BTreeSet::new();
    match all.iter().find(|one| !is_valid(one) || !seen.insert(**one)) {
        Some(wrong) => Err(MessageError::Value { field, value: (*wrong).into() }),
        None => Ok(()),
    }
}

/// Whether a device may be called so: 1 to 63 characters that are safe in paths and shells, the first neither
/// `-` nor `.`.
pub fn is_device_name(name: &str) -> bool {
    let safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    (1..=63).contains(&name.len()) && safe && !name.starts_with(['-', '.'])
}

/// An interface name as the kernel allows it: 1 to 15 bytes, no `/`, `:` or space.
fn is_netdev_name(name: &str) -> bool {
    let path = name == "." || name == ".." || name.contains(['/', ':', ' ']);
    (1..=15).contains(&name.len()) && !path && is_printable(name)
}

impl Message {
    /// The message's bytes.
    ///
    /// # Errors
    /// [`MessageError::TooLong`] if a text or table does not fit: nothing of it should be sent.
    pub fn encode(&self, id: u32) -> Result<Vec<u8>, MessageError> {
        let mut w = Writer::default();
        self.put(&mut w);
        let body = w.finish()?;
        let mut w = Writer::default();
        w.length("message", self.descriptors());
        id.put(&mut w);
        let length = HEADER + body.len();
        if length > MAX_MESSAGE || self.descriptors() > MAX_DESCRIPTORS {
            return Err(MessageError::TooLong { field: "message" });
        }
        (length as u32).put(&mut w);
        w.bytes(&body);
        w.finish()
    }

    /// The message in a packet that came with `descriptors` descriptors, and its request id.
    ///
    /// # Errors
    /// [`MessageError::UnknownKind`] is to be ignored; after any other the connection is not to be trusted.
    pub fn decode(bytes: &[u8], descriptors: usize) -> Result<(u32, Self), MessageError> {
        let mut r = Reader::new(bytes);
        let (said, id, length) = (u16::take(&mut r)?, u32::take(&mut r)?, u32::take(&mut r)? as usize);
        if length != bytes.len() {
            return Err(MessageError::Length { said: length, got: bytes.len() });
        }
        let message = Self::take(&mut r).map_err(|e| match e {
            MessageError::Value { field: KIND, value } => MessageError::UnknownKind(value as u16),
            other => other,
        });
        let want = match &message {
            Ok(message) if usize::from(said) == descriptors => message.descriptors(),
            _ => said.into(),
        };
        if want != descriptors {
            return Err(MessageError::Descriptors { want, got: descriptors });
        }
        Ok((id, message?))
    }
}

variants! {
    Message: KIND {
        1 => Hello(hello as GREETING),
        2 => Refused(refusal),
        3 => Done,
        4 => ListDevices,
        5 => Devices(devices),
        6 => Lease(count as LEASES),
        7 => Leased(leased),
        8 => Address(address),
        9 => Release(slots as SLOTS),
        10 => Resume(slots as SLOTS),
        11 => Parked,
        12 => LinkAdd { name as NAME, kind, netdev as LINK_NETDEV, transient },
        13 => LinkDel { name as NAME, transient },
        14 => GetStatus,
        15 => Status(status),
        16 => Report(counts),
        17 => Cm(request),
        18 => CmDone(done),
        19 => CmEvent(notice),
        20 => LinkSet { name as NAME, settings, transient, force },
        21 => OpenRings { v2 },
        22 => Rings,
        23 => Stop { force },
        24 => OfferPipes { direct },
        25 => OpenPipe(slot),
        26 => Pipe { first, direct, slots as SLOTS },
        27 => ResumeByRings(slots as SLOTS),
        28 => OpenXdp(ifindex),
        29 => Xdp { ifindex, direct },
        33 => LinkRename { name as NAME, to as NAME, transient },
        40 => Ledger,
        41 => GetStatistics(device as NAME),
        42 => Statistics(counters),
        43 => GetLedgers,
        44 => Ledgers(count),
        45 => LedgerOf(program),
        46 => GetCmIds(without),
        47 => CmIds { ids, more },
        48 => FaultRequest { slot, pid, order },
        49 => FaultOrder { number, order },
        50 => FaultReport { number, result },
        51 => MadFaults { generation, rules as LINES },
        52 => GetMadFaults,
        53 => MadFaultReport(report),
        54 => MadFaultHits,
        55 => SettleRings,
        56 => GetEndedLedgers,
    }
    RefusalCode: "refusal" {
        0 => Failed,
        1 => Version,
        2 => ForeignUser,
        3 => Leaving,
        4 => PortTaken,
        5 => NoSlots,
        6 => UnknownNetdev,
        7 => Exists,
        8 => UnknownLink,
        9 => BadRequest,
        10 => Busy,
        11 => Permission,
        12 => AddressInUse,
        13 => NoAddress,
        14 => UnknownId,
        15 => WrongState,
        16 => Full,
        17 => WildcardInUse,
        _ => Failed,
    }
    FaultOrder: "order" {
        0 => Apply { rules as LINES, seed },
        1 => Clear,
        2 => Show,
    }
    Known: "known" {
        0 => All,
        1 => AtLeast,
        2 => NotInForce,
        _ => AtLeast,
    }
    CmIdState: "state" {
        0 => AddrBound,
        1 => Listen,
        2 => Connect,
        3 => Disconnect,
    }
    PhysState: "phys_state" {
        2 => Polling,
        3 => Disabled,
        5 => LinkUp,
    }
    Origin: "origin" {
        0 => Default,
        1 => Link,
        2 => View,
    }
    LinkKind: "link kind" {
        0 => Rxe,
        1 => Siw,
    }
    GidType: "gid_type" {
        1 => RoceV1,
        2 => RoceV2,
    }
    RoceMode: "roce_mode" {
        1 => V1,
        2 => V2,
        3 => Both,
    }
    Datapath: "datapath" {
        0 => Udp,
        1 => Xdp,
    }
    XdpPorts: "xdp_ports" {
        0 => Auto,
        1 => Direct,
        2 => Pairs,
    }
    DatapathState: "datapath state" {
        0 => Udp,
        1 => XdpNative,
        2 => XdpGeneric,
        3 => Dpdk,
        16 => NoPermission,
        17 => NoSupport,
        18 => WrongInterface,
        19 => Busy,
        20 => Failed,
        _ => Failed,
    }
    Setting: "setting" {
        1 => RoceMode(mode),
        2 => CmMode(mode),
        3 => CmTos(tos),
        4 => Tclass(tclass),
        5 => Ttl(ttl),
        6 => Rule(rule),
        7 => NoRule { source, destination },
        8 => Crc(check),
        9 => Roce(on),
        10 => Mtu(mtu),
        11 => Datapath(datapath),
        12 => XdpPorts(ports),
        13 => Congestion(on),
        _ => Unknown(kind),
    }
}

fields! {
    Hello { major, minor, features, build as BUILD, netdev as WANTED }
    Refusal { code, sentence as SENTENCE }
    DeviceInfo {
        id, name as NAME, dev_name as DEV_NAME, node_guid, netdev as NETDEV, ifindex, mtu, port_active,
        phys_state, origin, kind, datapath, gids as GIDS, macs, settings,
    }
    GidEntry { index, gid, gid_type, ifindex }
    LinkSettings {
        roce_mode, cm_mode, cm_tos, tclass, ttl, rules, crc, congestion, roce, mtu, datapath, xdp_ports,
    }
    TcRule { tclass, source, destination }
    Leased { slots as SLOTS, by_rings, addresses, notice as SENTENCE, order }
    QpnOrder { key as ORDER_KEY, start }
    AddressSockets { ip, scope_id, members as MEMBERS }
    Status { broker_pid, broker_uid, group_size, groups, adopted, build, programs, cm }
    CmStatus { connections, sidr_requests, listeners, ports, counters, no_mad }
    CmCounters { rx_msgs, rx_duplicates, tx_msgs, tx_retries, drops }
    LeaseEntry { pid, uid, command, slots, resources }
    ResourceCounts { pds, cqs, qps, mrs }
    CmIdEntry { number, slot, state, qp_type, space, qpn, local, remote }
    FaultReport { seed, unlogged, rules }
    FaultCounts { name, text, seen, hits, known }
    MadFaultReport { generation, unlogged, counts, hits, more }
}

/// The rule for a greeting: the magic number comes first.
struct Greeting;
const GREETING: Greeting = Greeting;

impl Greeting {
    fn put(&self, hello: &Hello, w: &mut Writer) {
        MAGIC.put(w);
        hello.put(w);
    }

    fn take(&self, r: &mut Reader<'_>) -> Result<Hello, MessageError> {
        match u32::take(r)? {
            MAGIC => Hello::take(r),
            other => Err(MessageError::Value { field: "magic", value: other.into() }),
        }
    }
}

impl Field for Prefix {
    fn put(&self, w: &mut Writer) {
        self.gid().put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let (gid, length) = <(Gid, u8)>::take(r)?;
        Self::of_gid(gid, length).ok_or(MessageError::Value { field: "prefix", value: length.into() })
    }
}
