//! What a process has once, and a forked child anew.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::stream::RsocketError;
use crate::{Context, DeviceInfo, Pd, fork};

/// A value that each process has for itself. A forked child begins with a new one, whatever lock of the parent's was held;
/// the parent's stays behind in its memory.
pub struct PerProcess<T> {
    first: OnceLock<Box<Node<T>>>,
}

struct Node<T> {
    epoch: u64,
    value: T,
    next: OnceLock<Box<Node<T>>>,
}

impl<T: Default> PerProcess<T> {
    /// Made when first asked for.
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// This process's.
    pub fn get(&self) -> &T {
        fork::install();
        let epoch = fork::epoch();
        let fresh = || Box::new(Node { epoch, value: T::default(), next: OnceLock::new() });
        let mut node = self.first.get_or_init(fresh);
        while node.epoch != epoch {
            node = node.next.get_or_init(fresh);
        }
        &node.value
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An open device and the domain of all rsockets on it.
pub(super) struct Home {
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
}

static HOMES: PerProcess<Mutex<Vec<Arc<Home>>>> = PerProcess::new();

/// The device, opened once and then kept.
pub(super) fn home(device: &DeviceInfo) -> Result<Arc<Home>, RsocketError> {
    let mut homes = HOMES.get().lock();
    if let Some(home) = homes.iter().find(|home| home.context.device_id() == device.id) {
        return Ok(Arc::clone(home));
    }
    let context = Context::open(&device.name)?;
    let pd = context.alloc_pd().map_err(RsocketError::resource)?;
    let home = Arc::new(Home { context, pd });
    homes.push(Arc::clone(&home));
    Ok(home)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_value_a_process() {
        static COUNT: PerProcess<AtomicU32> = PerProcess::new();
        COUNT.get().fetch_add(1, Ordering::Relaxed);
        assert_eq!(COUNT.get().fetch_add(1, Ordering::Relaxed), 1);
    }
}
