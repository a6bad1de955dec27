//! A server that returns each message, and its client, as tasks of tokio.
//!     tokio_echo --listen 192.0.2.1:7471        the server
//!     tokio_echo 192.0.2.1:7471 -n 100          the client

use std::error::Error;
use std::net::SocketAddr;
use std::time::Instant;

use clap::Parser;
use ferroce::aio::{BufferPool, Driver, Listener, Setup};
use ferroce::cm::{Connector, EndOptions, Request};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Sends back received messages, or sends messages and compares those that return
#[derive(Parser)]
struct Options {
    /// The server's address and port
    server: SocketAddr,
    /// This end is the server
    #[arg(short, long)]
    listen: bool,
    /// Messages
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u32,
}

#[allow(dead_code, reason = "a test has its own")]
fn main() -> Result<()> {
    let Options { server, listen, iters } = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async move {
        let driver = Driver::new(&Connector::device_for(server)?)?;
        driver.spawn_on_tokio()?;
        if listen {
            return serve(driver.clone(), Listener::bind(&driver, server)?).await;
        }
        let started = Instant::now();
        talk(&driver, server, iters).await?;
        println!("{iters} messages, {:?} each", started.elapsed() / iters);
        Ok(())
    })
}

/// Serves each connection in a task of its own.
pub async fn serve(driver: Driver, mut listener: Listener) -> Result<()> {
    loop {
        tokio::spawn(echo(driver.clone(), listener.accept().await?));
    }
}

async fn echo(driver: Driver, request: Request) -> Result<()> {
    let (pool, options) = buffers(&driver)?;
    let setup = Setup::of(&driver, request, &options)?;
    while let Some(buffer) = pool.try_take() {
        setup.post_recv(buffer)?;
    }
    let endpoint = setup.connect(b"").await?;
    // The connection ends with an error: the client has disconnected.
    while let Ok(message) = endpoint.recv().await {
        let len = message.len();
        endpoint.post_recv(endpoint.send(message.into_buffer(), len).await?)?;
    }
    Ok(())
}

/// Sends messages and compares those that return.
pub async fn talk(driver: &Driver, server: SocketAddr, iters: u32) -> Result<()> {
    let (pool, options) = buffers(driver)?;
    let setup = Setup::to(driver, server, &options)?;
    setup.post_recv(pool.take().await)?;
    let endpoint = setup.connect(b"").await?;
    for n in 0..iters {
        let text = format!("message {n}");
        let mut buffer = pool.take().await;
        buffer[..text.len()].copy_from_slice(text.as_bytes());
        endpoint.send(buffer, text.len()).await?;
        let answer = endpoint.recv().await?;
        assert_eq!(&*answer, text.as_bytes(), "the message came back changed");
        endpoint.post_recv(answer.into_buffer())?;
    }
    Ok(())
}

/// 16 buffers of 4096 octets, and options with their protection domain.
fn buffers(driver: &Driver) -> Result<(BufferPool, EndOptions)> {
    let pool = BufferPool::new(&driver.context().protection_domain()?, 16, 4096)?;
    let options = EndOptions::default().domain(pool.domain().clone());
    Ok((pool, options))
}
