//! Futures for reliable connections, without a runtime of their own.
//!
//! A [`Driver`] has one descriptor. The program's runtime waits until the descriptor is readable and calls
//! [`Driver::turn`], which wakes the futures whose work requests completed. With the feature `tokio`,
//! `Driver::spawn_on_tokio` does so.
//!
//! An operation takes a [`Buffer`] by value and returns it with its result. Dropping the future of an
//! operation frees nothing early: the work request continues, and the buffer returns to its [`BufferPool`]
//! when the work request has completed.
//!
//! ```no_run
//! use ferroce::aio::{BufferPool, Driver, Setup};
//! use ferroce::cm::{Connector, EndOptions};
//!
//! # async fn hello() -> Result<(), Box<dyn std::error::Error>> {
//! let peer = "192.0.2.1:7471".parse()?;
//! let driver = Driver::new(&Connector::device_for(peer)?)?; // A task of the runtime calls its `turn`.
//! let pool = BufferPool::new(&driver.context().protection_domain()?, 8, 4096)?;
//!
//! let options = EndOptions::default().domain(pool.domain().clone());
//! let setup = Setup::to(&driver, peer, &options)?;
//! setup.post_recv(pool.take().await)?;
//! let endpoint = setup.connect(b"").await?;
//!
//! let mut buffer = pool.take().await;
//! buffer[..5].copy_from_slice(b"hello");
//! let buffer = endpoint.send(buffer, 5).await?;
//! let answer = endpoint.recv().await?;
//! println!("{} octets", answer.len());
//! endpoint.post_recv(answer.into_buffer())?;
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! The thread that polls an operation for the first time sends its packets. The engine's background thread
//! receives packets. If one thread takes the events promptly, 16 in a row, packets wake that thread directly,
//! and `turn` receives them. The module starts no thread.
//!
//! A child of `fork` may drop the objects of its parent, which stay as they are; it must not use them.

mod buffer;
mod driver;
mod end;
mod endpoint;
mod failure;
mod operation;
mod owner;
mod received;
mod setup;
#[cfg(feature = "tokio")]
mod tokio;
mod waiters;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use buffer::{Buffer, BufferPool, Take};
pub use driver::Driver;
pub use endpoint::Endpoint;
pub use failure::{Failed, Failure};
pub use operation::{Atomic, Operation, Recv};
pub use received::Received;
pub use setup::{Connecting, Listener, Setup};

/// No state that the module's mutexes protect is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
