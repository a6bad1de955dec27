//! The constants of libibumad.

use core::ffi::c_uint;

pub const UMAD_USER_RMPP: c_uint = 1;

pub const UMAD_CLASS_SUBN_LID_ROUTED: c_uint = 1;
pub const UMAD_CLASS_SUBN_DIRECTED_ROUTE: c_uint = 129;
pub const UMAD_CLASS_SUBN_ADM: c_uint = 3;
pub const UMAD_CLASS_PERF_MGMT: c_uint = 4;
pub const UMAD_CLASS_BM: c_uint = 5;
pub const UMAD_CLASS_DEVICE_MGMT: c_uint = 6;
pub const UMAD_CLASS_CM: c_uint = 7;
pub const UMAD_CLASS_SNMP: c_uint = 8;
pub const UMAD_CLASS_VENDOR_RANGE1_START: c_uint = 9;
pub const UMAD_CLASS_VENDOR_RANGE1_END: c_uint = 15;
pub const UMAD_CLASS_APPLICATION_START: c_uint = 16;
pub const UMAD_CLASS_DEVICE_ADM: c_uint = 16;
pub const UMAD_CLASS_BOOT_MGMT: c_uint = 17;
pub const UMAD_CLASS_BIS: c_uint = 18;
pub const UMAD_CLASS_CONG_MGMT: c_uint = 33;
pub const UMAD_CLASS_APPLICATION_END: c_uint = 47;
pub const UMAD_CLASS_VENDOR_RANGE2_START: c_uint = 48;
pub const UMAD_CLASS_VENDOR_RANGE2_END: c_uint = 79;

pub const UMAD_METHOD_GET: c_uint = 1;
pub const UMAD_METHOD_SET: c_uint = 2;
pub const UMAD_METHOD_GET_RESP: c_uint = 129;
pub const UMAD_METHOD_SEND: c_uint = 3;
pub const UMAD_METHOD_TRAP: c_uint = 5;
pub const UMAD_METHOD_REPORT: c_uint = 6;
pub const UMAD_METHOD_REPORT_RESP: c_uint = 134;
pub const UMAD_METHOD_TRAP_REPRESS: c_uint = 7;
pub const UMAD_METHOD_RESP_MASK: c_uint = 0x80;

pub const UMAD_STATUS_SUCCESS: c_uint = 0;
pub const UMAD_STATUS_BUSY: c_uint = 1;
pub const UMAD_STATUS_REDIRECT: c_uint = 2;
pub const UMAD_STATUS_BAD_VERSION: c_uint = 4;
pub const UMAD_STATUS_METHOD_NOT_SUPPORTED: c_uint = 8;
pub const UMAD_STATUS_ATTR_NOT_SUPPORTED: c_uint = 12;
pub const UMAD_STATUS_INVALID_ATTR_VALUE: c_uint = 28;
pub const UMAD_STATUS_INVALID_FIELD_MASK: c_uint = 28;
pub const UMAD_STATUS_CLASS_MASK: c_uint = 65280;

pub const UMAD_ATTR_CLASS_PORT_INFO: c_uint = 1;
pub const UMAD_ATTR_NOTICE: c_uint = 2;
pub const UMAD_ATTR_INFORM_INFO: c_uint = 3;

pub const UMAD_RMPP_FLAG_ACTIVE: c_uint = 1;

pub const UMAD_LEN_DATA: c_uint = 232;
pub const UMAD_LEN_RMPP_DATA: c_uint = 220;
pub const UMAD_LEN_DM_DATA: c_uint = 192;
pub const UMAD_LEN_VENDOR_DATA: c_uint = 216;

pub const UMAD_OPENIB_OUI: c_uint = 5125;

pub const UMAD_CLASS_RESP_TIME_MASK: c_uint = 31;
