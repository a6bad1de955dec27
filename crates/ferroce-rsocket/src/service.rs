//! The thread that makes and ends connections of rsockets, and sends keepalives.
//!
//! Events of connections arrive on the engine's background thread, which must not block; this thread may wait
//! for the broker.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::waker::Waker;
use ferroce_host::fork::Guarded;
use ferroce_host::{PerProcess, thread};

pub(super) enum Task {
    /// Work that may wait for the broker.
    Work(Box<dyn FnOnce() + Send>),
    /// The keepalive interval of the stream at this address has changed.
    Keepalive(usize, Keepalive),
    /// Calls `receive` from now on when datagrams arrive on a datagram socket's UDP socket.
    Receive(Arc<Guarded<UdpSocket>>, Receive),
    /// Ends that for a datagram socket that is dropped.
    Forget(Arc<Guarded<UdpSocket>>),
}

#[derive(Default)]
struct Service {
    tasks: Mutex<VecDeque<Task>>,
    waker: OnceLock<Arc<Waker>>,
    starting: Mutex<()>,
}

static SERVICE: PerProcess<Service> = PerProcess::new();

/// Starts the thread unless it runs.
pub(super) fn start() -> io::Result<()> {
    let service = SERVICE.get();
    let _starting = service.starting.lock();
    if service.waker.get().is_some() {
        return Ok(());
    }
    let waker = Waker::alone()?;
    let own = Arc::clone(&waker);
    thread::spawn_quietly("ferroce-rsocket", move || run(service, &own))?;
    // Setting cannot fail: `starting` is locked and the cell was empty.
    let _ = service.waker.set(waker);
    Ok(())
}

/// Queues a task for the thread.
pub(super) fn push(task: Task) {
    let service = SERVICE.get();
    service.tasks.lock().push_back(task);
    if let Some(waker) = service.waker.get() {
        waker.wake();
    }
}

fn run(service: &Service, waker: &Waker) {
    let mut alive = Keepalives::default();
    let mut sockets = UdpSockets::default();
    loop {
        let timeout = alive.run(Instant::now());
        sockets.wait(waker, timeout);
        waker.clear();
        loop {
            let Some(task) = service.tasks.lock().pop_front() else { break };
            if catch_unwind(AssertUnwindSafe(|| perform(task, &mut alive, &mut sockets))).is_err() {
                tracing::error!("a bug in ferroce: an rsocket's connection may hang");
            }
        }
    }
}

/// UDP sockets of datagram sockets. Each stays open until its rsocket is forgotten, because `poll` uses its
/// descriptor.
#[derive(Default)]
struct UdpSockets(Vec<(Arc<Guarded<UdpSocket>>, Receive)>);

/// Receives the datagrams of an rsocket that still exists.
type Receive = Box<dyn Fn() + Send>;

impl UdpSockets {
    /// Waits for datagrams or tasks, and receives the datagrams.
    fn wait(&mut self, waker: &Waker, timeout: PollTimeout) {
        let of = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = self.0.iter().map(|(udp, _)| of(udp.as_fd())).collect();
        fds.push(of(waker.fd()));
        // After EINTR the sockets are examined as well.
        let _ = poll(&mut fds, timeout);
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        for ((_, receive), _) in self.0.iter().zip(ready).filter(|(_, ready)| *ready) {
            if catch_unwind(AssertUnwindSafe(receive)).is_err() {
                tracing::error!("a bug in ferroce: an rsocket lost a datagram");
            }
        }
    }
}

fn perform(task: Task, alive: &mut Keepalives, sockets: &mut UdpSockets) {
    match task {
        Task::Work(work) => work(),
        Task::Keepalive(stream, keepalive) => alive.set(stream, keepalive),
        Task::Receive(udp, receive) => sockets.0.push((udp, receive)),
        Task::Forget(gone) => sockets.0.retain(|(udp, _)| !Arc::ptr_eq(udp, &gone)),
    }
}

/// Sends the keepalive of a stream if the argument is true. Returns the interval of its keepalives, or `None`
/// if it wants none or was closed.
type Keepalive = Box<dyn Fn(bool) -> Option<Duration> + Send>;

/// Streams with a keepalive interval, by address, each with its next due time.
#[derive(Default)]
struct Keepalives(BTreeMap<usize, (Keepalive, Instant)>);

impl Keepalives {
    fn set(&mut self, stream: usize, keepalive: Keepalive) {
        self.0.remove(&stream);
        if let Some(due) = keepalive(false).and_then(|interval| Instant::now().checked_add(interval)) {
            self.0.insert(stream, (keepalive, due));
        }
    }

    /// Sends the keepalives that are due, and returns the time until the next.
    fn run(&mut self, now: Instant) -> PollTimeout {
        self.0.retain(|_, (keepalive, due)| {
            let is_due = *due <= now;
            let Some(interval) = keepalive(is_due) else { return false };
            let next = if is_due { now.checked_add(interval) } else { Some(*due) };
            next.is_some_and(|next| {
                *due = next;
                true
            })
        });
        let next = self.0.values().map(|(_, due)| due.saturating_duration_since(now)).min();
        // Rounded up, so that the thread does not wake just before the time.
        let next = next.map(|next| next + Duration::from_millis(1));
        next.map_or(PollTimeout::NONE, |next| PollTimeout::try_from(next).unwrap_or(PollTimeout::MAX))
    }
}
