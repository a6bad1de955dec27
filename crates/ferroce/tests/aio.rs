//! Asynchronous endpoints without a runtime, in a network namespace of the test's own.

mod common;
#[path = "aio/races.rs"]
mod races;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::{add_iwarp_device, address, ask_broker, in_namespace};
use ferroce::aio::{Buffer, BufferPool, Driver, Endpoint, Failure, Listener, Operation, Setup};
use ferroce::cm::{Connector, EndOptions};
use ferroce::error::{Device, ErrorKind, Peer, Usage};
use ferroce::{Access, Imm, MemoryRegion, QpOptions, Status};
use ferroce_ipc::Message;
use rustix::event::{PollFd, PollFlags, Timespec};

/// Counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a future on this thread. Between polls it waits for the driver's descriptor.
fn run<T>(driver: &Driver, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut cx = Context::from_waker(&waker);
    loop {
        let woken = task.0.load(Ordering::Relaxed);
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        while task.0.load(Ordering::Relaxed) == woken {
            wait(driver);
            driver.turn().unwrap();
        }
    }
}

/// Waits until the driver has something to do.
fn wait(driver: &Driver) {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut [PollFd::new(driver, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "nothing happens");
}

/// Takes turns until a condition holds.
fn until(driver: &Driver, condition: impl Fn() -> bool) {
    while !condition() {
        wait(driver);
        driver.turn().unwrap();
    }
}

/// Polls a future once.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future that is not ready, and returns the task that it will wake.
fn pending<F: Future + Unpin>(future: &mut F) -> Arc<Task> {
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    assert!(Pin::new(future).poll(&mut Context::from_waker(&waker)).is_pending());
    task
}

/// Waits for two futures.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            second = Some(value);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

/// A driver with a listener, and a pool of buffers for all endpoints.
struct Bed {
    driver: Driver,
    pool: BufferPool,
    listener: Listener,
    options: EndOptions,
}

const SIZE: u32 = 256;
const BUFFERS: usize = 32;

fn bed(queues: QpOptions) -> Bed {
    let driver = Driver::new(&Connector::device_for(address("127.0.0.1:1")).unwrap()).unwrap();
    let pool = BufferPool::new(&driver.context().protection_domain().unwrap(), BUFFERS, SIZE).unwrap();
    let listener = Listener::bind(&driver, address("127.0.0.1:0")).unwrap();
    let options = EndOptions::default().queues(queues).domain(pool.domain().clone());
    Bed { driver, pool, listener, options }
}

impl Bed {
    /// Connects two endpoints, the second of which has this number of receives posted.
    fn pair(&mut self, receives: usize) -> (Endpoint, Endpoint) {
        let Self { driver, pool, listener, options } = self;
        let setup = Setup::to(driver, listener.local_addr(), options).unwrap();
        let answers = async {
            let request = listener.accept().await.unwrap();
            let setup = Setup::of(driver, request, options).unwrap();
            for _ in 0..receives {
                setup.post_recv(pool.try_take().unwrap()).unwrap();
            }
            setup.connect(b"welcome").await.unwrap()
        };
        let (asking, answering) = run(driver, both(setup.connect(b"hello"), answers));
        let asking = asking.unwrap();
        assert_eq!(&asking.private_data()[..7], b"welcome");
        (asking, answering)
    }

    fn buffer(&self, octets: &[u8]) -> Buffer {
        let mut buffer = self.pool.try_take().unwrap();
        buffer[..octets.len()].copy_from_slice(octets);
        buffer
    }

    fn send(&self, endpoint: &Endpoint, octets: &[u8]) -> Operation {
        endpoint.send(self.buffer(octets), octets.len())
    }
}

fn status<T: std::fmt::Debug>(failed: Result<T, Failure>) -> Status {
    match failed.unwrap_err() {
        Failure::Status(status) => status,
        other => panic!("{other}"),
    }
}

#[test]
fn messages_both_ways_on_one_driver() {
    if !in_namespace("messages_both_ways_on_one_driver") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, b) = bed.pair(1);
    let (c, d) = bed.pair(1);
    for n in 0..200_u32 {
        for (from, to) in [(&a, &b), (&b, &a), (&c, &d), (&d, &c)] {
            if n > 0 || std::ptr::eq(to, &a) || std::ptr::eq(to, &c) {
                to.post_recv(bed.pool.try_take().unwrap()).unwrap();
            }
            let text = format!("message {n} to {}", to.local_addr());
            let (sent, received) = run(&bed.driver, both(bed.send(from, text.as_bytes()), to.recv()));
            assert_eq!(sent.unwrap().len(), SIZE as usize);
            assert_eq!(*received.unwrap(), *text.as_bytes());
        }
    }
    assert_eq!(bed.pool.available(), BUFFERS);
    assert_eq!((a.local_addr(), a.peer_addr()), (b.peer_addr(), b.local_addr()));
}

#[test]
fn remote_memory() {
    if !in_namespace("remote_memory") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, b) = bed.pair(2);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region: MemoryRegion<'_> =
        bed.pool.domain().register([7_u64.to_ne_bytes(); 8].concat(), all).unwrap();
    run(&bed.driver, async {
        let (old, buffer) = a.fetch_add(bed.buffer(b""), region.remote(0), 5).await.unwrap();
        assert_eq!(old, 7);
        let (old, buffer) = a.compare_swap(buffer, region.remote(0), 12, 1).await.unwrap();
        assert_eq!(old, 12);
        let buffer = a.read(buffer, 16, region.remote(0)).await.unwrap();
        assert_eq!(buffer[..16], [1_u64.to_ne_bytes(), 7_u64.to_ne_bytes()].concat());
        let mut buffer = a.write(bed.buffer(b"written"), 7, region.remote(32)).await.unwrap();
        buffer[..7].copy_from_slice(b"message");
        let buffer = a.write_imm(buffer, 7, region.remote(40), Imm(*b"imm3")).await.unwrap();
        let received = b.recv().await.unwrap();
        assert_eq!((received.imm(), received.len(), received.written()), (Some(Imm(*b"imm3")), 0, Some(7)));
        a.send_imm(buffer, 7, Imm(*b"imm4")).await.unwrap();
        let received = b.recv().await.unwrap();
        assert_eq!((received.imm(), &*received), (Some(Imm(*b"imm4")), &b"message"[..]));
        assert_eq!(received.written(), None);
        // The peer's refusal ends the connection, and the future returns the buffer.
        let failed = a.write(received.into_buffer(), 8, region.remote(60)).await.unwrap_err();
        assert_eq!(failed.buffer.len(), SIZE as usize);
        assert_eq!(failed.failure.kind(), ErrorKind::Usage(Usage::Invalid));
        assert_eq!(failed.to_string(), "the work request ended with RemAccessErr");
        assert_eq!(status::<()>(Err(failed.failure)), Status::RemAccessErr);
        // The status explains the later failures of the endpoint, too.
        let failed = a.send(failed.buffer, 1).await.unwrap_err();
        assert_eq!(status::<()>(Err(failed.failure)), Status::RemAccessErr);
        assert_eq!(status(a.recv().await), Status::RemAccessErr);
    });
    assert_eq!(region.to_vec()[32..47], *b"written\0message");
    drop((a, b));
    assert_eq!(bed.pool.available(), BUFFERS);
}

/// Many sends at once through a queue of four: each future waits for room, all succeed, and the messages
/// arrive in the order of the futures.
#[test]
fn a_full_queue_delays_sends() {
    if !in_namespace("a_full_queue_delays_sends") {
        return;
    }
    let small = QpOptions::default().max_send_wr(4);
    let mut bed = bed(small);
    let (a, b) = bed.pair(12);
    let mut sends: Vec<_> = (0..12_u8).map(|n| bed.send(&a, &[n; 9])).collect();
    sends.iter_mut().for_each(|send| assert!(poll(send).is_pending()));
    // A future that waits for room and is dropped lets the next one through; its buffer is free at once.
    let available = bed.pool.available();
    drop(sends.remove(4));
    assert_eq!(bed.pool.available(), available + 1);
    run(&bed.driver, async {
        for send in sends {
            send.await.unwrap();
        }
        for n in (0..12).filter(|n| *n != 4) {
            assert_eq!(*b.recv().await.unwrap(), [n; 9]);
        }
    });
    // A single receive is left.
    assert_eq!(bed.pool.available(), BUFFERS - 1);

    // The receive queue reports that it is full, because the program posts its receives itself.
    let few = QpOptions::default().max_recv_wr(1);
    bed.options.queues = few;
    let (c, _d) = bed.pair(1);
    c.post_recv(bed.buffer(b"")).unwrap();
    let failed = c.post_recv(bed.buffer(b"")).unwrap_err();
    let Failure::Refused(error) = failed.failure else { panic!("{failed:?}") };
    assert!(error.is_queue_full());

    // An endpoint without a send queue has no room ever.
    bed.options.queues = QpOptions::default().max_send_wr(0);
    let (e, _f) = bed.pair(0);
    let Poll::Ready(Err(failed)) = poll(&mut bed.send(&e, b"never")) else { panic!("the send waits") };
    assert_eq!(failed.failure.kind(), ErrorKind::Usage(Usage::QueueFull));
}

/// A buffer stays with its work request when the future is dropped, and returns to the pool afterwards.
#[test]
fn cancellation_frees_nothing_early() {
    if !in_namespace("cancellation_frees_nothing_early") {
        return;
    }
    let mut bed = bed(QpOptions::default().max_send_wr(1));
    let (a, b) = bed.pair(0);
    // The peer has no receive posted, so the send stays outstanding.
    let mut send = bed.send(&a, b"first");
    assert!(poll(&mut send).is_pending());
    drop(send);
    // A future that was never polled has posted nothing.
    drop(bed.send(&a, b"never"));
    // All other buffers are taken and overwritten: none is the one in use.
    let rest: Vec<_> = std::iter::from_fn(|| bed.pool.try_take()).collect();
    assert_eq!(rest.len(), BUFFERS - 1);
    for mut buffer in rest {
        buffer.fill(0xff);
    }
    // Two tasks receive: the first is cancelled before the message, and the second gets it.
    let (mut cancelled, mut receives) = (b.recv(), b.recv());
    assert!(poll(&mut cancelled).is_pending() && poll(&mut receives).is_pending());
    b.post_recv(bed.pool.try_take().unwrap()).unwrap();
    drop(cancelled);
    assert_eq!(*run(&bed.driver, receives).unwrap(), *b"first");
    until(&bed.driver, || bed.pool.available() == BUFFERS);

    // A receive that is cancelled after its message arrived loses nothing.
    let mut cancelled = b.recv();
    assert!(poll(&mut cancelled).is_pending());
    b.post_recv(bed.pool.try_take().unwrap()).unwrap();
    run(&bed.driver, bed.send(&a, b"second")).unwrap();
    drop(cancelled);
    assert_eq!(*run(&bed.driver, b.recv()).unwrap(), *b"second");
    assert_eq!(bed.pool.available(), BUFFERS);

    // Posted receives keep their buffers until the endpoint ends.
    b.post_recv(bed.pool.try_take().unwrap()).unwrap();
    let mut receives = b.recv();
    assert!(poll(&mut receives).is_pending());
    assert_eq!(bed.pool.available(), BUFFERS - 1);
    drop(b);
    assert_eq!(bed.pool.available(), BUFFERS);
    assert_eq!(status(run(&bed.driver, receives)), Status::WrFlushErr);
}

/// Two futures wait for the same thing. The first is woken and dropped without a poll: the second must be woken.
#[test]
fn a_dropped_future_wakes_the_next() {
    if !in_namespace("a_dropped_future_wakes_the_next") {
        return;
    }
    let mut bed = bed(QpOptions::default().max_send_wr(1));
    let (a, b) = bed.pair(1);
    let woken = |task: &Task| task.0.load(Ordering::Relaxed);

    let (mut receive, mut next_receive) = (b.recv(), b.recv());
    let receivers = (pending(&mut receive), pending(&mut next_receive));
    let [mut posted, mut send, mut next_send] = [0; 3].map(|_| bed.send(&a, b"once"));
    let senders = (pending(&mut posted), pending(&mut send), pending(&mut next_send));
    until(&bed.driver, || woken(&senders.1) > 0 && woken(&receivers.0) > 0);
    assert_eq!((woken(&senders.0), woken(&senders.2), woken(&receivers.1)), (1, 0, 0));
    drop((send, receive));
    assert_eq!((woken(&senders.2), woken(&receivers.1)), (1, 1));
    assert_eq!(*run(&bed.driver, next_receive).unwrap(), *b"once");
    b.post_recv(bed.pool.try_take().unwrap()).unwrap();
    run(&bed.driver, next_send).unwrap();

    let mut all: Vec<_> = std::iter::from_fn(|| bed.pool.try_take()).collect();
    let (mut take, mut next_take) = (bed.pool.take(), bed.pool.take());
    let takers = (pending(&mut take), pending(&mut next_take));
    drop(all.pop());
    assert_eq!((woken(&takers.0), woken(&takers.1)), (1, 0));
    // The buffer is for the first task that waits.
    assert!(bed.pool.try_take().is_none());
    drop(take);
    assert_eq!(woken(&takers.1), 1);
    assert!(poll(&mut next_take).is_ready());
}

#[test]
fn the_end_of_a_connection_ends_its_futures() {
    if !in_namespace("the_end_of_a_connection_ends_its_futures") {
        return;
    }
    let mut bed = bed(QpOptions::default().max_send_wr(2));
    // The third send waits for room.
    let start = |bed: &Bed, a: &Endpoint| {
        let mut sends: Vec<_> = (0..3).map(|_| bed.send(a, b"lost")).collect();
        sends.iter_mut().for_each(|send| assert!(poll(send).is_pending()));
        let mut receives = a.recv();
        assert!(poll(&mut receives).is_pending());
        (sends, receives)
    };
    for end in ["the peer drops", "the peer disconnects", "this end disconnects", "this end drops"] {
        let (a, b) = bed.pair(0);
        let (sends, receives) = start(&bed, &a);
        let mut rest = (Some(a), Some(b));
        match end {
            "the peer drops" => rest.1 = None,
            "the peer disconnects" => rest.1.as_ref().unwrap().disconnect().unwrap(),
            "this end disconnects" => rest.0.as_ref().unwrap().disconnect().unwrap(),
            _ => rest.0 = None,
        }
        run(&bed.driver, async {
            for send in sends {
                let failed = send.await.unwrap_err();
                assert_eq!(status::<()>(Err(failed.failure)), Status::WrFlushErr, "{end}");
            }
            assert_eq!(status(receives.await), Status::WrFlushErr, "{end}");
        });
        if let Some(a) = &rest.0 {
            let failed = run(&bed.driver, bed.send(a, b"late")).unwrap_err();
            assert_eq!(failed.failure.kind(), ErrorKind::Peer(Peer::Ended), "{end}");
            assert_eq!(failed.to_string(), "the connection is over", "{end}");
            assert_eq!(status::<()>(Err(failed.failure)), Status::WrFlushErr, "{end}");
            let failed = a.post_recv(bed.buffer(b"")).unwrap_err();
            assert_eq!(status::<()>(Err(failed.failure)), Status::WrFlushErr, "{end}");
        }
        drop(rest);
        assert_eq!(bed.pool.available(), BUFFERS, "{end}");
    }
    // With no work request outstanding, the event of connection management ends the receive.
    let (a, b) = bed.pair(0);
    let receives = a.recv();
    drop(b);
    assert_eq!(status(run(&bed.driver, receives)), Status::WrFlushErr);
}

/// A set-up that is refused or given up returns its buffers, and a listener is woken for each request.
#[test]
fn connections_that_are_not_made() {
    if !in_namespace("connections_that_are_not_made") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let Bed { driver, pool, listener, options } = &mut bed;
    let asks = |driver: &Driver| {
        let setup = Setup::to(driver, listener.local_addr(), options).unwrap();
        setup.post_recv(pool.try_take().unwrap()).unwrap();
        setup
    };
    let (first, second, third) = (asks(driver), asks(driver), asks(driver));
    let long = run(driver, first.connect(&[0; 57])).unwrap_err();
    assert!(matches!(long.kind(), ErrorKind::Usage(Usage::TooLarge { .. })), "{long:?}");
    let mut given_up = second.connect(b"");
    assert!(poll(&mut given_up).is_pending());
    drop(given_up);
    assert_eq!(pool.available(), BUFFERS - 1);
    let refuses = async {
        // The request that was given up may arrive, too.
        while listener.accept().await.unwrap().private_data()[0] != 3 {}
    };
    let (refused, ()) = run(driver, both(third.connect(&[3]), refuses));
    let refused = refused.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Peer(Peer::Rejected { .. })), "{refused:?}");
    assert_eq!(pool.available(), BUFFERS);
}

/// A sleeping program is woken once for a message and once for an acknowledgement that comes apart from it:
/// the first turn after the descriptor became readable delivers it, and no further one is needed.
#[test]
fn one_wake_up_for_a_message() {
    if !in_namespace("one_wake_up_for_a_message") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, b) = bed.pair(0);
    let mut turns = 0;
    for _ in 0..100 {
        b.post_recv(bed.pool.try_take().unwrap()).unwrap();
        let (mut receives, mut send) = (b.recv(), bed.send(&a, b"wake"));
        let (mut received, mut sent) = (false, false);
        loop {
            received = received || poll(&mut receives).is_ready();
            sent = sent || poll(&mut send).is_ready();
            if received && sent {
                break;
            }
            wait(&bed.driver);
            bed.driver.turn().unwrap();
            turns += 1;
        }
    }
    println!("{turns} turns for 100 messages and their acknowledgements");
    assert!(turns <= 220, "{turns} turns");
}

#[test]
fn a_work_request_allocates_nothing() {
    if !in_namespace("a_work_request_allocates_nothing") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, b) = bed.pair(0);
    let exchange = || {
        b.post_recv(bed.pool.try_take().unwrap()).unwrap();
        let (mut receive, mut send) = (b.recv(), bed.send(&a, b"text"));
        let (mut received, mut sent) = (poll(&mut receive).is_ready(), poll(&mut send).is_ready());
        while !(received && sent) {
            wait(&bed.driver);
            bed.driver.turn().unwrap();
            received = received || poll(&mut receive).is_ready();
            sent = sent || poll(&mut send).is_ready();
        }
    };
    // The first exchanges allocate the lists of tasks.
    (0..100).for_each(|_| exchange());
    let allocated = allocation_counter::measure(|| (0..100).for_each(|_| exchange()));
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn misuse_is_reported() {
    if !in_namespace("misuse_is_reported") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let (a, _b) = bed.pair(0);
    let too_long = AssertUnwindSafe(|| drop(a.send(bed.buffer(b""), SIZE as usize + 1)));
    catch_unwind(too_long).unwrap_err();
    assert_eq!(bed.pool.available(), BUFFERS);
    // The queue of a driver on one context, and the buffers of another one.
    let other = Driver::new(&ferroce::Context::open("fr0").unwrap()).unwrap();
    let foreign = Setup::to(&other, bed.listener.local_addr(), &bed.options).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Usage(Usage::Invalid), "{foreign:?}");
}

/// An iWARP connection, whose completions and failures reach the futures as well. If the device is removed, `turn`
/// fails, and all futures end.
#[test]
fn an_iwarp_device_until_its_removal() {
    if !in_namespace("an_iwarp_device_until_its_removal") {
        return;
    }
    add_iwarp_device();
    let mut bed = bed(QpOptions::default());
    let (a, b) = bed.pair(2);
    let (sent, received) = run(&bed.driver, both(bed.send(&a, b"by TCP"), b.recv()));
    sent.unwrap();
    assert_eq!(*received.unwrap(), *b"by TCP");
    let mut receives = b.recv();
    assert!(poll(&mut receives).is_pending());
    assert_eq!(bed.pool.available(), BUFFERS - 1);
    // The request is never taken from the second listener.
    let unused = Listener::bind(&bed.driver, address("127.0.0.1:0")).unwrap();
    let asks = |listener: &Listener| Setup::to(&bed.driver, listener.local_addr(), &bed.options);
    let mut connecting = asks(&unused).unwrap().connect(b"");
    let connects = pending(&mut connecting);
    let mut accepting = Box::pin(bed.listener.accept());
    let accepts = pending(&mut accepting);

    ask_broker(&Message::LinkDel { name: "iw0".to_owned(), transient: true });
    let error = loop {
        wait(&bed.driver);
        if let Err(error) = bed.driver.turn() {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Device(Device::Gone), "{error:?}");
    let Poll::Ready(ended) = poll(&mut receives) else { panic!("the receive goes on") };
    assert_eq!(status(ended), Status::WrFlushErr);
    assert_eq!(bed.pool.available(), BUFFERS);
    // Tasks that wait for connections are told, too.
    assert!(accepts.0.load(Ordering::Relaxed) > 0 && connects.0.load(Ordering::Relaxed) > 0);
    let Poll::Ready(Err(error)) = poll(&mut accepting) else { panic!("the listener waits") };
    assert_eq!(error.kind(), ErrorKind::Device(Device::Gone), "{error:?}");
    let Poll::Ready(Err(error)) = poll(&mut connecting) else { panic!("the connection waits") };
    assert_eq!(error.kind(), ErrorKind::Device(Device::Gone), "{error:?}");
    drop(accepting);
    assert_eq!(asks(&unused).unwrap_err().kind(), ErrorKind::Device(Device::Gone));
    let Poll::Ready(Err(_)) = poll(&mut bed.send(&a, b"late")) else { panic!("the send goes on") };
    assert_eq!(bed.driver.turn().unwrap_err().kind(), ErrorKind::Device(Device::Gone));
}

const PEER: &str = "PEER_OF_TEST";

/// The peer of the next test, in a process of its own: it connects and waits for its end.
#[test]
fn peer_that_is_killed() {
    let Ok(server) = std::env::var(PEER) else { return };
    let _connected = Connector::new(address(&server), &EndOptions::default()).unwrap().connect(b"").unwrap();
    loop {
        std::thread::park();
    }
}

/// A process that is killed on drop, also if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_killed_peer_ends_all_futures() {
    if !in_namespace("a_killed_peer_ends_all_futures") {
        return;
    }
    let mut bed = bed(QpOptions::default());
    let peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_that_is_killed"])
        .env(PEER, bed.listener.local_addr().to_string())
        .spawn()
        .unwrap();
    let peer = Killed(peer);
    let Bed { driver, listener, options, .. } = &mut bed;
    let endpoint = run(driver, async {
        let request = listener.accept().await.unwrap();
        Setup::of(driver, request, options).unwrap().connect(b"").await.unwrap()
    });
    endpoint.post_recv(bed.pool.try_take().unwrap()).unwrap();
    let mut receives = [endpoint.recv(), endpoint.recv()];
    let mut sends = [0; 20].map(|_| bed.send(&endpoint, b"lost"));
    receives.iter_mut().for_each(|receive| assert!(poll(receive).is_pending()));
    sends.iter_mut().for_each(|send| assert!(poll(send).is_pending()));
    drop(peer);
    run(&bed.driver, async {
        for send in sends {
            send.await.unwrap_err();
        }
        for receive in receives {
            receive.await.unwrap_err();
        }
    });
    assert_eq!(bed.pool.available(), BUFFERS);
}
