//! Asynchronous endpoints without a runtime, in a network namespace of the test's own.

mod common;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::{address, in_namespace};
use ferroce::aio::{Buffer, BufferPool, Driver, Endpoint, Failure, Listener, Operation, Setup};
use ferroce::cm::{Connector, EndOptions};
use ferroce::{Access, Imm, MemoryRegion, QpOptions, Status};
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

/// One driver with a listener, and a pool of buffers for all endpoints.
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
    let options = EndOptions { queues, domain: Some(pool.domain().clone()), ..EndOptions::default() };
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
        assert_eq!((received.imm(), received.len()), (Some(Imm(*b"imm3")), 0));
        a.send_imm(buffer, 7, Imm(*b"imm4")).await.unwrap();
        let received = b.recv().await.unwrap();
        assert_eq!((received.imm(), &*received), (Some(Imm(*b"imm4")), &b"message"[..]));
        // The peer's refusal ends the connection, and the future returns the buffer.
        let failed = a.write(received.into_buffer(), 8, region.remote(60)).await.unwrap_err();
        assert_eq!(failed.buffer.len(), SIZE as usize);
        assert_eq!(status::<()>(Err(failed.failure)), Status::RemAccessErr);
    });
    assert_eq!(region.to_vec()[32..47], *b"written\0message");
    drop((a, b));
    assert_eq!(bed.pool.available(), BUFFERS);
}
