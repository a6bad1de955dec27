//! The steps of a connection's queue pair: what [`crate::Qp::modify`] is given on the way to RTS.

use ferroce_proto::cm::attributes::ConnectedAttr;

use crate::{AhAttr, QpAccess, QpAttr, QpAttrMask, QpState, Service};

/// To INIT: at once, or with what the peer may do if that is known.
pub fn init(access: QpAccess) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr { qp_state: QpState::Init, access, pkey_index: 0, port_num: 1, ..QpAttr::default() };
    (attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)
}

/// To RTR.
pub fn rtr(service: Service, connected: &ConnectedAttr, ah: AhAttr) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ah,
        dest_qp: connected.dest_qp,
        path_mtu: connected.path_mtu,
        rq_psn: connected.rq_psn,
        max_dest_rd_atomic: connected.max_dest_rd_atomic,
        min_rnr_timer: connected.min_rnr_timer,
        ..QpAttr::default()
    };
    let mask =
        QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    let reliable = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    (attr, if service == Service::Uc { mask } else { mask | reliable })
}

/// To RTS.
pub fn rts(service: Service, connected: &ConnectedAttr) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: connected.sq_psn,
        max_rd_atomic: connected.max_rd_atomic,
        timeout: connected.timeout,
        retry_cnt: connected.retry_cnt,
        rnr_retry: connected.rnr_retry,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    let reliable =
        QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
    (attr, if service == Service::Uc { mask } else { mask | reliable })
}
