//! Attributes of queue pairs, between C's structures and the engine's.

use ferroce_abi as abi;
use ferroce_engine::{AhAttr, MAX_INLINE, MAX_QP_WR, MAX_SGE, QpAccess, QpAttr, QpAttrMask, QpCaps, QpState};
use ferroce_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

use crate::errno::Errno;

pub(crate) fn state(state: abi::ibv_qp_state) -> Result<QpState, Errno> {
    match state {
        abi::IBV_QPS_RESET => Ok(QpState::Reset),
        abi::IBV_QPS_INIT => Ok(QpState::Init),
        abi::IBV_QPS_RTR => Ok(QpState::Rtr),
        abi::IBV_QPS_RTS => Ok(QpState::Rts),
        abi::IBV_QPS_SQD => Ok(QpState::Sqd),
        abi::IBV_QPS_SQE => Ok(QpState::Sqe),
        abi::IBV_QPS_ERR => Ok(QpState::Error),
        _ => Err(Errno::EINVAL),
    }
}

/// The members that `mask` names; the others may hold anything and keep their defaults.
pub(crate) fn engine_attr(attr: &abi::ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, Errno> {
    let mut to = QpAttr::default();
    if mask.contains(QpAttrMask::STATE) {
        to.state = state(attr.qp_state)?;
    }
    if mask.contains(QpAttrMask::CUR_STATE) {
        to.cur_state = state(attr.cur_qp_state)?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).map_err(|_| Errno::EINVAL)?;
        to.path_mtu = PathMtu::try_from(code).map_err(|_| Errno::EINVAL)?;
    }
    if mask.contains(QpAttrMask::AV) {
        to.ah = engine_ah(&attr.ah_attr);
    }
    to.qkey = Qkey::new(attr.qkey);
    to.rq_psn = Psn::new(attr.rq_psn);
    to.sq_psn = Psn::new(attr.sq_psn);
    to.dest_qp = Qpn::new(attr.dest_qp_num);
    to.access = QpAccess::from_bits_retain(attr.qp_access_flags);
    to.pkey_index = attr.pkey_index;
    to.port_num = attr.port_num;
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    to.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    Ok(to)
}

pub(crate) fn engine_ah(ah: &abi::ibv_ah_attr) -> AhAttr {
    // SAFETY: every member of the union is sixteen octets.
    let dgid = unsafe { ah.grh.dgid.raw };
    AhAttr {
        is_global: ah.is_global != 0,
        dgid: Gid(dgid),
        flow_label: ah.grh.flow_label,
        sgid_index: ah.grh.sgid_index,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
        sl: ah.sl,
        port_num: ah.port_num,
    }
}

/// The size of a queue for which a program asks for `asked` entries: the next power of two, as its ring has
/// it anyway. A request above `max` stays what it is, and is refused.
pub(crate) fn rounded(asked: u32, max: u32) -> u32 {
    if asked == 0 || asked > max { asked } else { asked.next_power_of_two().min(max) }
}

/// The sizes that a queue pair gets, at least those that the program asks for. The SGEs of a send work
/// request and its inline data share their room in rxe and in cards, and programs rely on it (rxe 6.12,
/// `rxe_qp_init_req`).
pub(crate) fn granted(asked: &abi::ibv_qp_cap) -> QpCaps {
    const SGE: u32 = size_of::<abi::ibv_sge>() as u32;
    let (sges, inline) = (asked.max_send_sge, asked.max_inline_data);
    let fits = sges <= MAX_SGE && inline <= MAX_INLINE;
    QpCaps {
        max_send_wr: rounded(asked.max_send_wr, MAX_QP_WR),
        max_recv_wr: rounded(asked.max_recv_wr, MAX_QP_WR),
        max_send_sge: if fits { sges.max(inline / SGE).min(MAX_SGE) } else { sges },
        max_recv_sge: asked.max_recv_sge,
        max_inline: if fits { inline.max(sges * SGE).min(MAX_INLINE) } else { inline },
    }
}

/// The sizes as C has them.
pub(crate) fn c_caps(caps: &QpCaps) -> abi::ibv_qp_cap {
    abi::ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

pub(crate) fn c_ah(ah: &AhAttr) -> abi::ibv_ah_attr {
    abi::ibv_ah_attr {
        grh: abi::ibv_global_route {
            dgid: abi::ibv_gid { raw: ah.dgid.0 },
            flow_label: ah.flow_label,
            sgid_index: ah.sgid_index,
            hop_limit: ah.hop_limit,
            traffic_class: ah.traffic_class,
        },
        dlid: 0,
        sl: ah.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(ah.is_global),
        port_num: ah.port_num,
    }
}

/// The attributes as C has them. There is no alternate path.
pub(crate) fn c_attr(attr: &QpAttr, caps: &QpCaps) -> abi::ibv_qp_attr {
    abi::ibv_qp_attr {
        qp_state: attr.state as abi::ibv_qp_state,
        cur_qp_state: attr.cur_state as abi::ibv_qp_state,
        path_mtu: attr.path_mtu as abi::ibv_mtu,
        path_mig_state: abi::IBV_MIG_MIGRATED,
        qkey: attr.qkey.value(),
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qp.value(),
        qp_access_flags: attr.access.bits(),
        cap: c_caps(caps),
        ah_attr: c_ah(&attr.ah),
        alt_ah_attr: c_ah(&AhAttr { is_global: false, port_num: 0, ..AhAttr::default() }),
        pkey_index: attr.pkey_index,
        alt_pkey_index: 0,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}
