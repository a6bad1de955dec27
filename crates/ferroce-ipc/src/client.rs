//! A blocking client of the broker: the command line uses it, and a program's own client uses it to connect.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::codec::MessageError;
use crate::connection::{Connection, Peer};
use crate::message::{Hello, MAJOR, MINOR, Message, Refusal, RefusalCode, SHOW_MADS};
use crate::strange::Strange;

/// Time limit for another user's broker to announce that it is leaving.
const LEAVE_NOTICE_TIMEOUT: Duration = Duration::from_millis(200);
/// Time limit for a broker that announced its leave to end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two checks whether a broker that announced its leave has ended.
const LEAVE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A greeted connection to the broker of this network namespace.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    buffer: Vec<u8>,
    next_id: u32,
    broker: Hello,
    peer: Peer,
    news: VecDeque<Answer>,
}

/// Reasons why a client cannot use the broker.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process holds the broker's name: start `ferroced`.
    #[error("no ferroced runs in this network namespace")]
    NoBroker,
    /// Another user's process holds the name.
    #[error(
        "@{name} is held by process {pid} of {}: stop it, or run in a network namespace of your own: \
         ferroce run --private-net -- CMD", Peer::user(*.uid)
    )]
    Foreign {
        name: String,
        /// Process id of the holder, 0 if it is in no pid namespace that this process sees.
        pid: u32,
        /// User, as in [`Peer`].
        uid: u32,
    },
    /// The broker closed the connection without an answer: it is leaving or died.
    #[error("ferroced closed the connection")]
    Closed,
    /// The broker did not answer within the limit.
    #[error("process {pid}, which holds the name of ferroced, does not answer")]
    Timeout {
        /// Process id of the holder.
        pid: u32,
    },
    /// The broker refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The broker sent bytes that are no valid message.
    #[error("ferroced sent something unintelligible")]
    Message(#[from] MessageError),
    /// The broker answered with another kind of message.
    #[error("ferroced gave an answer that does not belong to the question")]
    Unexpected,
    #[error("cannot talk to ferroced")]
    Io(#[from] io::Error),
}

/// A message with its request id (0 for a notification) and its descriptors.
pub type Answer = (u32, Message, Vec<OwnedFd>);

impl ClientError {
    /// Returns whether the client met a broker that is leaving, so that a new attempt may succeed with a new
    /// broker.
    pub fn is_leaving(&self) -> bool {
        match self {
            Self::NoBroker | Self::Closed => true,
            Self::Refused(refusal) => refusal.code == RefusalCode::Leaving,
            Self::Io(e) => matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}

impl Client {
    /// Connects to the broker that holds `name` and greets it. The broker must belong to our user or root.
    /// `netdev` is the requested view, empty for none.
    ///
    /// # Errors
    /// All of [`ClientError`].
    pub fn connect(name: &str, netdev: &str, limit: Duration) -> Result<Self, ClientError> {
        let deadline = Instant::now() + limit;
        let mut client = loop {
            match Self::begin(name, netdev) {
                // The listener's backlog is full: the broker will accept this client later.
                Err(ClientError::Io(e))
                    if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e @ ClientError::Foreign { .. }) => return Err(makes_way(name, deadline, e, is_trusted)),
                other => break other?,
            }
        };
        match client.receive(deadline)? {
            (_, Message::Hello(hello), _) if hello.major == MAJOR => client.broker = hello,
            (_, Message::Hello(hello), _) => {
                // The broker sends its own refusal as well, with a more precise sentence.
                if let Ok((_, Message::Refused(refusal), _)) = client.receive(deadline) {
                    return Err(refusal.into());
                }
                let theirs = format!("{}.{} ({})", hello.major, hello.minor, hello.build);
                let sentence = format!(
                    "ferroced speaks protocol {theirs}, this program {MAJOR}.{MINOR}: restart the older"
                );
                return Err(Refusal { code: RefusalCode::Version, sentence }.into());
            }
            (_, Message::Refused(refusal), _) => return Err(refusal.into()),
            _ => return Err(ClientError::Unexpected),
        }
        Ok(client)
    }

    /// Connects and greets without waiting. [`Client::poll`] returns the broker's answer as its first
    /// message.
    ///
    /// # Errors
    /// As [`Client::connect`], but none that needs an answer.
    pub fn begin(name: &str, netdev: &str) -> Result<Self, ClientError> {
        let (mut connection, peer) = reach(name)?;
        if !is_trusted(peer) {
            return Err(foreign(name, peer));
        }
        connection.take_descriptors(None);
        let client = Self {
            connection,
            buffer: Vec::new(),
            next_id: 1,
            broker: Hello::default(),
            peer,
            news: VecDeque::new(),
        };
        client.connection.send(0, &Message::Hello(Hello::ours(netdev)), &[])?;
        Ok(client)
    }

    pub fn broker(&self) -> &Hello {
        &self.broker
    }

    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Sends a request without waiting, with its descriptors, and returns its id.
    ///
    /// # Errors
    /// `WouldBlock` if the broker does not read; otherwise as [`Connection::send`].
    pub fn send(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let id = self.next_id;
        self.connection.send(id, message, descriptors)?;
        self.next_id = id.checked_add(1).unwrap_or(1);
        Ok(id)
    }

    /// Sends a message that has no answer, without waiting.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn tell(&mut self, message: &Message) -> io::Result<()> {
        self.connection.send(0, message, &[])
    }

    /// Waits until the broker has room for another message.
    ///
    /// # Errors
    /// `TimedOut`; otherwise those of `poll(2)`.
    pub fn wait_writable(&self, limit: Duration) -> io::Result<()> {
        self.connection.wait_writable(Instant::now() + limit)
    }

    /// Returns the next message, if one has arrived, with its id and descriptors.
    ///
    /// # Errors
    /// [`ClientError::Closed`] at the end of the connection, [`ClientError::Message`], [`ClientError::Io`].
    pub fn poll(&mut self) -> Result<Option<Answer>, ClientError> {
        if let Some(kept) = self.news.pop_front() {
            return Ok(Some(kept));
        }
        match self.take() {
            Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other.map(Some),
        }
    }

    /// Sends a request and waits for its answer. The client keeps other messages for [`Client::poll`].
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's sentence; the others of [`ClientError`].
    pub fn request(
        &mut self,
        message: &Message,
        limit: Duration,
    ) -> Result<(Message, Vec<OwnedFd>), ClientError> {
        self.request_with(message, &[], limit)
    }

    /// Sends a request like [`Client::request`], with the descriptors that belong to the message.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn request_with(
        &mut self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Message, Vec<OwnedFd>), ClientError> {
        let deadline = Instant::now() + limit;
        loop {
            match self.send(message, descriptors) {
                Ok(id) => return self.answer(id, deadline),
                // The broker reads no request while answers to earlier ones wait for us.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.connection.wait_ready(deadline).map_err(|e| self.timeout(e))?;
                    self.keep_news()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits for one more message with the id of the last request.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn more(&mut self, limit: Duration) -> Result<(Message, Vec<OwnedFd>), ClientError> {
        self.answer(self.next_id.wrapping_sub(1), Instant::now() + limit)
    }

    /// Waits for the next message, the answer to whichever request it is. A refusal is a message as well.
    ///
    /// # Errors
    /// Returns each [`ClientError`] but [`ClientError::Refused`].
    pub fn next(&mut self, limit: Duration) -> Result<Answer, ClientError> {
        match self.news.pop_front() {
            Some(kept) => Ok(kept),
            None => self.receive(Instant::now() + limit),
        }
    }

    /// Returns whether [`Client::poll`] has a message to return although the socket is not readable.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn answer(&mut self, id: u32, deadline: Instant) -> Result<(Message, Vec<OwnedFd>), ClientError> {
        // An answer has rarely arrived at this point.
        self.connection.wait_readable(deadline).map_err(|e| self.timeout(e))?;
        loop {
            match self.receive(deadline)? {
                (got, Message::Refused(refusal), _) if got == id || got == 0 => return Err(refusal.into()),
                (got, message, descriptors) if got == id => return Ok((message, descriptors)),
                // News, or the answer to a request that another part of the program sent without waiting.
                other => self.news.push_back(other),
            }
        }
    }

    /// Reads all messages that have arrived, for [`Client::poll`].
    fn keep_news(&mut self) -> Result<(), ClientError> {
        loop {
            match self.take() {
                Ok(news) => self.news.push_back(news),
                Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<Answer, ClientError> {
        loop {
            match self.take() {
                Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.connection.wait_readable(deadline).map_err(|e| self.timeout(e))?;
                }
                other => return other,
            }
        }
    }

    /// Reads the next message whose kind this build knows.
    fn take(&mut self) -> Result<Answer, ClientError> {
        loop {
            let Some(received) = self.connection.recv(&mut self.buffer)? else {
                return Err(ClientError::Closed);
            };
            match received.message {
                Ok((id, message)) => {
                    let descriptors = received.descriptors.into_iter().map(Strange::into_owned);
                    return Ok((id, message, descriptors.collect()));
                }
                Err(MessageError::UnknownKind(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn timeout(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::TimedOut => ClientError::Timeout { pid: self.peer.pid },
            _ => error.into(),
        }
    }
}

fn reach(name: &str) -> Result<(Connection, Peer), ClientError> {
    let connection = Connection::connect(name).map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => ClientError::NoBroker,
        _ => e.into(),
    })?;
    let peer = connection.peer()?;
    Ok((connection, peer))
}

/// A client trusts brokers of its own user and of root.
fn is_trusted(peer: Peer) -> bool {
    peer.uid == nix::unistd::geteuid().as_raw() || peer.uid == 0
}

fn foreign(name: &str, peer: Peer) -> ClientError {
    ClientError::Foreign { name: name.to_owned(), pid: peer.pid, uid: peer.uid }
}

/// Waits for another user's broker that serves no program and announces its leave. The error is
/// [leaving](ClientError::is_leaving) once the name is free or a trusted broker holds it. Otherwise the error
/// is `foreign`: the broker stays, or the name's holder does not end as announced. The client sends nothing
/// to the holder and passes on none of its text.
fn makes_way(
    name: &str,
    deadline: Instant,
    foreign: ClientError,
    is_trusted: impl Fn(Peer) -> bool,
) -> ClientError {
    let deadline = deadline.min(Instant::now() + LEAVE_TIMEOUT);
    loop {
        match reach(name) {
            Ok((_, peer)) if is_trusted(peer) => return ClientError::Closed,
            Ok((connection, _)) => {
                match first_word(&connection, deadline.min(Instant::now() + LEAVE_NOTICE_TIMEOUT)) {
                    Ok(Message::Refused(refusal)) if refusal.code == RefusalCode::Leaving => {}
                    // The broker ended before it accepted this connection. The next attempt shows the new
                    // holder of the name.
                    Err(e) if e.is_leaving() => {}
                    _ => return foreign,
                }
            }
            Err(e) if e.is_leaving() => return e,
            Err(_) => return foreign,
        }
        if Instant::now() >= deadline {
            return foreign;
        }
        std::thread::sleep(LEAVE_CHECK_INTERVAL);
    }
}

fn first_word(connection: &Connection, deadline: Instant) -> Result<Message, ClientError> {
    connection.wait_readable(deadline)?;
    // The packet stays where it is: whoever takes it out closes its descriptors.
    match connection.peek(&mut Vec::new())? {
        Some(message) => Ok(message?),
        None => Err(ClientError::Closed),
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Hello {
    /// Builds this build's greeting.
    pub fn ours(netdev: &str) -> Self {
        Self {
            major: MAJOR,
            minor: MINOR,
            features: if ferroce_host::environment::variable("FERROCE_GSO")
                .is_some_and(|value| value == "off")
            {
                SHOW_MADS
            } else {
                0
            },
            build: concat!("ferroce ", env!("CARGO_PKG_VERSION")).to_owned(),
            netdev: netdev.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Listener;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Starts a broker that sends `script` to its first client, ignores its messages, and closes after the
    /// client did.
    fn broker(case: &str, script: Vec<Vec<u8>>) -> (String, std::thread::JoinHandle<()>) {
        let name = format!("ferroce.test.{}.{case}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let thread = std::thread::spawn(move || {
            let connection = loop {
                match listener.accept() {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            for bytes in script {
                crate::packet::send(connection.as_fd(), &bytes, &[]).unwrap();
            }
            let _ = rustix::net::shutdown(&connection, rustix::net::Shutdown::Write);
            loop {
                connection.wait_readable(Instant::now() + LIMIT).unwrap();
                if !matches!(connection.recv(&mut Vec::new()), Ok(Some(_))) {
                    return;
                }
            }
        });
        (name, thread)
    }

    fn hello(major: u16) -> Vec<u8> {
        Message::Hello(Hello { major, ..Hello::ours("") }).encode(0).unwrap()
    }

    fn refused(code: RefusalCode, sentence: &str) -> Vec<u8> {
        Message::Refused(Refusal { code, sentence: sentence.to_owned() }).encode(0).unwrap()
    }

    #[test]
    fn what_meets_a_client() {
        let unknown = {
            let mut bytes = Message::Done.encode(0).unwrap();
            bytes[10] = 200;
            bytes
        };
        let newer_minor = Hello { minor: MINOR + 1, ..Hello::ours("") };
        let newer_minor = Message::Hello(newer_minor).encode(0).unwrap();
        type Script = Vec<Vec<u8>>;
        let cases: Vec<(&str, Script, Result<&str, &str>)> = vec![
            ("greets", vec![hello(MAJOR)], Ok("")),
            ("newer", vec![unknown, hello(MAJOR)], Ok("")),
            ("newer-minor", vec![newer_minor], Ok("")),
            ("other-major", vec![hello(MAJOR + 1)], Err("ferroced speaks protocol 2.")),
            ("other-major-says-so", vec![hello(MAJOR + 1), refused(RefusalCode::Version, "no")], Err("no")),
            ("foreign", vec![refused(RefusalCode::ForeignUser, "not for you")], Err("not for you")),
            ("silent", vec![], Err("ferroced closed the connection")),
            ("noise", vec![b"HTTP/1.1 400".to_vec()], Err("ferroced sent something unintelligible")),
            ("confused", vec![Message::Done.encode(0).unwrap()], Err("ferroced gave an answer")),
        ];
        for (case, script, want) in cases {
            let (name, thread) = broker(case, script);
            match (Client::connect(&name, "", LIMIT), want) {
                (Ok(client), Ok(_)) => assert_eq!(client.broker().major, MAJOR),
                (Err(e), Err(start)) => assert!(e.to_string().starts_with(start), "{case}: {e}"),
                (got, want) => panic!("{case}: {got:?}, not {want:?}"),
            }
            thread.join().unwrap();
        }
    }

    /// A client accepts another user's idle broker as leaving if that broker announces its leave or has ended
    /// already.
    #[test]
    fn what_becomes_of_another_users_broker() {
        let foreign = |name: &str| ClientError::Foreign { name: name.to_owned(), pid: 1, uid: 2 };
        let squatter = format!("ferroce.test.{}.squatter", std::process::id());
        let listener = Listener::bind(&squatter).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let word = refused(RefusalCode::Leaving, "soon, says a stranger");
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    match listener.accept() {
                        Ok(connection) => drop(crate::packet::send(connection.as_fd(), &word, &[])),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
            let error = makes_way(&squatter, Instant::now() + LIMIT, foreign(&squatter), |_| false);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                matches!(error, ClientError::Foreign { .. }),
                "it says that it leaves, and stays: {error}"
            );
        });
        for (case, script, leaves) in [
            ("stays", vec![refused(RefusalCode::ForeignUser, "not for you")], false),
            ("asks", vec![hello(MAJOR)], false),
            ("leaves", vec![refused(RefusalCode::Leaving, "not for you, but")], true),
            ("left", vec![], true),
        ] {
            let (name, thread) = broker(case, script);
            let error = makes_way(&name, Instant::now() + LIMIT, foreign(&name), |_| false);
            assert_eq!(error.is_leaving(), leaves, "{case}: {error}");
            thread.join().unwrap();
        }
        let (name, thread) = broker("trusted", vec![]);
        assert!(makes_way(&name, Instant::now() + LIMIT, foreign(&name), |_| true).is_leaving());
        thread.join().unwrap();
    }

    #[test]
    fn answers_are_told_from_news() {
        let answer = Message::Done.encode(1).unwrap();
        let news = Message::Devices(vec![]).encode(0).unwrap();
        let no = Message::Refused(Refusal { code: RefusalCode::Busy, sentence: "busy".to_owned() });
        let (name, thread) = broker("news", vec![hello(MAJOR), news, answer, no.encode(2).unwrap()]);
        let mut client = Client::connect(&name, "", LIMIT).unwrap();
        assert_eq!(client.request(&Message::ListDevices, LIMIT).unwrap().0, Message::Done);
        assert!(client.has_news());
        assert!(matches!(client.poll(), Ok(Some((0, Message::Devices(_), _)))));
        match client.request(&Message::ListDevices, LIMIT) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::Busy),
            other => panic!("{other:?}"),
        }
        assert!(matches!(client.request(&Message::ListDevices, LIMIT), Err(ClientError::Closed)));
        drop(client);
        thread.join().unwrap();
    }

    /// A broker that reads on only when its client has read what waits.
    #[test]
    fn a_request_reads_what_keeps_the_broker_from_reading() {
        const LIMIT: Duration = Duration::from_secs(60);
        let name = format!("ferroce.test.{}.full", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let (tell_full, full) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let deadline = Instant::now() + LIMIT;
            let connection = loop {
                match listener.accept() {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            crate::packet::send(connection.as_fd(), &hello(MAJOR), &[]).unwrap();
            let mut sent = 0;
            while connection.send(0, &Message::Devices(vec![]), &[]).is_ok() {
                sent += 1;
            }
            tell_full.send(sent).unwrap();
            connection.wait_writable(deadline).unwrap();
            loop {
                connection.wait_readable(deadline).unwrap();
                match connection.recv(&mut Vec::new()).unwrap().unwrap().message {
                    Ok((0, _)) => {}
                    Ok((id, _)) => return connection.send(id, &Message::Done, &[]).unwrap(),
                    Err(e) => panic!("{e}"),
                }
            }
        });
        let mut client = Client::connect(&name, "", LIMIT).unwrap();
        let news: usize = full.recv().unwrap();
        while client.tell(&Message::ListDevices).is_ok() {}
        assert_eq!(client.request(&Message::GetStatus, LIMIT).unwrap().0, Message::Done);
        let kept = std::iter::from_fn(|| client.poll().ok().flatten());
        assert_eq!(
            kept.filter(|(id, ..)| *id == 0).count(),
            news,
            "in the order of their arrival, none lost"
        );
        thread.join().unwrap();
    }

    #[test]
    fn nobody_and_nobody_who_answers() {
        let name = format!("ferroce.test.{}.nobody", std::process::id());
        assert!(matches!(Client::connect(&name, "", LIMIT), Err(ClientError::NoBroker)));
        let _mute = Listener::bind(&name).unwrap();
        let pid = std::process::id();
        match Client::connect(&name, "", Duration::from_millis(20)) {
            Err(ClientError::Timeout { pid: named }) => assert_eq!(named, pid),
            other => panic!("{other:?}"),
        }
    }
}
