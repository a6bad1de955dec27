//! Whether queue pairs of this process repeat selectively, see [`ferroce_proto::SelectiveRepeat`].

use std::sync::OnceLock;

use ferroce_cm::extension;
use ferroce_host::environment;
use ferroce_proto::SelectiveRepeat;
use ferroce_wire::cm::Ece;

/// `FERROCE_SELECTIVE_REPEAT`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// Never.
    Off,
    /// Where connection management agrees on it.
    Cm,
    /// There, and offered by a reserved bit of packets elsewhere.
    On,
}

fn setting() -> Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    *SETTING.get_or_init(|| match environment::text("FERROCE_SELECTIVE_REPEAT").as_deref() {
        Some("off") => Setting::Off,
        Some("on") => Setting::On,
        Some("cm" | "") | None => Setting::Cm,
        Some(other) => {
            tracing::warn!("FERROCE_SELECTIVE_REPEAT={other} is none of off, cm, on: cm is used");
            Setting::Cm
        }
    })
}

/// The mode of a queue pair for its next connection; `agreed` by connection management.
pub(crate) fn mode(agreed: bool) -> SelectiveRepeat {
    match setting() {
        Setting::Off => SelectiveRepeat::Off,
        Setting::Cm | Setting::On if agreed => SelectiveRepeat::Agreed,
        Setting::Cm => SelectiveRepeat::Off,
        Setting::On => SelectiveRepeat::Offered,
    }
}

/// The ECE fields of a REQ for a queue pair of ours.
pub fn offer() -> Ece {
    if setting() == Setting::Off { Ece::default() } else { extension::offer() }
}

/// The ECE fields of the REP to a REQ with these, for a queue pair of ours.
pub fn answer(req: Ece) -> Ece {
    if setting() == Setting::Off { Ece::default() } else { extension::answer(req) }
}
