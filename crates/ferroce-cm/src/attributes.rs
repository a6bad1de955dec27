//! The values that two ends agree on, and the attributes of their queue pairs. All are pure functions of
//! their arguments.

use core::time::Duration;

use ferroce_wire::cm::{CmTime, Rep, Req, Transport};
use ferroce_wire::{PathMtu, Psn, Qpn};

use super::extension;

/// "As many as both can" in a program's parameters (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
pub const MAX_DEPTH: u8 = 0xff;

/// More reads and atomics than the device can have outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a depth of {asked}, the device has {limit}")]
pub struct DepthError {
    /// The number in the program's parameters.
    pub asked: u8,
    pub limit: u8,
}

/// The depth for a REQ or REP: the program's number, the device's limit for [`MAX_DEPTH`], or the peer's
/// `offer` if that is less (given by the REP's sender only).
///
/// # Errors
///
/// The program's number exceeds the device's limit.
pub fn depth(asked: u8, limit: u8, offer: Option<u8>) -> Result<u8, DepthError> {
    match asked {
        MAX_DEPTH => Ok(limit.min(offer.unwrap_or(limit))),
        asked if asked > limit => Err(DepthError { asked, limit }),
        asked => Ok(asked),
    }
}

/// Local ACK timeout from the target's ACK delay and the packet life time: about the delay and twice the life
/// time (IBTA 12.7, as Linux 6.12 rounds it in `cm.c`).
pub fn ack_timeout(ack_delay: CmTime, packet_life: CmTime) -> CmTime {
    let (delay, trip) = (ack_delay.code(), packet_life.code().saturating_add(1));
    // The sum of two powers of two: the larger, and one more if they are about the same.
    let code = if trip >= delay {
        trip + u8::from(delay >= trip - 1)
    } else {
        delay + u8::from(trip >= delay.saturating_sub(1))
    };
    CmTime::saturating(code)
}

/// The flow label of a path to a port if the program gives none: 20 bits that differ by connection, as in the
/// REQs of Linux.
pub const fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (source_port as u32 * 31 + destination_port as u32) & 0xf_ffff
}

/// The service level of a path: the three most significant bits of its type of service (Linux 6.12 `cma.c`).
pub const fn service_level(type_of_service: u8) -> u8 {
    type_of_service >> 5
}

/// The time to wait for the answer to a message: twice the packet life time plus the peer's response time
/// (IBTA 12.7).
pub const fn response_time(packet_life: CmTime, peer: CmTime) -> Duration {
    let there_and_back = packet_life.duration().saturating_mul(2);
    there_and_back.saturating_add(peer.duration())
}

/// The attributes of one end's queue pair on its way to RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_init_qp_attr")]
pub struct ConnectedAttr {
    pub dest_qp: Qpn,
    /// The peer may use reads and atomics: there are responder resources for them (Linux 6.12,
    /// `cm_init_qp_init_attr`).
    pub remote_reads: bool,
    /// Code of the path MTU, as the REQ proposed it.
    pub path_mtu: PathMtu,
    /// The PSN that this end announced to the peer.
    pub rq_psn: Psn,
    /// The PSN that the peer announced to this end.
    pub sq_psn: Psn,
    /// Reads and atomics that this end may have outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the delay after an RNR NAK: 0, the longest.
    pub min_rnr_timer: u8,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Both ends agreed to it, see [`super::extension`].
    pub selective_repeat: bool,
}

/// The attributes for the end that sent the REQ and received the REP. `None` if the REQ's path MTU is
/// invalid.
pub fn active(req: &Req, rep: &Rep, packet_life: CmTime) -> Option<ConnectedAttr> {
    Some(ConnectedAttr {
        dest_qp: replied_qpn(req.transport, rep),
        remote_reads: rep.initiator_depth != 0,
        path_mtu: PathMtu::try_from(req.path_mtu).ok()?,
        rq_psn: req.starting_psn,
        sq_psn: rep.starting_psn,
        max_rd_atomic: rep.responder_resources,
        max_dest_rd_atomic: rep.initiator_depth,
        min_rnr_timer: 0,
        timeout: ack_timeout(rep.target_ack_delay, packet_life).code(),
        retry_cnt: req.retry_count,
        rnr_retry: rep.rnr_retry_count,
        selective_repeat: extension::is_agreed(req.ece, rep.ece),
    })
}

/// The attributes for the end that received the REQ. `psn`, `initiator_depth` and `responder_resources` are
/// those of its REP, which may not have been sent yet. Without selective repeat, which depends on the REP.
/// `None` if the REQ's path MTU is invalid.
pub fn passive(req: &Req, psn: Psn, initiator_depth: u8, responder_resources: u8) -> Option<ConnectedAttr> {
    Some(ConnectedAttr {
        dest_qp: req.qpn,
        remote_reads: req.initiator_depth != 0,
        path_mtu: PathMtu::try_from(req.path_mtu).ok()?,
        rq_psn: psn,
        sq_psn: req.starting_psn,
        max_rd_atomic: initiator_depth,
        max_dest_rd_atomic: responder_resources,
        min_rnr_timer: 0,
        timeout: req.primary.ack_timeout.code(),
        retry_cnt: req.retry_count,
        rnr_retry: req.rnr_retry_count,
        selective_repeat: false,
    })
}

/// The queue pair of a REP's sender. XRC carries it in another field.
pub fn replied_qpn(transport: Transport, rep: &Rep) -> Qpn {
    if transport == Transport::XRC { rep.eecn } else { rep.qpn }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(code: u8) -> CmTime {
        CmTime::new(code).unwrap()
    }

    #[test]
    fn ack_timeouts_as_linux_rounds_them() {
        for (delay, life, want) in [
            // The values of a capture: rxe's delay of 15, life 16 and 18.
            (15, 16, 17),
            (15, 18, 19),
            (0, 0, 2),
            (0, 1, 2),
            (0, 2, 3),
            (16, 15, 17),
            (17, 15, 18),
            (18, 15, 18),
            (31, 0, 31),
            (31, 31, 31),
            (0, 31, 31),
        ] {
            assert_eq!(ack_timeout(time(delay), time(life)).code(), want, "{delay} {life}");
        }
    }

    #[test]
    fn response_times() {
        // 2 · 2^16 + 2^20 units of 4.096 µs, which Linux rounds to 4608 ms.
        assert_eq!(response_time(time(16), time(20)).as_millis(), 4831);
        assert_eq!(response_time(time(0), time(0)).as_nanos(), 3 * 4096);
        assert!(response_time(time(31), time(31)) < Duration::from_secs(30_000));
    }

    #[test]
    fn depths() {
        for (asked, limit, offer, want) in [
            (4, 128, None, Ok(4)),
            (0, 128, None, Ok(0)),
            (128, 128, Some(1), Ok(128)),
            (129, 128, None, Err(DepthError { asked: 129, limit: 128 })),
            (MAX_DEPTH, 128, None, Ok(128)),
            (MAX_DEPTH, 128, Some(3), Ok(3)),
            (MAX_DEPTH, 16, Some(200), Ok(16)),
        ] {
            assert_eq!(depth(asked, limit, offer), want);
        }
    }
}
