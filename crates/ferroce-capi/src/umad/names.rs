//! Names of classes, methods, attributes and states, as management programs print them.

use core::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"<unknown>";

/// A number and its name.
type Named = (u16, &'static CStr);

const CLASSES: [Named; 12] = [
    (0x01, c"Subn"),
    (0x03, c"SubnAdm"),
    (0x04, c"Perf"),
    (0x05, c"BM"),
    (0x06, c"DevMgt"),
    (0x07, c"ComMgt"),
    (0x08, c"SNMP"),
    (0x10, c"DevAdm"),
    (0x11, c"BootMgt"),
    (0x12, c"BIS"),
    // So the library that programs know has it.
    (0x21, c"CongestionManagment"),
    (0x81, c"Subn"),
];

const METHODS: [Named; 8] = [
    (0x01, c"Get"),
    (0x02, c"Set"),
    (0x03, c"Send"),
    (0x05, c"Trap"),
    (0x06, c"Report"),
    (0x07, c"TrapRepress"),
    (0x81, c"GetResp"),
    (0x86, c"ReportResp"),
];

/// Methods of subnet administration alone.
const SA_METHODS: [Named; 7] = [
    (0x12, c"GetTable"),
    (0x13, c"GetTraceTable"),
    (0x14, c"GetMulti"),
    (0x15, c"Delete"),
    (0x92, c"GetTableResp"),
    (0x94, c"GetMultiResp"),
    (0x95, c"DeleteResp"),
];

/// Attributes of every class.
const ATTRIBUTES: [Named; 3] = [(1, c"Class Port Info"), (2, c"Notice"), (3, c"Inform Info")];

const SUBNET_ATTRIBUTES: [Named; 19] = [
    (0x10, c"NodeDescription"),
    (0x11, c"NodeInfo"),
    (0x12, c"SwitchInfo"),
    (0x14, c"GUIDInfo"),
    (0x15, c"PortInfo"),
    (0x16, c"P_KeyTable"),
    (0x17, c"SLtoVLMappingTable"),
    (0x18, c"VLArbitrationTable"),
    (0x19, c"LinearForwardingTable"),
    (0x1a, c"RandomForwardingTable"),
    (0x1b, c"MulticastForwardingTable"),
    (0x1c, c"LinkSpeedWidthPairsTable"),
    (0x1d, c"VendorSpecificMadsTable"),
    (0x1e, c"HierarchyInfo"),
    (0x20, c"SMInfo"),
    (0x30, c"VendorDiag"),
    (0x31, c"LedInfo"),
    (0x32, c"CableInfo"),
    (0x33, c"PortInfoExtended"),
];

const SA_ATTRIBUTES: [Named; 23] = [
    (0x11, c"NodeRecord"),
    (0x12, c"PortInfoRecord"),
    (0x13, c"SLtoVLMappingTableRecord"),
    (0x14, c"SwitchInfoRecord"),
    (0x15, c"LinearForwardingTableRecord"),
    (0x16, c"RandomForwardingTableRecord"),
    (0x17, c"MulticastForwardingTableRecord"),
    (0x18, c"SMInfoRecord"),
    (0x19, c"LinkSpeedWidthPairsTableRecord"),
    (0x20, c"LinkRecord"),
    (0x30, c"GuidInfoRecord"),
    (0x31, c"ServiceRecord"),
    (0x33, c"P_KeyTableRecord"),
    (0x35, c"PathRecord"),
    (0x36, c"VLArbitrationTableRecord"),
    (0x38, c"MCMemberRecord"),
    (0x39, c"TraceRecord"),
    (0x3a, c"MultiPathRecord"),
    (0x3b, c"ServiceAssociationRecord"),
    (0x3c, c"HierarchyInfoRecord"),
    (0x3d, c"CableInfoRecord"),
    (0x3e, c"PortInfoExtendedRecord"),
    (0xf3, c"InformInfoRecord"),
];

const CM_ATTRIBUTES: [Named; 13] = [
    (0x10, c"ConnectRequest"),
    (0x11, c"MsgRcptAck"),
    (0x12, c"ConnectReject"),
    (0x13, c"ConnectReply"),
    (0x14, c"ReadyToUse"),
    (0x15, c"DisconnectRequest"),
    (0x16, c"DisconnectReply"),
    (0x17, c"ServiceIDResReq"),
    (0x18, c"ServiceIDResReqResp"),
    (0x19, c"LoadAlternatePath"),
    (0x1a, c"AlternatePathResponse"),
    (0x1b, c"SuggestAlternatePath"),
    (0x1c, c"SuggestPathResponse"),
];

/// States of subnet administration, by the upper octet of the status.
const SA_STATES: [&CStr; 9] = [
    c"Success",
    c"No Resources",
    c"Request Invalid",
    c"No Records",
    c"Too Many Records",
    c"Invalid GID",
    c"Insufficient Components",
    c"Request Denied",
    c"Priority Suggested",
];

fn find(table: &[Named], number: u16) -> Option<&'static CStr> {
    table.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

fn class(mgmt_class: u8) -> &'static CStr {
    let range = match mgmt_class {
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x10..=0x2f => c"Application",
        _ => UNKNOWN,
    };
    find(&CLASSES, mgmt_class.into()).unwrap_or(range)
}

fn method(mgmt_class: u8, method: u8) -> &'static CStr {
    let special: &[Named] = if mgmt_class == 3 { &SA_METHODS } else { &[] };
    find(&METHODS, method.into()).or_else(|| find(special, method.into())).unwrap_or(UNKNOWN)
}

fn attribute(mgmt_class: u8, attribute: u16) -> &'static CStr {
    let special: &[Named] = match mgmt_class {
        0x01 | 0x81 => &SUBNET_ATTRIBUTES,
        0x03 => &SA_ATTRIBUTES,
        0x07 => &CM_ATTRIBUTES,
        _ => &[],
    };
    find(&ATTRIBUTES, attribute).or_else(|| find(special, attribute)).unwrap_or(UNKNOWN)
}

/// Bit 0 busy, bit 1 redirection, bits 2 to 4 a code (IBTA 13.4.7).
fn common_status(status: u16) -> &'static CStr {
    match (status & 1, status & 2, status & 0x1c) {
        (1, ..) => c"Busy",
        (_, 2, _) => c"Redirection required",
        (.., 0x04) => c"Bad Version",
        (.., 0x08) => c"Method not supported",
        (.., 0x0c) => c"Method/Attribute combo not supported",
        (.., 0x1c) => c"Invalid attribute/modifier field",
        _ => c"Success",
    }
}

fn sa_status(status: u16) -> &'static CStr {
    SA_STATES.get(usize::from(status >> 8)).copied().unwrap_or(c"Undefined Error")
}

/// Name of a management class.
pub extern "C" fn umad_class_str(mgmt_class: u8) -> *const c_char {
    class(mgmt_class).as_ptr()
}

/// Name of a method of a class.
pub extern "C" fn umad_method_str(mgmt_class: u8, method: u8) -> *const c_char {
    self::method(mgmt_class, method).as_ptr()
}

/// Name of an attribute, in network order, of a class.
pub extern "C" fn umad_attribute_str(mgmt_class: u8, attr_id: u16) -> *const c_char {
    attribute(mgmt_class, u16::from_be(attr_id)).as_ptr()
}

/// Name of a status, in network order, as far as every class has it.
pub extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    common_status(u16::from_be(status)).as_ptr()
}

/// Name of a status, in network order, of subnet administration.
pub extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    sa_status(u16::from_be(status)).as_ptr()
}
