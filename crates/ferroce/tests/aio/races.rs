//! Races between completions, the end of a connection, and the tasks of endpoints.

use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ferroce::aio::{BufferPool, Driver, Endpoint, Failure, Recv, Setup};
use ferroce::cm::{self, EndOptions};
use ferroce::error::{ErrorKind, Usage};
use ferroce::{QpOptions, RemoteMemory, Rkey, Status};

use super::common::{add_iwarp_device, address, in_namespace};
use super::{Bed, Task, bed, pending, poll, run, status};

const LIMIT: Duration = Duration::from_secs(20);
const ROUNDS: usize = 50;

/// As [`pending`], for a future that may be ready, which wakes its task.
fn pending_or_ready<F: Future + Unpin>(future: &mut F) -> Arc<Task> {
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    if Pin::new(future).poll(&mut Context::from_waker(&waker)).is_ready() {
        waker.wake();
    }
    task
}

/// Two connected endpoints, each with a driver of its own, and the pool of both. The second endpoint has this
/// number of receives posted.
fn apart(queues: QpOptions, receives: usize) -> ([Driver; 2], BufferPool, Endpoint, Endpoint) {
    let Bed { driver, pool, mut listener, options } = bed(queues);
    let other = Driver::new(driver.context()).unwrap();
    let mut asking = Setup::to(&other, listener.local_addr(), &options).unwrap().connect(b"");
    assert!(poll(&mut asking).is_pending());
    let setup = run(&driver, async {
        let request = listener.accept().await.unwrap();
        Setup::of(&driver, request, &options).unwrap()
    });
    for _ in 0..receives {
        setup.post_recv(pool.try_take().unwrap()).unwrap();
    }
    let mut answering = setup.connect(b"");
    assert!(poll(&mut answering).is_pending());
    let asking = run(&other, asking).unwrap();
    let answering = run(&driver, answering).unwrap();
    ([other, driver], pool, asking, answering)
}

/// The members of an epoll set: number of the descriptor, awaited events and token.
fn members(epoll: RawFd) -> Vec<(RawFd, u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("tfd:"));
    lines
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
            (words[1].parse().unwrap(), hex(words[3]) as u32, hex(words[5]))
        })
        .collect()
}

/// Waits until an event is queued in the completion channel of a driver, whose token is 0, or for its latest
/// connection, without a turn. The kernel shows EPOLLIN in the mask of a queue's own member meanwhile.
fn queued(driver: &Driver, connection: bool) {
    let start = Instant::now();
    loop {
        let all = members(driver.as_raw_fd());
        let token = if connection { all.iter().map(|(.., token)| *token).max().unwrap() } else { 0 };
        let (queue, ..) = all.iter().find(|(.., found)| *found == token).unwrap();
        if members(*queue).first().is_some_and(|(_, mask, _)| mask & 1 != 0) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "no event");
        thread::yield_now();
    }
}

/// Ends the test's own process, whose other threads would wait for ever.
fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

/// Runs `work` in a thread, and panics if it does not end.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    if ended.recv_timeout(LIMIT).is_err() {
        fail("the thread hangs or panicked");
    }
}

/// Polls its future when it is woken, and keeps the result.
#[derive(Default)]
struct Inline {
    receive: Mutex<Option<Recv>>,
    result: Mutex<Option<Result<Vec<u8>, Failure>>>,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let Some(mut receive) = self.receive.lock().unwrap().take() else { return };
        if let Poll::Ready(result) = poll(&mut receive) {
            *self.result.lock().unwrap() = Some(result.map(|message| message.to_vec()));
        }
    }
}

/// A message and the end of the connection are there before the driver looks.
#[test]
fn the_last_message_comes_before_the_end() {
    if !in_namespace("races::the_last_message_comes_before_the_end") {
        return;
    }
    let ([driver_a, driver_b], pool, a, b) = apart(QpOptions::default(), 1);
    let mut receive = b.recv();
    let task = Arc::new(Inline::default());
    assert!(
        Pin::new(&mut receive).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task)))).is_pending()
    );
    *task.receive.lock().unwrap() = Some(receive);
    let mut buffer = pool.try_take().unwrap();
    buffer[..4].copy_from_slice(b"last");
    run(&driver_a, a.send(buffer, 4)).unwrap();
    a.disconnect().unwrap();
    queued(&driver_b, true);
    driver_b.turn().unwrap();
    assert_eq!(task.result.lock().unwrap().take().unwrap().unwrap(), *b"last");
    assert_eq!(status(run(&driver_b, b.recv())), Status::WrFlushErr);
}

/// A bad status and the end of the connection are there before the driver looks.
#[test]
fn the_first_bad_status_explains_the_end() {
    if !in_namespace("races::the_first_bad_status_explains_the_end") {
        return;
    }
    let ([driver_a, _driver_b], pool, a, b) = apart(QpOptions::default(), 0);
    let nowhere = RemoteMemory { addr: 1, rkey: Rkey::new(1) };
    let mut write = a.write(pool.try_take().unwrap(), 8, nowhere);
    let mut receive = a.recv();
    assert!(poll(&mut write).is_pending() && poll(&mut receive).is_pending());
    queued(&driver_a, false);
    drop(b);
    queued(&driver_a, true);
    driver_a.turn().unwrap();
    let Poll::Ready(Err(failed)) = poll(&mut write) else { panic!("the write goes on") };
    assert_eq!(status::<()>(Err(failed.failure)), Status::RemAccessErr);
    assert_eq!(status(run(&driver_a, receive)), Status::RemAccessErr);
}

#[test]
fn roce_connections_that_end_at_once() {
    if in_namespace("races::roce_connections_that_end_at_once") {
        connections_that_end_at_once();
    }
}

#[test]
fn iwarp_connections_that_end_at_once() {
    if in_namespace("races::iwarp_connections_that_end_at_once") {
        add_iwarp_device();
        connections_that_end_at_once();
    }
}

/// The peer ends each connection as soon as it is there. Meanwhile another thread takes turns, and the future
/// of the connection is polled without need.
fn connections_that_end_at_once() {
    let Bed { driver, options, .. } = &bed(QpOptions::default());
    let listener = cm::Listener::bind(address("127.0.0.1:0")).unwrap();
    let server = listener.local_addr();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                drop(listener.accept().unwrap().prepare(&EndOptions::default()).unwrap().accept(b""));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                driver.turn().unwrap();
            }
        });
        for _ in 0..ROUNDS {
            let mut connecting = Setup::to(driver, server, options).unwrap().connect(b"");
            let connected = loop {
                if let Poll::Ready(connected) = poll(&mut connecting) {
                    break connected;
                }
            };
            // The end may be seen before the connection.
            let Ok(endpoint) = connected else { continue };
            let mut receive = endpoint.recv();
            let task = pending_or_ready(&mut receive);
            let start = Instant::now();
            while task.0.load(Ordering::Relaxed) == 0 {
                if start.elapsed() > LIMIT {
                    fail("the receive hangs");
                }
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A task that only a list of waiting tasks knows, and that waits for the same thing itself.
struct Holder<T>(#[allow(dead_code, reason = "it is dropped")] Mutex<T>);

impl<T: Send> Wake for Holder<T> {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_task_that_owns_a_future_is_dropped() {
    if !in_namespace("races::a_task_that_owns_a_future_is_dropped") {
        return;
    }
    fn first_ends<F: Future + Unpin + Send + 'static>(mut first: F, mut second: F) {
        assert!(poll(&mut second).is_pending());
        let waker = Waker::from(Arc::new(Holder(Mutex::new(second))));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        ends(move || drop(first));
    }
    let mut bed = bed(QpOptions::default().max_send_wr(1));
    let (a, _b) = bed.pair(0);
    assert!(poll(&mut bed.send(&a, b"fills the queue")).is_pending());
    first_ends(bed.send(&a, b""), bed.send(&a, b""));
    first_ends(a.recv(), a.recv());
    let _all: Vec<_> = std::iter::from_fn(|| bed.pool.try_take()).collect();
    first_ends(bed.pool.take(), bed.pool.take());
}

/// The peer fills the receives again and again before the driver looks.
#[test]
fn completed_receives_count_until_a_turn() {
    if !in_namespace("races::completed_receives_count_until_a_turn") {
        return;
    }
    let ([driver_a, driver_b], pool, a, b) = apart(QpOptions::default().max_send_wr(4).max_recv_wr(4), 0);
    for n in 0..4 {
        b.post_recv(pool.try_take().unwrap()).unwrap();
        run(&driver_a, a.send(pool.try_take().unwrap(), n)).unwrap();
    }
    let failed = b.post_recv(pool.try_take().unwrap()).unwrap_err();
    assert_eq!(failed.failure.kind(), ErrorKind::Usage(Usage::QueueFull));
    driver_b.turn().unwrap();
    for n in 0..4 {
        b.post_recv(pool.try_take().unwrap()).unwrap();
        assert_eq!(run(&driver_b, b.recv()).unwrap().len(), n);
    }
}

/// A task whose waker panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test");
    }
}

#[test]
fn a_panic_of_a_waker_leaves_no_task_asleep() {
    if !in_namespace("races::a_panic_of_a_waker_leaves_no_task_asleep") {
        return;
    }
    let ([_driver_a, driver_b], _pool, a, b) = apart(QpOptions::default(), 0);
    let mut receives = [b.recv(), b.recv(), b.recv()];
    let [first, panics, last] = &mut receives;
    let first = pending(first);
    let waker = Waker::from(Arc::new(Panics));
    assert!(Pin::new(panics).poll(&mut Context::from_waker(&waker)).is_pending());
    let last = pending(last);
    drop(a);
    queued(&driver_b, true);
    catch_unwind(AssertUnwindSafe(|| driver_b.turn())).unwrap_err();
    assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (1, 1));
    driver_b.turn().unwrap();
}

unsafe extern "C" {
    fn fork() -> i32;
    safe fn alarm(seconds: u32) -> u32;
    safe fn waitpid(child: i32, status: &mut i32, options: i32) -> i32;
    safe fn _exit(code: i32) -> !;
}

/// Threads of the parent lock and unlock all the time, so that a child often finds a mutex locked for ever.
#[test]
fn a_forked_child_drops_what_its_parent_uses() {
    if !in_namespace("races::a_forked_child_drops_what_its_parent_uses") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, _b) = bed.pair(0);
    let (mut send, mut receive) = (bed.send(&a, b"text"), a.recv());
    assert!(poll(&mut send).is_pending() && poll(&mut receive).is_pending());
    let mut futures = Some((send, receive));
    let mut buffer = bed.pool.try_take();
    let stop = AtomicBool::new(false);
    let pool = bed.pool.clone();
    let hung = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.available();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(poll(&mut a.recv()).is_pending());
            }
        });
        let hung = (0..40).any(|_| {
            // SAFETY: the child calls the destructors under test, which take no lock there, and exits.
            let child = unsafe { fork() };
            if child == 0 {
                alarm(20);
                drop((futures.take(), buffer.take()));
                _exit(0);
            }
            let mut status = 0;
            waitpid(child, &mut status, 0) != child || status != 0
        });
        stop.store(true, Ordering::Relaxed);
        hung
    });
    assert!(!hung, "a child hangs");
}
