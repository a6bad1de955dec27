//! The context that all connections over a device share.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferroce_engine::DeviceInfo;

use crate::shared::Open;
use crate::{Context, Error};

/// A context that connections share. It is closed with the last of them.
struct Entry {
    /// The process that opened it: a forked child has contexts of its own.
    pid: u32,
    device: u32,
    node_guid: [u8; 8],
    open: Weak<Open>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context of `device` that connections share, opened if no connection holds one.
pub(super) fn shared(device: &DeviceInfo) -> Result<Context, Error> {
    let pid = process::id();
    let find = |entries: &[Entry]| {
        let same =
            |entry: &&Entry| (entry.pid, entry.device, entry.node_guid) == (pid, device.id, device.node_guid);
        entries.iter().filter(same).find_map(|entry| entry.open.upgrade())
    };
    if let Some(open) = find(&entries()) {
        return Ok(Context { open });
    }
    // Opened without the lock: a fork meanwhile must not leave it locked in the child.
    let fresh = Context::open(&device.name)?;
    let mut entries = entries();
    if let Some(open) = find(&entries) {
        return Ok(Context { open });
    }
    entries.retain(|entry| entry.open.strong_count() > 0);
    let open = Arc::downgrade(&fresh.open);
    entries.push(Entry { pid, device: device.id, node_guid: device.node_guid, open });
    Ok(fresh)
}
