//! The text by HTTP/1.1, one request for each connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use socket2::Socket;

/// Connections that are served at once; more are closed.
const MOST: usize = 16;
/// Time limit of a connection's request and, apart, of its answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Octets of a request that are read.
const LONGEST: usize = 16 * 1024;

const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the text of `now` until SIGINT or SIGTERM.
pub fn serve(address: &str, now: impl Fn() -> Result<String> + Send + Sync + 'static) -> Result<()> {
    let (listener, name) = listen(address).with_context(|| format!("cannot listen at {address}"))?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGTERM);
    // Threads that start from here on inherit the mask, so one of these signals is for `wait`.
    ends.thread_block()?;
    eprintln!("ferroce: metrics are at {name}");
    thread::spawn(move || accept(&listener, &Arc::new(now)));
    ends.wait()?;
    if address.contains('/') {
        std::fs::remove_file(address).with_context(|| address.to_owned())?;
    }
    Ok(())
}

/// The socket, and how clients call it.
fn listen(address: &str) -> Result<(Socket, String)> {
    if address.contains('/') {
        match UnixStream::connect(address) {
            Ok(_) => bail!("another process listens there"),
            // A process that ended without its end being seen left the file behind.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(Path::new(address)) =>
            {
                std::fs::remove_file(address)?;
            }
            // Whatever is there, `bind` refuses it.
            Err(_) => {}
        }
        return Ok((Socket::from(OwnedFd::from(UnixListener::bind(address)?)), address.to_owned()));
    }
    let listener = match address.parse::<u16>() {
        Ok(port) => TcpListener::bind(("127.0.0.1", port))?,
        Err(_) => TcpListener::bind(address)
            .context("a port, ADDRESS:PORT, or the path of a Unix socket with a `/`")?,
    };
    let name = format!("http://{}/metrics", listener.local_addr()?);
    Ok((Socket::from(OwnedFd::from(listener)), name))
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.symlink_metadata().is_ok_and(|status| status.file_type().is_socket())
}

fn accept<F: Fn() -> Result<String> + Send + Sync + 'static>(listener: &Socket, now: &Arc<F>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((client, _)) = listener.accept() else {
            // Without descriptors; connections that end have some.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let (now, open) = (Arc::clone(now), Guard::new(&open));
        if open.0.load(Ordering::Relaxed) <= MOST {
            // A machine without another thread closes the connection.
            let _ = thread::Builder::new().spawn(move || {
                let _open = open;
                // A client that is gone is nobody's error.
                let _ = answer(&client, &*now);
            });
        }
    }
}

/// Counts an open connection.
struct Guard(Arc<AtomicUsize>);

impl Guard {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(client: &Socket, now: &impl Fn() -> Result<String>) -> io::Result<()> {
    let request = read(client)?;
    let (status, body) = match verdict(&request) {
        Ok(()) => match now() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error:#}\n")),
        },
        Err(status) => (status, format!("{status}: GET /metrics\n")),
    };
    let kind = if status.starts_with("200") { TYPE } else { "text/plain; charset=utf-8" };
    let length = body.len();
    let body = if request.starts_with(b"HEAD ") { "" } else { &body };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    write(client, answer.as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    // A socket that is closed with unread octets takes back what the client has not read yet.
    read_until(client, |_| false).map(drop)
}

/// Writes all octets within the time limit.
fn write(mut client: &Socket, mut octets: &[u8]) -> io::Result<()> {
    let start = Instant::now();
    while !octets.is_empty() {
        let left = LIMIT.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        client.set_write_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match client.write(octets) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => octets = octets.get(more..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the head of a request, as far as it comes.
fn read(client: &Socket) -> io::Result<Vec<u8>> {
    read_until(client, |request| request.windows(4).any(|end| end == b"\r\n\r\n"))
}

fn read_until(mut client: &Socket, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let (start, mut request, mut buffer) = (Instant::now(), Vec::new(), [0; 2048]);
    while request.len() < LONGEST && !is_whole(&request) {
        let Some(left) = LIMIT.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { break };
        client.set_read_timeout(Some(left))?;
        match client.read(&mut buffer) {
            Ok(0) => break,
            Ok(more) => request.extend_from_slice(buffer.get(..more).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(request)
}

/// Whether a request is one for the metrics; otherwise the status of the answer.
fn verdict(request: &[u8]) -> Result<(), &'static str> {
    let line = request.split(|octet| *octet == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let [method, path, version] = words[..] else { return Err("400 Bad Request") };
    if !version.starts_with("HTTP/1.") || !request.windows(4).any(|end| end == b"\r\n\r\n") {
        return Err("400 Bad Request");
    }
    match path.split('?').next() {
        Some("/" | "/metrics") if matches!(method, "GET" | "HEAD") => Ok(()),
        Some("/" | "/metrics") => Err("405 Method Not Allowed"),
        _ => Err("404 Not Found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_an_ended_process_is_replaced_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("ferroce-metrics-listen-{}", std::process::id()));
        let address = path.to_str().unwrap();
        drop(listen(address).unwrap());
        let live = listen(address).unwrap();
        assert!(listen(address).is_err());
        drop(live);
        std::fs::remove_file(&path).unwrap();
        let other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert!(listen(address).is_err() && path.exists(), "a socket of another type");
        drop(other);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_request_has_a_verdict() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", None),
            ("HEAD /?x=y HTTP/1.0\r\n\r\n", None),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some("405 Method Not Allowed")),
            ("GET /favicon.ico HTTP/1.1\r\n\r\n", Some("404 Not Found")),
            ("GET /metrics HTTP/1.1\r\n", Some("400 Bad Request")),
            ("GET /metrics\r\n\r\n", Some("400 Bad Request")),
            ("\u{16}\u{3}\u{1}", Some("400 Bad Request")),
            ("", Some("400 Bad Request")),
        ] {
            assert_eq!(verdict(request.as_bytes()).err(), status, "{request:?}");
        }
        assert_eq!(verdict(&[0xff; 40]), Err("400 Bad Request"));
    }
}
