use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::RsocketError;
use ferroce_engine::{
    CompletionChannel, CompletionQueue, Context, DeviceInfo, Pd, Qp, QpCaps, QpInit, Service,
};
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

/// A queue pair with a completion queue and a channel of its own.
pub(super) struct Queues {
    pub(super) qp: Arc<Qp>,
    pub(super) cq: Arc<CompletionQueue>,
    pub(super) channel: Arc<CompletionChannel>,
}

impl Queues {
    pub(super) fn new(device: &Device, service: Service, caps: QpCaps) -> Result<Self, RsocketError> {
        let Device { context, pd } = device;
        let channel = context.create_channel().map_err(RsocketError::resource)?;
        let entries = caps.max_send_wr + caps.max_recv_wr;
        let cq = context.create_cq(entries, 0, Some(&channel), 0).map_err(RsocketError::resource)?;
        let init = QpInit {
            service,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps,
            sq_sig_all: true,
            user: 0,
        };
        match pd.create_qp(init) {
            Ok(qp) => Ok(Self { qp, cq, channel }),
            Err(error) => {
                end(&cq, &channel);
                Err(RsocketError::resource(error))
            }
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.qp.destroy();
        end(&self.cq, &self.channel);
    }
}

fn end(cq: &CompletionQueue, channel: &CompletionChannel) {
    if cq.destroy().is_err() || channel.destroy().is_err() {
        tracing::error!("a completion queue of an rsocket is still in use");
    }
}
