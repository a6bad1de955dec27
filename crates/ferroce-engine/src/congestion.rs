//! The congestion control of this process's queue pairs, see [`ferroce_proto::CongestionControl`].

use std::sync::OnceLock;

use ferroce_host::environment;
use ferroce_ipc::LinkSettings;
use ferroce_proto::CongestionControl;
use ferroce_wire::Flow;

/// The mode of queue pairs on a device with these settings.
pub(crate) fn mode(settings: &LinkSettings) -> CongestionControl {
    if settings.congestion { of_process() } else { CongestionControl::Off }
}

/// `FERROCE_CONGESTION`.
fn of_process() -> CongestionControl {
    static MODE: OnceLock<CongestionControl> = OnceLock::new();
    *MODE.get_or_init(|| match environment::text("FERROCE_CONGESTION").as_deref() {
        Some("off") => CongestionControl::Off,
        Some("react" | "") | None => CongestionControl::React,
        Some("ecn") => CongestionControl::Full,
        Some(other) => {
            tracing::warn!("FERROCE_CONGESTION={other} is none of off, react, ecn: react is used");
            CongestionControl::React
        }
    })
}

/// Whether packets are read with the marks of their IP header.
pub(crate) fn reads_marks() -> bool {
    of_process() == CongestionControl::Full
}

/// The traffic class of a connection whose address vector has this one. Where marks are answered, routers are
/// to mark instead of to drop, unless the program chose the bits itself.
pub(crate) fn traffic_class(settings: &LinkSettings, of_address: u8) -> u8 {
    let chosen = of_address & Flow::CONGESTION_EXPERIENCED != 0;
    if mode(settings) == CongestionControl::Full && !chosen {
        of_address | Flow::ECN_CAPABLE
    } else {
        of_address
    }
}
