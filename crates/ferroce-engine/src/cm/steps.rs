//! The steps of a connection's queue pair from RESET to RTS: the arguments of [`crate::Qp::modify`].

use ferroce_cm::attributes::ConnectedAttr;
use ferroce_proto::bring_up_mask;

use crate::{AhAttr, QpAccess, QpAttr, QpAttrMask, QpState, Service};

/// To INIT, before both ends have said enough. Every connected service takes the same attributes here.
pub fn init(access: QpAccess) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
    (attr, bring_up_mask(Service::Rc, QpState::Init))
}

/// The access flags for INIT, with or without reads and atomics of the peer (Linux 6.12,
/// `cm_init_qp_init_attr`).
pub fn access(remote_reads: bool) -> QpAccess {
    if !remote_reads {
        return QpAccess::REMOTE_WRITE;
    }
    QpAccess::REMOTE_WRITE
        | QpAccess::REMOTE_READ
        | QpAccess::REMOTE_ATOMIC
        | QpAccess::FLUSH_GLOBAL
        | QpAccess::FLUSH_PERSISTENT
}

/// To INIT, RTR or RTS. The attributes beyond those of the mask are set as well, for `rdma_init_qp_attr`.
pub fn step(service: Service, to: QpState, connected: &ConnectedAttr, ah: AhAttr) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        state: to,
        ah,
        access: access(connected.remote_reads),
        dest_qp: connected.dest_qp,
        path_mtu: connected.path_mtu,
        rq_psn: connected.rq_psn,
        sq_psn: connected.sq_psn,
        max_rd_atomic: connected.max_rd_atomic,
        max_dest_rd_atomic: connected.max_dest_rd_atomic,
        min_rnr_timer: connected.min_rnr_timer,
        timeout: connected.timeout,
        retry_cnt: connected.retry_cnt,
        rnr_retry: connected.rnr_retry,
        selective_repeat: connected.selective_repeat,
        ..QpAttr::default()
    };
    (attr, bring_up_mask(service, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_reads_bring_atomics_and_flushes() {
        assert_eq!(access(false), QpAccess::REMOTE_WRITE);
        assert!(
            access(true).contains(QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC | QpAccess::REMOTE_WRITE)
        );
    }
}
