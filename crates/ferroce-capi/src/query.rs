//! Queries of a device, its port and its tables.

use std::ptr;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{DEFAULT_SPEED, width_and_speed};
use ferroce_engine::{DeviceAttr, GidEntry, GidType, LinkKind, PortAttr};
use ferroce_memory::guard::CAN_PERSIST;

use crate::call::{self, Owner};
use crate::context::LiveContext;
use crate::device::c_text;
use crate::entry::{ConstPtr, Object, Ptr, export};
use crate::errno::{Errno, judged};
use crate::handle::{Live, get, set};

/// The vendor id of no vendor, as rxe has it.
const VENDOR_ID: u32 = 0xff_ffff;
/// siw has these two numbers.
const IWARP_VENDOR_ID: u32 = 0x62_6d74;
const IWARP_VENDOR_PART_ID: u32 = 1;
/// The only P_Key, as in every full member's table.
const DEFAULT_PKEY: u16 = 0xffff;
/// Rate of the clock of completions, in kHz: the clock counts nanoseconds.
const CORE_CLOCK: u64 = 1_000_000;
/// Octets that the exported `ibv_query_port` may write: the structure ended here when its version was fixed.
const SHORT_PORT_ATTR: usize = 48;

/// Writes the first `room` octets of `value`, and zeros as far as `room` goes beyond it.
///
/// # Safety
///
/// `target` may be written to for `room` octets, and `value` is plain data.
pub(crate) unsafe fn write_prefix<T: Copy>(target: *mut T, room: usize, value: &T) {
    let known = room.min(size_of::<T>());
    // SAFETY: `target` has `room` octets.
    unsafe { target.cast::<u8>().write_bytes(0, room) };
    // SAFETY: not more than either side has; the caller's memory does not overlap our value.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping(ptr::from_ref(value).cast(), known) };
}

/// Capabilities beyond the first 32, numbered as the kernel's `ib_uverbs_device_cap_flags`: flush to where
/// all see it, flush to persistent memory (of what can be registered for that), atomic write.
const CAPS_EX: u64 = 1 << 38 | (CAN_PERSIST as u64) << 39 | 1 << 40;

/// The fault guard protects each access to registered memory, so every operation works with memory on demand.
const UD_ODP_CAPS: u32 =
    abi::IBV_ODP_SUPPORT_SEND | abi::IBV_ODP_SUPPORT_RECV | abi::IBV_ODP_SUPPORT_SRQ_RECV;
const UC_ODP_CAPS: u32 = UD_ODP_CAPS | abi::IBV_ODP_SUPPORT_WRITE;
const RC_ODP_CAPS: u32 = UC_ODP_CAPS
    | abi::IBV_ODP_SUPPORT_READ
    | abi::IBV_ODP_SUPPORT_ATOMIC
    | abi::IBV_ODP_SUPPORT_FLUSH
    | abi::IBV_ODP_SUPPORT_ATOMIC_WRITE;
const ODP_CAPS: abi::ibv_odp_caps = abi::ibv_odp_caps {
    general_caps: (abi::IBV_ODP_SUPPORT | abi::IBV_ODP_SUPPORT_IMPLICIT) as u64,
    per_transport_caps: abi::ibv_odp_caps_per_transport_caps {
        rc_odp_caps: RC_ODP_CAPS,
        uc_odp_caps: UC_ODP_CAPS,
        ud_odp_caps: UD_ODP_CAPS,
    },
};

/// The capabilities of a RoCE device.
const CAPS: u32 = abi::IBV_DEVICE_CURR_QP_STATE_MOD
    | abi::IBV_DEVICE_PORT_ACTIVE_EVENT
    | abi::IBV_DEVICE_BAD_PKEY_CNTR
    | abi::IBV_DEVICE_BAD_QKEY_CNTR
    | abi::IBV_DEVICE_UD_AV_PORT_ENFORCE
    | abi::IBV_DEVICE_SYS_IMAGE_GUID
    | abi::IBV_DEVICE_RC_RNR_NAK_GEN
    | abi::IBV_DEVICE_MANAGED_FLOW_STEERING
    | abi::IBV_DEVICE_SRQ_RESIZE
    | abi::IBV_DEVICE_XRC
    | IWARP_CAPS;
/// The capabilities of an iWARP device: siw reports the same without memory windows.
const IWARP_CAPS: u32 = abi::IBV_DEVICE_MEM_WINDOW
    // Local invalidate, SEND with invalidate and type 2 windows; fast registration is the kernel's own.
    | abi::IBV_DEVICE_MEM_MGT_EXTENSIONS
    | abi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;

fn device_attr(attr: &DeviceAttr) -> abi::ibv_device_attr {
    let iwarp = attr.kind == LinkKind::Siw;
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    abi::ibv_device_attr {
        fw_ver: c_text(&attr.fw_ver),
        node_guid: u64::from_ne_bytes(attr.node_guid),
        sys_image_guid: u64::from_ne_bytes(attr.sys_image_guid),
        max_mr_size: attr.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: if iwarp { IWARP_VENDOR_ID } else { VENDOR_ID },
        vendor_part_id: if iwarp { IWARP_VENDOR_PART_ID } else { 0 },
        hw_ver: 0,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: if iwarp { IWARP_CAPS } else { CAPS },
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        // Atomics of RFC 7306 depend on the peer, so nobody can rely on them.
        atomic_cap: if iwarp { abi::IBV_ATOMIC_NONE } else { abi::IBV_ATOMIC_HCA },
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: u16::from(!iwarp),
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

export! {
    /// Limits and identity of the device. Every limit can be reached; 0 stands for what this version does not
    /// have. A forked child may ask its parent's context.
    pub fn ibv_query_device(
        context: Object<abi::ibv_context>,
        device_attr: Ptr<abi::ibv_device_attr>,
    ) -> c_int = call::code |owner| {
        let (_, live) = context.once_opened(owner)?;
        judged(live.engine.judge(Verb::QueryDevice))?;
        let device_attr = device_attr.some()?;
        let attr = self::device_attr(&live.engine.attr());
        device_attr.write(attr);
        Ok(())
    }

    /// The slot behind `ibv_query_device_ex`. `attr_size` is the program's own size of the structure. A
    /// forked child may ask its parent's context.
    pub(crate) fn query_device_ex(
        context: Object<abi::ibv_context>,
        input: ConstPtr<abi::ibv_query_device_ex_input>,
        attr: Ptr<abi::ibv_device_attr_ex>,
        attr_size: usize,
    ) -> c_int = call::code |owner| {
        let (_, live) = context.once_opened(owner)?;
        judged(live.engine.judge(Verb::QueryDevice))?;
        // The first version ended with comp_mask.
        let least = std::mem::offset_of!(abi::ibv_device_attr_ex, comp_mask) + size_of::<u32>();
        if attr.is_null() || attr_size < least {
            return Err(Errno::EINVAL);
        }
        if input.read().is_ok_and(|input| input.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        let limits = live.engine.attr();
        let plain = device_attr(&limits);
        // SAFETY: all of it is integers, for which zero is a value.
        let mut all: abi::ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = CORE_CLOCK;
        all.cq_mod_caps = abi::ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
        all.max_dm_size = limits.max_dm_size;
        all.device_cap_flags_ex = u64::from(plain.device_cap_flags);
        if limits.kind == LinkKind::Rxe {
            all.odp_caps = ODP_CAPS;
            all.xrc_odp_caps = RC_ODP_CAPS;
            all.device_cap_flags_ex |= CAPS_EX;
        }
        all.phys_port_cnt_ex = u32::from(plain.phys_port_cnt);
        all.orig_attr = plain;
        // SAFETY: `attr_size` is the program's own size of its structure; ours is plain data.
        unsafe { write_prefix(attr.as_ptr(), attr_size, &all) };
        Ok(())
    }

    /// The slot behind `ibv_query_rt_values_ex`: the clock of completion timestamps. As with cards all of it
    /// is in `tv_nsec`, since programs take that for the raw count; `comp_mask` says what was filled in.
    pub(crate) fn query_rt_values(
        context: Object<abi::ibv_context>,
        values: Ptr<abi::ibv_values_ex>,
    ) -> c_int = call::code |owner| {
        let (_, live) = context.opened(owner)?;
        let values = values.some()?;
        let known = get!(values.comp_mask) & abi::IBV_VALUES_MASK_RAW_CLOCK;
        set!(values.comp_mask = known);
        if known != 0 {
            let raw = live.engine.raw_clock().as_nanos();
            set!(values.raw_clock.tv_sec = 0);
            set!(values.raw_clock.tv_nsec = libc::c_long::try_from(raw).unwrap_or(libc::c_long::MAX));
        }
        Ok(())
    }
}

/// The rate of a port in Gb/s, cut to whole ones, as sysfs gives it: by the codes, since programs multiply
/// those.
pub(crate) fn gigabits(speed: Option<u32>) -> u32 {
    let (width, speed) = width_and_speed(speed.unwrap_or(DEFAULT_SPEED));
    // In units of 100 Mb/s: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
    const LANE: [u32; 9] = [25, 50, 100, 100, 140, 250, 500, 1000, 2000];
    let lane = LANE.get(speed.trailing_zeros() as usize).copied().unwrap_or(0);
    lane * if width == 1 { 1 } else { 4 } / 10
}

fn port_attr(port: &PortAttr) -> abi::ibv_port_attr {
    let (active_width, speed) = port.width_and_speed();
    let iwarp = port.kind == LinkKind::Siw;
    abi::ibv_port_attr {
        state: port.state as abi::ibv_port_state,
        max_mtu: port.max_mtu as abi::ibv_mtu,
        active_mtu: port.active_mtu as abi::ibv_mtu,
        gid_tbl_len: c_int::try_from(port.gid_tbl_len).unwrap_or(c_int::MAX),
        port_cap_flags: if iwarp {
            abi::IBV_PORT_CM_SUP | abi::IBV_PORT_DEVICE_MGMT_SUP
        } else {
            abi::IBV_PORT_CM_SUP
        },
        max_msg_sz: port.max_msg_sz,
        bad_pkey_cntr: port.bad_pkeys.min(0xffff) as u32,
        qkey_viol_cntr: port.bad_qkeys.min(0xffff) as u32,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: u8::from(!iwarp),
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width,
        // The octet ends at NDR; a program that knows of more reads active_speed_ex.
        active_speed: u8::try_from(speed).unwrap_or(128),
        phys_state: port.phys_state as u8,
        link_layer: abi::IBV_LINK_LAYER_ETHERNET as u8,
        flags: if iwarp { 0 } else { abi::IBV_QPF_GRH_REQUIRED },
        port_cap_flags2: 0,
        active_speed_ex: speed,
    }
}

/// Writes the attributes of a port.
///
/// # Safety
///
/// `to` is NULL or writable for `room` octets.
unsafe fn port_to(
    owner: &Owner,
    context: Object<abi::ibv_context>,
    port: u8,
    to: *mut abi::ibv_port_attr,
    room: usize,
) -> Result<(), Errno> {
    let (_, live) = context.opened(owner)?;
    judged(live.engine.judge(Verb::QueryPort))?;
    if to.is_null() {
        return Err(Errno::EINVAL);
    }
    let attr = port_attr(&live.engine.port(port)?);
    // SAFETY: not NULL, so `to` has `room` octets; ours is plain data.
    unsafe { write_prefix(to, room, &attr) };
    Ok(())
}

export! {
    /// The slot behind the inline `ibv_query_port`; `port_attr_len` is the program's own size of the
    /// structure.
    pub(crate) fn query_port(
        context: Object<abi::ibv_context>,
        port_num: u8,
        port_attr: Ptr<abi::ibv_port_attr>,
        port_attr_len: usize,
    ) -> c_int = call::code |owner| {
        // SAFETY: `port_attr_len` is the program's own size of its structure.
        unsafe { port_to(owner, context, port_num, port_attr.as_ptr(), port_attr_len) }
    }

    /// The exported `ibv_query_port`, for programs whose structure ends before `port_cap_flags2`.
    pub fn ibv_query_port(
        context: Object<abi::ibv_context>,
        port_num: u8,
        port_attr: Ptr<abi::_compat_ibv_port_attr>,
    ) -> c_int = call::code |owner| {
        // SAFETY: the old structure has these octets, and is the head of today's.
        unsafe { port_to(owner, context, port_num, port_attr.as_ptr().cast(), SHORT_PORT_ATTR) }
    }

    /// The speed of the port in 100 Mb/s: the netdev's, 100 Gb/s for one without a wire, as `lo`, and 40 Gb/s
    /// for one that does not say.
    pub fn ibv_query_port_speed(
        context: Object<abi::ibv_context>,
        port_num: u32,
        port_speed: Ptr<u64>,
    ) -> c_int = call::code |owner| {
        let (_, live) = context.opened(owner)?;
        let port = live.engine.port(narrow_port(port_num)?)?;
        let port_speed = port_speed.some()?;
        let speed = u64::from(port.speed.unwrap_or(DEFAULT_SPEED)) / 100;
        port_speed.write(speed);
        Ok(())
    }
}

fn narrow_port(port: u32) -> Result<u8, Errno> {
    u8::try_from(port).map_err(|_| Errno::EINVAL)
}

/// The GID table's entry, `None` if it is empty; EINVAL beyond the table and for other ports than 1.
fn gid_entry(
    owner: &Owner,
    context: Object<abi::ibv_context>,
    port: u32,
    index: u32,
) -> Result<Option<GidEntry>, Errno> {
    let (_, live) = context.opened(owner)?;
    judged(live.engine.judge(Verb::QueryGid))?;
    live.engine.check_port(narrow_port(port)?)?;
    Ok(live.engine.gid(index)?)
}

export! {
    /// The GID at `index`; zeros for an entry that is empty.
    pub fn ibv_query_gid(
        context: Object<abi::ibv_context>,
        port_num: u8,
        index: c_int,
        gid: Ptr<abi::ibv_gid>,
    ) -> c_int = call::minus_one |owner| {
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        let entry = gid_entry(owner, context, u32::from(port_num), index)?;
        let gid = gid.some()?;
        let raw = entry.map_or([0; 16], |entry| entry.gid.0);
        gid.write(abi::ibv_gid { raw });
        Ok(0)
    }

    /// The type of the GID at `index` as sysfs tells it: 0 for RoCE v1 and for an empty entry, 1 for RoCE v2.
    pub fn ibv_query_gid_type(
        context: Object<abi::ibv_context>,
        port_num: u8,
        index: u32,
        gid_type: Ptr<u32>,
    ) -> c_int = call::minus_one |owner| {
        let entry = gid_entry(owner, context, u32::from(port_num), index)?;
        let gid_type = gid_type.some()?;
        let v2 = entry.is_some_and(|entry| entry.gid_type == GidType::RoceV2);
        gid_type.write(u32::from(v2));
        Ok(0)
    }
}

/// The entry as the verbs have it. The kernel names no interface of an iWARP entry.
fn c_gid_entry(entry: &GidEntry, iwarp: bool) -> abi::ibv_gid_entry {
    abi::ibv_gid_entry {
        gid: abi::ibv_gid { raw: entry.gid.0 },
        gid_index: u32::from(entry.index),
        port_num: 1,
        gid_type: entry.gid_type as abi::ibv_gid_type,
        ndev_ifindex: if iwarp { 0 } else { entry.ifindex },
    }
}

export! {
    /// The entry of the GID table at `gid_index`; ENODATA if it is empty.
    pub fn _ibv_query_gid_ex(
        context: Object<abi::ibv_context>,
        port_num: u32,
        gid_index: u32,
        entry: Ptr<abi::ibv_gid_entry>,
        flags: u32,
        entry_size: usize,
    ) -> c_int = call::code |owner| {
        let found = gid_entry(owner, context, port_num, gid_index)?;
        if flags != 0 || entry.is_null() || entry_size < size_of::<abi::ibv_gid_entry>() {
            return Err(Errno::EINVAL);
        }
        let (_, live) = context.opened(owner)?;
        let found = c_gid_entry(&found.ok_or(Errno::ENODATA)?, live.engine.is_iwarp());
        // SAFETY: `entry_size` is the program's own size of its structure; ours is plain data.
        unsafe { write_prefix(entry.as_ptr(), entry_size, &found) };
        Ok(())
    }

    /// All entries that are not empty; their count, or a negative errno: EINVAL if they do not fit into
    /// `max_entries`.
    pub fn _ibv_query_gid_table(
        context: Object<abi::ibv_context>,
        entries: Ptr<abi::ibv_gid_entry>,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize = call::negative |owner| {
        let (_, live) = context.opened(owner)?;
        if flags != 0
            || entry_size < size_of::<abi::ibv_gid_entry>()
            || (entries.is_null() && max_entries > 0)
        {
            return Err(Errno::EINVAL);
        }
        let table = live.engine.gid_table();
        if table.len() > max_entries {
            return Err(Errno::EINVAL);
        }
        for (index, entry) in table.iter().enumerate() {
            let place = entries.as_ptr().wrapping_byte_add(index * entry_size);
            // SAFETY: the table has no more than `max_entries`, each of which has `entry_size` octets; ours
            // is plain data.
            unsafe { write_prefix(place, entry_size, &c_gid_entry(entry, live.engine.is_iwarp())) };
        }
        Ok(table.len())
    }
}

fn pkey(live: &Live<LiveContext>, port: u8, index: c_int) -> Result<u16, Errno> {
    live.engine.check_port(port)?;
    if index == 0 && !live.engine.is_iwarp() { Ok(DEFAULT_PKEY) } else { Err(Errno::EINVAL) }
}

export! {
    /// The P_Key at `index`, in network order. The table has one, and none on iWARP.
    pub fn ibv_query_pkey(
        context: Object<abi::ibv_context>,
        port_num: u8,
        index: c_int,
        pkey: Ptr<abi::be16>,
    ) -> c_int = call::minus_one |owner| {
        let (_, live) = context.opened(owner)?;
        let value = self::pkey(&live, port_num, index)?;
        let pkey = pkey.some()?;
        pkey.write(value.to_be());
        Ok(0)
    }

    /// The index of a P_Key given in network order, -1 if the table does not have it.
    pub fn ibv_get_pkey_index(context: Object<abi::ibv_context>, port_num: u8, pkey: abi::be16) -> c_int = call::minus_one |owner| {
        let (_, live) = context.opened(owner)?;
        let value = self::pkey(&live, port_num, 0)?;
        if value.to_be() == pkey { Ok(0) } else { Err(Errno::EINVAL) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_have_their_codes() {
        for (mbps, want) in [
            (10, (1, 1)),
            (1_000, (1, 1)),
            (10_000, (1, 8)),
            (25_000, (1, 32)),
            (DEFAULT_SPEED, (2, 8)),
            (100_000, (2, 32)),
            (400_000, (2, 128)),
            (800_000, (2, 256)),
            (u32::MAX, (2, 256)),
        ] {
            assert_eq!(width_and_speed(mbps), want, "{mbps}");
        }
    }

    #[test]
    fn rates_are_those_of_the_codes() {
        for (mbps, want) in [
            (10, 2),
            (10_000, 10),
            (20_000, 20),
            (25_000, 25),
            (DEFAULT_SPEED, 40),
            (400_000, 400),
            (u32::MAX, 800),
        ] {
            assert_eq!(gigabits(Some(mbps)), want, "{mbps}");
        }
        assert_eq!(gigabits(None), 40);
    }
}
