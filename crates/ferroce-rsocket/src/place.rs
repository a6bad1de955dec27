//! The devices of rsockets.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::RsocketError;
use ferroce_engine::{Context, DeviceInfo, Pd};
use ferroce_host::PerProcess;

/// An open device and the domain of all rsockets on it.
pub(super) struct Home {
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
}

static HOMES: PerProcess<Mutex<Vec<Arc<Home>>>> = PerProcess::new();

/// The device, opened once and then kept.
pub(super) fn home(device: &DeviceInfo) -> Result<Arc<Home>, RsocketError> {
    let mut homes = HOMES.get().lock();
    if let Some(home) = homes.iter().find(|home| home.context.info().id == device.id) {
        return Ok(Arc::clone(home));
    }
    let context = Context::open(&device.name)?;
    let pd = context.alloc_pd().map_err(RsocketError::resource)?;
    let home = Arc::new(Home { context, pd });
    homes.push(Arc::clone(&home));
    Ok(home)
}
