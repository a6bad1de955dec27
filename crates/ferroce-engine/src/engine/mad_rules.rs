//! Rules for management datagrams: the way from the plan to the broker, and back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ferroce_ipc::MadFaultReport;
use ferroce_paths::faults::{self, MadBroker};

use super::Engine;

struct MadRules(Weak<Engine>);

/// The engine holds a slot: the broker gets the rules in force, now and when they change.
pub(super) fn serve(engine: &Arc<Engine>) {
    faults::serve(Box::new(MadRules(Arc::downgrade(engine))));
}

impl MadBroker for MadRules {
    fn give(&self, rules: String) -> Result<u32, String> {
        let gone = || "this process has no device any more".to_owned();
        self.0.upgrade().ok_or_else(gone)?.broker.give_mad_rules(rules)
    }

    fn ask(&self, limit: Duration) -> Option<Vec<MadFaultReport>> {
        self.0.upgrade()?.broker.ask_mad_faults(limit)
    }
}
