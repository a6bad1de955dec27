//! Asynchronous endpoints on tokio, in a network namespace of the test's own.

mod common;

use std::time::Duration;

use common::{address, in_namespace};
use ferroce::aio::{Driver, Listener};
use ferroce::cm::Connector;
use tokio::runtime::{Builder, Runtime};

#[path = "../examples/tokio_echo.rs"]
#[allow(dead_code, reason = "its flags are not tried here")]
mod tokio_echo;

/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Three clients at once, each with a driver of its own, and one server.
fn echo(runtime: &Runtime) {
    runtime.block_on(async {
        let device = Connector::device_for(address("127.0.0.1:1")).unwrap();
        let driver = Driver::new(&device).unwrap();
        let turns = driver.spawn_on_tokio().unwrap();
        let listener = Listener::bind(&driver, address("127.0.0.1:0")).unwrap();
        let server = listener.local_addr();
        let serves = tokio::spawn(tokio_echo::serve(driver, listener));
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let driver = Driver::new(&device).unwrap();
                driver.spawn_on_tokio().unwrap();
                tokio::spawn(async move { tokio_echo::talk(&driver, server, 500).await })
            })
            .collect();
        for client in clients {
            tokio::time::timeout(HANGS, client).await.expect("a client hangs").unwrap().unwrap();
        }
        assert!(!turns.is_finished() && !serves.is_finished());
    });
}

#[test]
fn echo_on_one_thread() {
    if in_namespace("echo_on_one_thread") {
        echo(&Builder::new_current_thread().enable_all().build().unwrap());
    }
}

#[test]
fn echo_on_several_threads() {
    if in_namespace("echo_on_several_threads") {
        echo(&Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap());
    }
}
