//! The state machine of queue pairs: which transitions there are and which attributes each needs and allows
//! (IBTA 10.3.1, table 91; as Linux checks it).

use ferroce_wire::{AckTimeout, RnrTimer};

use crate::{ModifyQpError, QpAttr, QpAttrMask, QpState, Service};

/// A transition of one service.
#[derive(Debug)]
pub(crate) struct Transition {
    from: QpState,
    to: QpState,
    required: QpAttrMask,
    optional: QpAttrMask,
}

// The abbreviations keep the table a table.
const PK: u32 = QpAttrMask::PKEY_INDEX.bits();
const PO: u32 = QpAttrMask::PORT.bits();
const QK: u32 = QpAttrMask::QKEY.bits();
const AF: u32 = QpAttrMask::ACCESS_FLAGS.bits();
const AV: u32 = QpAttrMask::AV.bits();
const MTU: u32 = QpAttrMask::PATH_MTU.bits();
const DQ: u32 = QpAttrMask::DEST_QPN.bits();
const RP: u32 = QpAttrMask::RQ_PSN.bits();
const DR: u32 = QpAttrMask::MAX_DEST_RD_ATOMIC.bits();
const RN: u32 = QpAttrMask::MIN_RNR_TIMER.bits();
const TO: u32 = QpAttrMask::TIMEOUT.bits();
const RC: u32 = QpAttrMask::RETRY_CNT.bits();
const RR: u32 = QpAttrMask::RNR_RETRY.bits();
const SP: u32 = QpAttrMask::SQ_PSN.bits();
const QR: u32 = QpAttrMask::MAX_QP_RD_ATOMIC.bits();
const AP: u32 = QpAttrMask::ALT_PATH.bits();
const CS: u32 = QpAttrMask::CUR_STATE.bits();
const PM: u32 = QpAttrMask::PATH_MIG_STATE.bits();
const EN: u32 = QpAttrMask::EN_SQD_ASYNC_NOTIFY.bits();

const fn row(from: QpState, to: QpState, required: u32, optional: u32) -> Transition {
    Transition {
        from,
        to,
        required: QpAttrMask::from_bits_retain(required),
        optional: QpAttrMask::from_bits_retain(optional),
    }
}

use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

const RC_TABLE: &[Transition] = &[
    row(Reset, Init, PK | PO | AF, 0),
    row(Init, Init, 0, PK | PO | AF),
    row(Init, Rtr, AV | MTU | DQ | RP | DR | RN, AP | AF | PK),
    row(Rtr, Rts, TO | RC | RR | SP | QR, CS | AP | AF | RN | PM),
    row(Rts, Rts, 0, CS | AF | AP | PM | RN),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, CS | AP | AF | RN | PM),
    row(Sqd, Sqd, 0, PO | AV | TO | RC | RR | QR | DR | AP | AF | PK | RN | PM),
];

const UC_TABLE: &[Transition] = &[
    row(Reset, Init, PK | PO | AF, 0),
    row(Init, Init, 0, PK | PO | AF),
    row(Init, Rtr, AV | MTU | DQ | RP, AP | AF | PK),
    row(Rtr, Rts, SP, CS | AP | AF | PM),
    row(Rts, Rts, 0, CS | AF | AP | PM),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, CS | AP | AF | PM),
    row(Sqd, Sqd, 0, AV | AP | AF | PK | PM),
    row(Sqe, Rts, 0, CS | AF),
];

const UD_TABLE: &[Transition] = &[
    row(Reset, Init, PK | PO | QK, 0),
    row(Init, Init, 0, PK | PO | QK),
    row(Init, Rtr, 0, PK | QK),
    row(Rtr, Rts, SP, CS | QK),
    row(Rts, Rts, 0, CS | QK),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, CS | QK),
    row(Sqd, Sqd, 0, PK | QK),
    row(Sqe, Rts, 0, CS | QK),
];

/// As Linux has it: the port is all there is to say.
const RAW_PACKET_TABLE: &[Transition] = &[
    row(Reset, Init, PO, 0),
    row(Init, Rtr, 0, 0),
    row(Rtr, Rts, 0, 0),
    row(Rts, Rts, 0, 0),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, 0),
    row(Sqd, Sqd, 0, 0),
    row(Sqe, Rts, 0, 0),
];

const XRC_INITIATOR_TABLE: &[Transition] = &[
    row(Reset, Init, PK | PO | AF, 0),
    row(Init, Init, 0, PK | PO | AF),
    row(Init, Rtr, AV | MTU | DQ | RP, AP | AF | PK),
    row(Rtr, Rts, TO | RC | RR | SP | QR, CS | AP | AF | PM),
    row(Rts, Rts, 0, CS | AF | AP | PM),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, CS | AP | AF | PM),
    row(Sqd, Sqd, 0, PO | AV | TO | RC | RR | QR | AP | AF | PK | PM),
];

const XRC_TARGET_TABLE: &[Transition] = &[
    row(Reset, Init, PK | PO | AF, 0),
    row(Init, Init, 0, PK | PO | AF),
    row(Init, Rtr, AV | MTU | DQ | RP | DR | RN, AP | AF | PK),
    row(Rtr, Rts, TO | SP, CS | AP | AF | RN | PM),
    row(Rts, Rts, 0, CS | AF | AP | PM | RN),
    row(Rts, Sqd, 0, EN),
    row(Sqd, Rts, 0, CS | AP | AF | RN | PM),
    row(Sqd, Sqd, 0, PO | AV | TO | DR | AP | AF | PK | RN | PM),
];

/// The way to RTS is a connection's: [`super::QueuePair::begin_stream`]. librdmacm names the attributes of
/// InfiniBand on the way to INIT.
const IWARP_TABLE: &[Transition] =
    &[row(Reset, Init, 0, PK | PO | AF), row(Init, Init, 0, PK | PO | AF), row(Rts, Rts, 0, CS | AF)];

/// From any state; of the attributes only STATE.
const RESET_ROW: Transition = row(Reset, Reset, 0, 0);
/// From any state but RESET.
const ERROR_ROW: Transition = row(Error, Error, 0, 0);

/// Finds a transition of a service.
pub(crate) fn transition(service: Service, from: QpState, to: QpState) -> Option<&'static Transition> {
    match to {
        Reset => return Some(&RESET_ROW),
        Error if from != Reset => return Some(&ERROR_ROW),
        Init | Rtr | Rts | Sqd | Sqe | Error => {}
    }
    let table = match service {
        Service::Rc => RC_TABLE,
        Service::Uc => UC_TABLE,
        Service::Ud => UD_TABLE,
        Service::RawPacket => RAW_PACKET_TABLE,
        Service::XrcInitiator => XRC_INITIATOR_TABLE,
        Service::XrcTarget => XRC_TARGET_TABLE,
        Service::Iwarp => IWARP_TABLE,
    };
    table.iter().find(|row| row.from == from && row.to == to)
}

/// The attributes that a queue pair needs on its way from RESET over INIT and RTR to RTS for the step to
/// `to`, its state among them. For a state off that way, the state alone.
pub fn bring_up_mask(service: Service, to: QpState) -> QpAttrMask {
    let from = match to {
        Rtr => Init,
        Rts => Rtr,
        Reset | Init | Sqd | Sqe | Error => Reset,
    };
    let required = transition(service, from, to).map_or(QpAttrMask::empty(), |row| row.required);
    required | QpAttrMask::STATE
}

/// The mask without the attributes of the half that an XRC queue pair does not have. Programs name them as on
/// RC (perftest does), and Linux's system call drops them before it looks at the table.
pub(crate) const fn half_of(service: Service, mask: QpAttrMask) -> QpAttrMask {
    let other_half = match service {
        Service::XrcInitiator => DR | RN,
        Service::XrcTarget => QR | RC | RR,
        Service::Rc | Service::Uc | Service::Ud | Service::RawPacket | Service::Iwarp => 0,
    };
    mask.difference(QpAttrMask::from_bits_retain(other_half))
}

/// Whether a modify may be applied, all of it; the state to go to.
pub(crate) fn check(
    service: Service,
    from: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<QpState, ModifyQpError> {
    let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
    if mask.contains(QpAttrMask::CUR_STATE)
        && (attr.cur_state != from || !matches!(from, Rtr | Rts | Sqd | Sqe))
    {
        return Err(ModifyQpError::CurrentState { actual: from, claimed: attr.cur_state });
    }
    let row = transition(service, from, to).ok_or(ModifyQpError::Transition { from, to })?;
    let missing = row.required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyQpError::Missing { from, to, missing });
    }
    let extra = mask.difference(row.required | row.optional | QpAttrMask::STATE);
    if !extra.is_empty() {
        return Err(ModifyQpError::NotAllowed { from, to, extra });
    }
    check_values(attr, mask)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError> {
    let path = &attr.path;
    let path_fits = path.source.is_ipv4() == path.destination.is_ipv4()
        && !path.destination.is_unspecified()
        && !path.destination.is_multicast();
    for (attribute, fits, why) in [
        (QpAttrMask::AV, path_fits, "the addresses are not those of two hosts, of one family"),
        (QpAttrMask::ALT_PATH, false, "RoCE has no alternate paths"),
    ] {
        if mask.contains(attribute) && !fits {
            return Err(ModifyQpError::Unusable { attribute, why });
        }
    }
    let rules = [
        (QpAttrMask::PORT, attr.port_num == 1, attr.port_num.into(), "1 only"),
        (QpAttrMask::PKEY_INDEX, attr.pkey_index == 0, attr.pkey_index.into(), "0 only"),
        (QpAttrMask::TIMEOUT, AckTimeout::new(attr.timeout).is_some(), attr.timeout.into(), "0 to 31"),
        (
            QpAttrMask::MIN_RNR_TIMER,
            RnrTimer::new(attr.min_rnr_timer).is_some(),
            attr.min_rnr_timer.into(),
            "0 to 31",
        ),
        (QpAttrMask::RETRY_CNT, attr.retry_cnt <= 7, attr.retry_cnt.into(), "0 to 7"),
        (QpAttrMask::RNR_RETRY, attr.rnr_retry <= 7, attr.rnr_retry.into(), "0 to 7"),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic <= QpAttr::MAX_RD_ATOMIC,
            attr.max_rd_atomic.into(),
            "0 to 128",
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic <= QpAttr::MAX_RD_ATOMIC,
            attr.max_dest_rd_atomic.into(),
            "0 to 128",
        ),
    ];
    match rules.into_iter().find(|(attribute, fits, ..)| mask.contains(*attribute) && !fits) {
        Some((attribute, _, value, range)) => Err(ModifyQpError::Value { attribute, value, range }),
        None => Ok(()),
    }
}

/// Copies the attributes that the mask names, except the state.
pub(crate) fn apply(target: &mut QpAttr, from: &QpAttr, mask: QpAttrMask) {
    macro_rules! copy {
        ($($bit:ident $field:ident;)*) => {
            $(if mask.contains(QpAttrMask::$bit) { target.$field = from.$field; })*
        };
    }
    copy! {
        EN_SQD_ASYNC_NOTIFY en_sqd_async_notify;
        ACCESS_FLAGS access;
        PKEY_INDEX pkey_index;
        PORT port_num;
        QKEY qkey;
        AV ah;
        AV path;
        PATH_MTU path_mtu;
        TIMEOUT timeout;
        RETRY_CNT retry_cnt;
        RNR_RETRY rnr_retry;
        RQ_PSN rq_psn;
        SQ_PSN sq_psn;
        MAX_QP_RD_ATOMIC max_rd_atomic;
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic;
        MIN_RNR_TIMER min_rnr_timer;
        DEST_QPN dest_qp;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

    /// All transitions of all services, as the table of the reference has them.
    #[test]
    fn transitions_of_every_service() {
        let mut text = String::new();
        for service in [
            Service::Rc,
            Service::Uc,
            Service::Ud,
            Service::RawPacket,
            Service::XrcInitiator,
            Service::XrcTarget,
            Service::Iwarp,
        ] {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                let Some(row) = transition(service, from, to) else { continue };
                assert!(!row.required.intersects(row.optional), "{service:?} {from:?} {to:?}");
                let names =
                    |mask: QpAttrMask| mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
                writeln!(
                    text,
                    "{service:?} {from:?}-{to:?}: {} [{}]",
                    names(row.required),
                    names(row.optional)
                )
                .unwrap();
            }
        }
        if std::env::var_os("FERROCE_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/qp/transitions.txt");
            std::fs::write(path, &text).unwrap();
        } else {
            assert_eq!(text, include_str!("transitions.txt"), "FERROCE_BLESS=1 accepts it");
        }
    }
}
