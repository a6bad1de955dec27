use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::RsocketError;
use ferroce_engine::{Context, DeviceInfo, Pd};
use ferroce_host::PerProcess;

/// An open device, and the protection domain of all rsockets on it.
pub(super) struct Device {
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
}

static DEVICES: PerProcess<Mutex<Vec<Arc<Device>>>> = PerProcess::new();

/// Returns the device; the first call opens it for the life of the process.
pub(super) fn open(info: &DeviceInfo) -> Result<Arc<Device>, RsocketError> {
    let mut devices = DEVICES.get().lock();
    if let Some(device) = devices.iter().find(|device| device.context.info().id == info.id) {
        return Ok(Arc::clone(device));
    }
    let context = Context::open(&info.name)?;
    let pd = context.alloc_pd().map_err(RsocketError::resource)?;
    let device = Arc::new(Device { context, pd });
    devices.push(Arc::clone(&device));
    Ok(device)
}
