//! The ways of packets that the user of this process permits.

use std::sync::OnceLock;

use ferroce_host::environment;

/// The ways of packets that the environment of this process permits (`FERROCE_DATAPATH`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Permitted {
    /// Shared memory, AF_XDP where the device has it, and UDP sockets.
    All,
    /// UDP sockets alone.
    Udp,
    /// The rings to the broker alone.
    Packet,
}

impl Permitted {
    fn by_value(value: Option<&str>) -> Self {
        match value {
            Some("udp") => Self::Udp,
            Some("packet") => Self::Packet,
            Some("auto" | "shm" | "") | None => Self::All,
            Some(other) => {
                tracing::warn!("FERROCE_DATAPATH={other} is none of auto, shm, udp, packet: auto is used");
                Self::All
            }
        }
    }

    fn here() -> Self {
        static HERE: OnceLock<Permitted> = OnceLock::new();
        *HERE.get_or_init(|| Self::by_value(environment::text("FERROCE_DATAPATH").as_deref()))
    }
}

/// Whether this process asked for packets of RoCE v2 to go by the broker (`FERROCE_DATAPATH=packet`).
pub fn v2_by_broker() -> bool {
    Permitted::here() == Permitted::Packet
}

/// Whether this process sends to other programs of its host by shared memory: unless `FERROCE_DATAPATH` is
/// `udp` or `packet`.
pub fn pipes_wanted() -> bool {
    Permitted::here() == Permitted::All
}

/// Whether this process uses AF_XDP on devices that have it: unless `FERROCE_DATAPATH` is `udp` or `packet`.
pub fn xdp_wanted() -> bool {
    Permitted::here() == Permitted::All
}

#[cfg(test)]
mod tests {
    use super::Permitted::{self, All, Packet, Udp};

    #[test]
    fn the_environment_permits_ways() {
        let cases = [
            (None, All),
            (Some(""), All),
            (Some("auto"), All),
            (Some("shm"), All),
            (Some("nonsense"), All),
            (Some("udp"), Udp),
            (Some("packet"), Packet),
        ];
        for (value, want) in cases {
            assert_eq!(Permitted::by_value(value), want, "{value:?}");
        }
    }
}
