//! The backlog of a listener: connections whose request has not come, and requests without an answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::manager::Manager;
use crate::engine::Engine;
use crate::half_open::HalfOpen;

/// Requests that may wait for an answer, at most.
const MOST_WAITING: usize = 1024;
/// Connections of TCP whose request has not come.
const MOST_SILENT: usize = 1024;

/// Requests that may wait for an answer if the program says `backlog`.
pub(super) fn most_waiting(backlog: u16) -> usize {
    match usize::from(backlog) {
        0 => MOST_WAITING,
        backlog => backlog.min(MOST_WAITING),
    }
}

/// The knowledge of a listener that its set-ups share.
pub(super) struct Listening {
    pub(super) engine: Arc<Engine>,
    pub(super) manager: Arc<Manager>,
    most: usize,
    waiting: Arc<AtomicUsize>,
    silent: Mutex<HalfOpen<Arc<SilentNumber>>>,
    closed: AtomicBool,
}

/// The number of a set-up whose request has not come, and whether it had to make way.
#[derive(Debug)]
struct SilentNumber(u64, AtomicBool);

/// A place among the connections whose request has not come.
pub(super) struct Silent {
    number: Arc<SilentNumber>,
    listening: Arc<Listening>,
}

impl Silent {
    pub(super) fn listening(&self) -> &Arc<Listening> {
        &self.listening
    }

    /// Whether the connection had to make way for another one, or the listener is closed.
    pub(super) fn is_over(&self) -> bool {
        self.number.1.load(Ordering::SeqCst) || self.listening.is_closed()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.listening.silent.lock().remove(|other| Arc::ptr_eq(other, &self.number));
    }
}

impl Listening {
    pub(super) fn new(engine: &Arc<Engine>, manager: &Arc<Manager>, most: usize) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            manager: Arc::clone(manager),
            most,
            waiting: Arc::default(),
            silent: Mutex::new(HalfOpen::new(MOST_SILENT)),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// A place for the set-up with this number, before its request has come. The silent set-up that makes way
    /// ends.
    pub(super) fn hear(self: &Arc<Self>, number: u64, from: IpAddr) -> Silent {
        let number = Arc::new(SilentNumber(number, AtomicBool::new(false)));
        let ended = self.silent.lock().push(from, Arc::clone(&number));
        if let Some(ended) = ended {
            ended.1.store(true, Ordering::SeqCst);
            self.manager.cancel(ended.0);
        }
        Silent { number, listening: Arc::clone(self) }
    }

    /// A place in the backlog, if one is free. Only the background thread takes places.
    pub(super) fn place(&self) -> Option<Place> {
        let free = self.waiting.load(Ordering::Relaxed) < self.most;
        free.then(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            Place(Arc::clone(&self.waiting))
        })
    }
}

/// A place in the backlog of a listener: a request that is not answered yet.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
