//! The smallest program: both ends of a connection, and one message.
//!
//!     cargo run -p ferroce --example hello

use std::error::Error;

use ferroce::Access;
use ferroce::cm::{Connector, EndOptions, Listener};

fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", hello()?);
    Ok(())
}

pub fn hello() -> Result<String, Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?)?;
    // `start` does not wait for the other end, so one thread can be both ends.
    let mut client = Connector::new(listener.local_addr(), &EndOptions::default())?.start(b"")?;
    let server = listener.accept()?.prepare(&EndOptions::default())?;
    let buffer = server.domain().allocate(64, Access::LOCAL_WRITE)?;
    server.queue_pair().post_recv(1, &[buffer.slice(..)])?;
    let mut server = server.start(b"")?;
    let (client, server) = (client.wait()?, server.wait()?);

    client.queue_pair().send_inline(2, b"hello")?;
    let message = server.queue_pair().receive_queue().wait()?.ok()?;
    Ok(String::from_utf8(buffer.to_vec()[..message.len as usize].to_vec())?)
}
