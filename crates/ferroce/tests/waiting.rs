//! Threads that wait for completions, in a network namespace of the test's own.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{in_namespace, pair, readable};
use ferroce::{Context, Moderation, Status};

/// A wake-up after this time counts as lost.
const LOST: Duration = Duration::from_secs(20);

/// Two threads wait, each for its own queue; both queues report to one channel. A message for the second queue must
/// wake the second thread, every time.
#[test]
fn queues_of_one_channel_keep_their_wake_ups() {
    if !in_namespace("queues_of_one_channel_keep_their_wake_ups") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(512, None).unwrap();
    let queues = [0, 1].map(|_| device.completion_queue(128, Some(&channel)).unwrap());
    let pairs = [0, 1].map(|end| pair(&domain, [&sent, &queues[end]]));
    let (done_tx, done) = mpsc::channel();
    for (end, queue) in queues.clone().into_iter().enumerate() {
        let done_tx = done_tx.clone();
        thread::spawn(move || {
            loop {
                assert_eq!(queue.wait().unwrap().status, Status::Success);
                done_tx.send(end).unwrap();
            }
        });
    }
    for round in 0..60 {
        let end = round % 2;
        let (sender, receiver) = &pairs[end];
        receiver.post_recv(1, &[]).unwrap();
        // In half of the rounds both threads sleep when the message arrives, in the others they do not sleep yet.
        if round % 4 < 2 {
            thread::sleep(Duration::from_millis(5));
        }
        sender.send(2, &[]).unwrap();
        assert_eq!(done.recv_timeout(LOST), Ok(end), "round {round}");
        let mut done = Vec::new();
        while sent.poll(&mut done, 16).unwrap() == 0 {}
        assert_eq!(done[0].status, Status::Success);
    }
}

/// A thread waits on the channel for several queues and gets the queue that has a completion. A thread that waits for
/// one of the queues meanwhile takes none of the channel's events.
#[test]
fn a_channel_names_the_queue() {
    if !in_namespace("a_channel_names_the_queue") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(512, None).unwrap();
    let queues = [0, 1, 2].map(|_| device.completion_queue(128, Some(&channel)).unwrap());
    let pairs = [0, 1, 2].map(|end| pair(&domain, [&sent, &queues[end]]));
    let (done_tx, done) = mpsc::channel();
    let sleeper = queues[2].clone();
    thread::spawn(move || {
        loop {
            assert_eq!(sleeper.wait().unwrap().status, Status::Success);
            done_tx.send(()).unwrap();
        }
    });
    for round in 0..60 {
        let end = round % 3;
        queues[..2].iter().for_each(|queue| queue.request_event());
        let (sender, receiver) = &pairs[end];
        receiver.post_recv(1, &[]).unwrap();
        sender.send(2, &[]).unwrap();
        if end == 2 {
            done.recv_timeout(LOST).expect("the thread in wait() is woken");
            continue;
        }
        let queue = channel.wait().unwrap();
        assert!(queue == queues[end] && queue != queues[1 - end], "round {round}");
        let mut found = Vec::new();
        assert_eq!(queue.poll(&mut found, 16).unwrap(), 1);
        assert_eq!(found[0].status, Status::Success);
    }
}

/// Several threads wait for one queue: every completion reaches one of them, and each of them wakes when there are
/// enough.
#[test]
fn threads_share_a_queue() {
    if !in_namespace("threads_share_a_queue") {
        return;
    }
    const THREADS: usize = 4;
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(512, None).unwrap();
    let received = device.completion_queue(512, Some(&channel)).unwrap();
    let (a, b) = pair(&domain, [&sent, &received]);
    let (done_tx, done) = mpsc::channel();
    for _ in 0..THREADS {
        let (queue, done_tx) = (received.clone(), done_tx.clone());
        thread::spawn(move || {
            loop {
                let mut found = Vec::new();
                let count = queue.wait_many(&mut found, 4).unwrap();
                assert_eq!(found.len(), count);
                done_tx.send(count).unwrap();
            }
        });
    }
    for round in 0..40 {
        let messages = 1 + round % (2 * THREADS);
        for wr_id in 0..messages as u64 {
            b.post_recv(wr_id, &[]).unwrap();
            a.send(wr_id, &[]).unwrap();
        }
        let mut seen = 0;
        while seen < messages {
            seen += done.recv_timeout(LOST).unwrap_or_else(|_| panic!("round {round}: {seen} of {messages}"));
        }
        let mut done = Vec::new();
        while done.len() < messages {
            sent.poll(&mut done, 16).unwrap();
        }
    }
}

/// `wait` takes one completion and leaves the others; `wait_many` takes at most the requested number.
#[test]
fn no_completion_is_dropped() {
    if !in_namespace("no_completion_is_dropped") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    for channel in [None, Some(&channel)] {
        let done = device.completion_queue(64, channel).unwrap();
        let (a, b) = pair(&domain, [&done, &done]);
        for wr_id in 0..20 {
            b.post_recv(wr_id, &[]).unwrap();
            a.send(100 + wr_id, &[]).unwrap();
        }
        let mut seen = vec![done.wait().unwrap(), done.wait().unwrap()];
        assert_eq!(done.wait_many(&mut seen, 0).unwrap(), 0);
        while seen.len() < 40 {
            let before = seen.len();
            let count = done.wait_many(&mut seen, 3).unwrap();
            assert!((1..=3).contains(&count) && seen.len() == before + count);
        }
        let mut ids: Vec<u64> = seen.iter().map(|completion| completion.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..20).chain(100..120).collect::<Vec<_>>());
    }
}

/// A program may do anything with the lent descriptor that safe Rust permits. Reading it must not stop waiting threads.
#[test]
fn reading_the_lent_descriptor_stops_nobody() {
    if !in_namespace("reading_the_lent_descriptor_stops_nobody") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(64, None).unwrap();
    let received = device.completion_queue(64, Some(&channel)).unwrap();
    let (a, b) = pair(&domain, [&sent, &received]);
    let (done_tx, done) = mpsc::channel();
    let waits = |done_tx: &mpsc::Sender<&'static str>| {
        let (channel, received, done_tx) = (channel.clone(), received.clone(), done_tx.clone());
        thread::spawn(move || {
            assert!(channel.wait().unwrap() == received);
            done_tx.send("event").unwrap();
            assert_eq!(received.wait().unwrap().status, Status::Success);
            done_tx.send("completion").unwrap();
        });
    };
    for round in 0..2 {
        received.request_event();
        b.post_recv(round, &[]).unwrap();
        a.send(round, &[]).unwrap();
        readable(&channel);
        // The read may return anything, or fail.
        let mut file = File::from(channel.as_fd().try_clone_to_owned().unwrap());
        let _ = file.read(&mut [0; 8]);
        waits(&done_tx);
        assert_eq!(done.recv_timeout(LOST), Ok("event"), "round {round}");
        assert_eq!(done.recv_timeout(LOST), Ok("completion"), "round {round}");
    }
}

/// Moderation delays the wake-up of a waiting thread: until there are enough completions, or the period is over.
#[test]
fn moderation_delays_but_never_loses_a_wake_up() {
    if !in_namespace("moderation_delays_but_never_loses_a_wake_up") {
        return;
    }
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let sent = device.completion_queue(64, None).unwrap();
    let received = device.completion_queue(64, Some(&channel)).unwrap();
    let (a, b) = pair(&domain, [&sent, &received]);
    received.moderate(Moderation::default().count(4).period(500));
    let (done_tx, done) = mpsc::channel();
    let queue = received.clone();
    thread::spawn(move || {
        loop {
            done_tx.send(queue.wait().unwrap().wr_id).unwrap();
        }
    });
    for round in 0..30 {
        // A single message waits for the period, four do not.
        let messages = if round % 2 == 0 { 1 } else { 4 };
        for wr_id in 0..messages {
            b.post_recv(wr_id, &[]).unwrap();
            a.send(wr_id, &[]).unwrap();
        }
        for wr_id in 0..messages {
            assert_eq!(done.recv_timeout(LOST), Ok(wr_id), "round {round}");
        }
        let mut done = Vec::new();
        while (done.len() as u64) < messages {
            sent.poll(&mut done, 16).unwrap();
        }
    }
}
