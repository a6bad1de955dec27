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

/// Returns the device; the first call opens it for the life of the process, or of the device.
pub(super) fn open(info: &DeviceInfo) -> Result<Arc<Device>, RsocketError> {
    let mut devices = DEVICES.get().lock();
    let same = |device: &&Arc<Device>| device.context.info().id == info.id && !device.context.is_dead();
    if let Some(device) = devices.iter().find(same) {
        return Ok(Arc::clone(device));
    }
    let context = Context::open(&info.name)?;
    let pd = context.alloc_pd().map_err(RsocketError::resource)?;
    let device = Arc::new(Device { context, pd });
    devices.push(Arc::clone(&device));
    Ok(device)
}
