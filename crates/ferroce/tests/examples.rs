//! The examples that people start from, with both ends in a network namespace of the test's own.

mod common;

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{address, in_namespace};
use ferroce::Access;
use ferroce::cm::{EndOptions, Listener};

#[path = "../examples/hello.rs"]
#[allow(dead_code, reason = "its output is not tried here")]
mod hello;

#[test]
fn hello_receives_the_message() {
    if in_namespace("hello_receives_the_message") {
        assert_eq!(hello::hello().unwrap(), "hello");
    }
}

#[path = "../examples/kv.rs"]
#[allow(dead_code, reason = "its flags are not tried here")]
mod kv;

/// Starts a server and returns its address.
fn kv_server() -> SocketAddr {
    let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
    let server = listener.local_addr();
    thread::spawn(move || kv::serve(&listener));
    server
}

#[test]
fn kv_stores_values() {
    if !in_namespace("kv_stores_values") {
        return;
    }
    let server = kv_server();
    let [mut one, mut two] = [(), ()].map(|()| kv::Client::connect(server).unwrap());
    assert_eq!(one.get("a").unwrap(), None);
    one.put("a", b"first").unwrap();
    assert_eq!(two.get("a").unwrap().unwrap(), b"first");
    two.put("a", &[7; kv::VALUE]).unwrap();
    assert_eq!(one.get("a").unwrap().unwrap(), [7; kv::VALUE]);
    one.put("a", b"").unwrap();
    assert_eq!(two.get("a").unwrap().unwrap(), b"");
    assert!(one.put("a", &[0; kv::VALUE + 1]).is_err());
    assert!(one.put(&"k".repeat(25), b"").is_err());
    // More keys than buckets: some collide, and the table is full in the end.
    let mut stored = Vec::new();
    let full = (0..512).map(|n| n.to_string()).find(|key| {
        let done = one.put(key, key.as_bytes());
        done.map(|()| stored.push(key.clone())).is_err()
    });
    let full = full.expect("the table has room for all keys");
    assert_eq!(two.get(&full).unwrap(), None);
    assert!(stored.len() > 50, "full after {} keys", stored.len());
    for key in stored {
        assert_eq!(two.get(&key).unwrap().unwrap(), key.as_bytes());
    }
    // A client that is gone leaves the server to the others.
    drop(one);
    two.put("a", b"last").unwrap();
    assert_eq!(two.get("a").unwrap().unwrap(), b"last");
}

/// Two clients store values of one repeated octet while a third one reads them: no value is a mixture.
#[test]
fn kv_values_are_never_torn() {
    if !in_namespace("kv_values_are_never_torn") {
        return;
    }
    let server = kv_server();
    kv::Client::connect(server).unwrap().put("key", &[0; kv::VALUE]).unwrap();
    let stopped = AtomicBool::new(false);
    let (torn, different) = thread::scope(|scope| {
        for writer in 0..2 {
            let stopped = &stopped;
            scope.spawn(move || {
                let _stop = Stop(stopped);
                let mut client = kv::Client::connect(server).unwrap();
                for n in (writer..).step_by(2).take_while(|_| !stopped.load(Ordering::Relaxed)) {
                    client.put("key", &[n as u8; kv::VALUE]).unwrap();
                }
            });
        }
        let _stop = Stop(&stopped);
        let mut client = kv::Client::connect(server).unwrap();
        let (mut different, mut torn, mut read) = (HashSet::new(), 0, 0);
        while (read < 5000 || different.len() < 100) && !stopped.load(Ordering::Relaxed) {
            let value = client.get("key").unwrap().unwrap();
            torn += usize::from(value.iter().any(|octet| *octet != value[0]));
            different.insert(value[0]);
            read += 1;
        }
        (torn, different.len())
    });
    assert_eq!(torn, 0);
    assert!(different >= 100, "{different} values");
}

/// Stops the other threads, also if its own panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[path = "../examples/file_transfer.rs"]
#[allow(dead_code, reason = "its flags are not tried here")]
mod file_transfer;

/// Files of no octet, of part of a message, of whole messages, and of more than the ring.
#[test]
fn files_arrive() {
    if !in_namespace("files_arrive") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroce-files-arrive-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for len in [0, 1000, 1 << 20, 5_000_001] {
        let octets: Vec<u8> = (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        fs::write(&from, &octets).unwrap();
        let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
        let receiver = listener.local_addr();
        thread::scope(|scope| {
            let received = scope.spawn(|| file_transfer::receive(&listener, &to));
            file_transfer::send(receiver, &from).unwrap();
            received.join().unwrap().unwrap();
        });
        assert!(fs::read(&to).unwrap() == octets, "{len} octets arrived changed");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A receiver with another checksum, or one that is gone, is an error of the sender.
#[test]
fn a_wrong_checksum_is_an_error() {
    if !in_namespace("a_wrong_checksum_is_an_error") {
        return;
    }
    let file = std::env::temp_dir().join(format!("ferroce-wrong-checksum-{}", std::process::id()));
    fs::write(&file, b"octets").unwrap();
    for answers in [true, false] {
        let listener = Listener::bind(address("127.0.0.1:0")).unwrap();
        let receiver = listener.local_addr();
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let end = listener.accept().unwrap().prepare(&EndOptions::default()).unwrap();
                let memory = end.domain().allocate(6, Access::LOCAL_WRITE).unwrap();
                end.queue_pair().post_recv(1, &[memory.slice(..)]).unwrap();
                let mut connection = end.accept(b"").unwrap();
                assert_eq!(connection.queue_pair().receive_queue().wait().unwrap().len, 6);
                if answers {
                    connection.queue_pair().send_inline(0, &[1; 8]).unwrap();
                    connection.wait_disconnected().unwrap();
                }
            });
            file_transfer::send(receiver, &file).unwrap_err().to_string()
        });
        let expected =
            if answers { "but the receiver's is 101010101010101" } else { "the connection is over" };
        assert!(error.contains(expected), "{error}");
    }
    fs::remove_file(&file).unwrap();
}

/// The book's first code is the example.
#[test]
fn the_book_shows_hello() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(page) = fs::read_to_string(root.join("../../docs/book/src/rust.md")) else {
        println!("skipped: the package has no book");
        return;
    };
    let code = fs::read_to_string(root.join("examples/hello.rs")).unwrap();
    let (_, code) = code.split_once("\n\n").unwrap();
    let (_, block) = page.split_once("```rust").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert_eq!(block.split_once('\n').unwrap().1, code);
}
