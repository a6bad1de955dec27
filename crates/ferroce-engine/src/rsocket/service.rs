//! The thread that makes and ends connections of rsockets, and does what is due without any call.
//!
//! What the broker tells comes on the engine's background thread, which must not wait; here the broker may be asked.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::Stream;
use super::place::PerProcess;
use super::waker::Waker;
use crate::background;
use crate::cm::{Event, EventKind, Sink, Target};

/// Something to do.
pub(super) enum Task {
    /// Something happened to a stream's port or connection.
    News(Weak<Stream>, EventKind),
    /// A listening stream has room for another connection.
    Room(Weak<Stream>),
    /// How often a stream shall say that it lives has changed.
    Keepalive(Weak<Stream>),
}

#[derive(Default)]
struct Service {
    tasks: Mutex<VecDeque<Task>>,
    waker: OnceLock<Arc<Waker>>,
    starting: Mutex<()>,
}

static SERVICE: PerProcess<Service> = PerProcess::new();

/// Starts the thread, unless it runs.
pub(super) fn start() -> io::Result<()> {
    let service = SERVICE.get();
    let _starting = service.starting.lock();
    if service.waker.get().is_some() {
        return Ok(());
    }
    let waker = Waker::new()?;
    let own = Arc::clone(&waker);
    background::spawn_quietly("ferroce-rsocket", move || run(service, &own))?;
    // Nobody else sets it while the lock is held.
    let _ = service.waker.set(waker);
    Ok(())
}

/// Has the thread do something.
pub(super) fn push(task: Task) {
    let service = SERVICE.get();
    service.tasks.lock().push_back(task);
    if let Some(waker) = service.waker.get() {
        waker.wake();
    }
}

/// Whoever hears of a stream's port or connection.
pub(super) fn target(stream: &Weak<Stream>) -> Target {
    Target::new(Arc::new(Ear(stream.clone())), 0)
}

struct Ear(Weak<Stream>);

impl Sink for Ear {
    fn deliver(&self, event: Event) {
        push(Task::News(self.0.clone(), event.kind));
    }
}

fn run(service: &Service, waker: &Waker) {
    let mut alive = Keepalives::default();
    loop {
        let timeout = alive.run(Instant::now());
        // Interrupted, it looks as well.
        let _ = poll(&mut [PollFd::new(waker.fd(), PollFlags::POLLIN)], timeout);
        waker.clear();
        loop {
            let Some(task) = service.tasks.lock().pop_front() else { break };
            if catch_unwind(AssertUnwindSafe(|| perform(task, &mut alive))).is_err() {
                tracing::error!("a bug in ferroce: an rsocket's connection may hang");
            }
        }
    }
}

fn perform(task: Task, alive: &mut Keepalives) {
    match task {
        Task::News(stream, kind) => {
            // What an event of a stream that is gone brought ends with it.
            if let Some(stream) = stream.upgrade() {
                stream.news(kind);
            }
        }
        Task::Room(stream) => {
            if let Some(stream) = stream.upgrade() {
                stream.answer_waiting();
            }
        }
        Task::Keepalive(stream) => alive.set(stream),
    }
}

/// Streams that say now and then that they live.
#[derive(Default)]
struct Keepalives(Vec<(Weak<Stream>, Instant)>);

impl Keepalives {
    fn set(&mut self, stream: Weak<Stream>) {
        self.0.retain(|(known, _)| !known.ptr_eq(&stream));
        let interval = stream.upgrade().and_then(|stream| stream.keepalive());
        if let Some(due) = interval.and_then(|interval| Instant::now().checked_add(interval)) {
            self.0.push((stream, due));
        }
    }

    /// Says what is due; how long nothing will be.
    fn run(&mut self, now: Instant) -> PollTimeout {
        self.0.retain_mut(|(stream, due)| {
            if *due > now {
                return stream.strong_count() > 0;
            }
            let Some(stream) = stream.upgrade() else { return false };
            stream.say_alive();
            let next = stream.keepalive().and_then(|interval| now.checked_add(interval));
            next.is_some_and(|next| {
                *due = next;
                true
            })
        });
        let next = self.0.iter().map(|(_, due)| due.saturating_duration_since(now)).min();
        // Rounded up, lest it looks too early again and again.
        let next = next.map(|next| next + Duration::from_millis(1));
        next.map_or(PollTimeout::NONE, |next| PollTimeout::try_from(next).unwrap_or(PollTimeout::MAX))
    }
}
