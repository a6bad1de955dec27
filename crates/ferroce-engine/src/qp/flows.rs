//! A raw packet queue pair's frames, and which it asks for.

use std::sync::Arc;

use ferroce_datapath::packet::Rule;
use ferroce_paths::frames::{FlowId, FramePort};

use super::Qp;
use crate::Context;
use crate::error::{CreateQpError, FlowError};
use crate::lane::{Attachment, Core};

impl Qp {
    /// The packet socket of a raw packet queue pair on the device's interface.
    pub(super) fn open_port(context: &Context) -> Result<Arc<FramePort>, CreateQpError> {
        let device = context.info();
        FramePort::open(device.ifindex)
            .map_err(|source| CreateQpError::Frames { netdev: device.netdev, source })
    }

    /// Adds a rule. In RTR and later states the queue pair receives each frame that `rule` matches, once, even
    /// if several rules match it. Other receivers of the frame, such as the system's network stack, still get
    /// it.
    #[doc(alias = "ibv_create_flow")]
    pub fn add_flow(&self, rule: Rule) -> Result<FlowId, FlowError> {
        // The lock is kept, so that no rule is added to what another thread destroys.
        let core = self.endpoint.core.lock();
        let port = frames(&core).ok_or(FlowError::Service)?;
        if core.destroyed {
            return Err(FlowError::Destroyed);
        }
        port.add(rule)
    }

    /// Takes back [`Self::add_flow`]; a second time nothing happens.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn remove_flow(&self, id: FlowId) {
        if let Some(port) = self.frames() {
            port.remove(id);
        }
    }

    pub(super) fn remove_flows(&self) {
        if let Some(port) = self.frames() {
            port.rules().iter().for_each(|(id, _)| port.remove(*id));
        }
    }

    /// The number of rules of a queue pair.
    pub(super) fn flows(core: &Core) -> usize {
        frames(core).map_or(0, |port| port.rules().len())
    }

    fn frames(&self) -> Option<Arc<FramePort>> {
        frames(&self.endpoint.core.lock()).cloned()
    }
}

/// The port that raw packets leave from; `None` for other services.
fn frames(core: &Core) -> Option<&Arc<FramePort>> {
    match &core.attachment {
        Attachment::Frames(frames) => Some(&frames.port),
        _ => None,
    }
}
