//! The thread that makes and ends connections of rsockets, and does what is due without any call.
//!
//! What the broker tells comes on the engine's background thread, which must not wait; here the broker may be asked.

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::waker::Waker;
use super::{Datagram, Stream};
use ferroce_engine::cm::{Event, EventKind, Sink, Target};
use ferroce_host::fork::Guarded;
use ferroce_host::{PerProcess, thread};

/// Something to do.
pub(super) enum Task {
    /// Something happened to a stream's port or connection.
    News(Weak<Stream>, EventKind),
    /// A listening stream has room for another connection.
    Room(Weak<Stream>),
    /// How often a stream shall say that it lives has changed.
    Keepalive(Weak<Stream>),
    /// A datagram socket's UDP socket shall be heard.
    Hear(Weak<Datagram>, Arc<Guarded<UdpSocket>>),
    /// Some are gone.
    Prune,
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
    let waker = Waker::alone()?;
    let own = Arc::clone(&waker);
    thread::spawn_quietly("ferroce-rsocket", move || run(service, &own))?;
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
    let mut heard = Heard::default();
    loop {
        let timeout = alive.run(Instant::now());
        heard.wait(waker, timeout);
        waker.clear();
        loop {
            let Some(task) = service.tasks.lock().pop_front() else { break };
            if catch_unwind(AssertUnwindSafe(|| perform(task, &mut alive, &mut heard))).is_err() {
                tracing::error!("a bug in ferroce: an rsocket's connection may hang");
            }
        }
    }
}

/// UDP sockets of datagram sockets. The sockets stay while the system looks at them; a number is closed when its rsocket
/// is pruned.
#[derive(Default)]
struct Heard(Vec<(Weak<Datagram>, Arc<Guarded<UdpSocket>>)>);

impl Heard {
    /// Waits until something came, and takes it.
    fn wait(&mut self, waker: &Waker, timeout: PollTimeout) {
        let of = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = self.0.iter().map(|(_, udp)| of(udp.as_fd())).collect();
        fds.push(of(waker.fd()));
        // Interrupted, it looks as well.
        let _ = poll(&mut fds, timeout);
        let came: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        for ((socket, _), _) in self.0.iter().zip(came).filter(|(_, came)| *came) {
            if let Some(socket) = socket.upgrade()
                && catch_unwind(AssertUnwindSafe(|| socket.hear())).is_err()
            {
                tracing::error!("a bug in ferroce: an rsocket lost a datagram");
            }
        }
    }
}

fn perform(task: Task, alive: &mut Keepalives, heard: &mut Heard) {
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
        Task::Hear(socket, udp) => heard.0.push((socket, udp)),
        Task::Prune => heard.0.retain(|(socket, _)| socket.strong_count() > 0),
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
