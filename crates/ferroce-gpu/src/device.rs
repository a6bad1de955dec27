//! A context of a GPU with the streams and buffers of our copies.

use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_host::PerProcess;
use parking_lot::Mutex;

use crate::buffer::{Buffer, Pool};
use crate::driver::{Context, Described, Driver, Entered, Handle};
use crate::{Gone, Refusal};

/// A context, and what copies in it need. It is never freed: regions name it.
pub(crate) struct Device {
    context: Context,
    /// See [`Driver::context_id`].
    id: u64,
    /// Copies to the device, in the order in which they began.
    inward: Handle,
    /// Copies from the device.
    outward: Handle,
    pool: Pool,
    /// Serves atomics one by one, and small copies if all other buffers are in use.
    reserve: Mutex<Option<Buffer>>,
    /// The context has ended, or a failure made it useless.
    ended: AtomicBool,
}

/// The contexts that memory was registered of.
static DEVICES: PerProcess<Mutex<Vec<&'static Device>>> = PerProcess::new();

impl Device {
    /// The device of the memory that the driver described.
    ///
    /// # Errors
    /// The driver makes no streams or buffers in the context.
    pub(crate) fn of(driver: &'static Driver, memory: &Described) -> Result<&'static Self, Refusal> {
        let handle = match memory.context {
            Some(handle) => handle,
            None => driver.primary(memory.ordinal)?,
        };
        let id = driver.context_id(handle);
        let mut devices = DEVICES.get().lock();
        let is_it = |known: &&&Self| (known.context.handle, known.id) == (handle, id) && !known.has_ended();
        if let Some(known) = devices.iter().find(is_it) {
            if memory.context.is_none() {
                driver.release_primary(memory.ordinal);
            }
            return Ok(known);
        }
        let device = Self::new(Context { driver, handle }, id).inspect_err(|_| {
            if memory.context.is_none() {
                driver.release_primary(memory.ordinal);
            }
        })?;
        devices.push(device);
        Ok(device)
    }

    fn new(context: Context, id: u64) -> Result<&'static Self, Refusal> {
        let entered = context.enter()?;
        let (inward, outward) = (entered.stream()?, entered.stream()?);
        drop(entered);
        let pool = Pool::new(context)?;
        let (reserve, ended) = (Mutex::default(), AtomicBool::new(false));
        let device: &'static Self =
            Box::leak(Box::new(Self { context, id, inward, outward, pool, reserve, ended }));
        *device.reserve.lock() = device.pool.take();
        Ok(device)
    }

    /// See [`Driver::describe`].
    pub(crate) fn describe(&self, addr: u64) -> Option<Described> {
        self.context.driver.describe(addr)
    }

    /// Makes its context that of this thread.
    pub(crate) fn enter(&self) -> Result<Entered<'static>, Gone> {
        self.context.enter().inspect_err(|_| self.end())
    }

    pub(crate) fn inward(&self) -> Handle {
        self.inward
    }

    pub(crate) fn outward(&self) -> Handle {
        self.outward
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `act` with the buffer that is kept for this, which others wait for meanwhile.
    pub(crate) fn with_reserve<T>(
        &self,
        act: impl FnOnce(&mut Buffer) -> Result<T, Gone>,
    ) -> Result<T, Gone> {
        const NONE: Gone = Gone { call: "cuMemHostRegister", code: 0 };
        self.reserve.lock().as_mut().map_or(Err(NONE), act)
    }

    /// Further registrations of this context make streams anew.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits for all copies that have begun.
    pub(crate) fn drain(&self) {
        let drained = self.enter().and_then(|entered| {
            entered.wait_for_stream(self.inward)?;
            entered.wait_for_stream(self.outward)
        });
        if let Err(error) = drained {
            // No copy runs in a context that has ended.
            tracing::debug!(%error, "copies of a GPU cannot be waited for");
        }
    }
}
