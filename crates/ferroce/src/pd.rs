//! Protection domains.

use std::sync::Arc;

use crate::shared::Domain;
use crate::{Context, Error};

/// A protection domain: queue pairs access only memory of their own domain. Clones are the same one.
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<Domain>,
}

impl Context {
    /// Creates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        let open = Arc::clone(&self.open);
        Ok(ProtectionDomain { shared: Arc::new(Domain { pd: open.context.alloc_pd()?, open }) })
    }
}

impl ProtectionDomain {
    /// Returns the open device of the domain.
    pub fn context(&self) -> Context {
        Context { open: Arc::clone(&self.shared.open) }
    }
}
