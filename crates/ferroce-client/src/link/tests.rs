use std::net::Ipv4Addr;

use ferroce_cm::{CmEvent, CmEventKind};
use ferroce_ipc::{CmBind, CmDone, CmNotice, Connection, Hello, Leased, Listener, RefusalCode};
use ferroce_wire::cm::{CommId, PortSpace};

use super::*;

const SLOT: u16 = 0x21;
const LIMIT: Duration = Duration::from_secs(60);

/// A broker that says what a test wants, to one client.
struct Broker {
    _listener: Listener,
    connection: Connection,
    buffer: Vec<u8>,
}

impl Broker {
    fn accept(listener: Listener) -> Self {
        let end = Instant::now() + LIMIT;
        let connection = loop {
            match listener.accept() {
                Ok(connection) => break connection,
                Err(error) if Instant::now() >= end => panic!("no client: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let hello = Hello::ours("");
        connection.send(0, &Message::Hello(hello), &[]).unwrap();
        Self { _listener: listener, connection, buffer: Vec::new() }
    }

    fn next_within(&mut self, limit: Duration) -> Option<(u32, Message)> {
        self.connection.wait_readable(Instant::now() + limit).ok()?;
        Some(self.connection.recv(&mut self.buffer).unwrap().unwrap().message.unwrap())
    }

    /// The next message that is not about devices.
    fn next(&mut self) -> (u32, Message) {
        loop {
            match self.next_within(LIMIT).unwrap() {
                (_, Message::Hello(_) | Message::Devices(_)) => {}
                (id, Message::ListDevices) => self.say(id, &Message::Devices(Vec::new())),
                other => return other,
            }
        }
    }

    fn say(&self, id: u32, message: &Message) {
        self.connection.send(id, message, &[]).unwrap();
    }

    /// Leases the slot, and takes a bind.
    fn serve(&mut self) {
        let (id, Message::Lease(1)) = self.next() else { panic!("no lease") };
        self.say(id, &leased());
        let (id, Message::Cm(CmRequest::Bind(_))) = self.next() else { panic!("no bind") };
        self.say(id, &Message::CmDone(CmDone { port: 7471, ..CmDone::default() }));
    }
}

fn leased() -> Message {
    Message::Leased(Leased { slots: vec![SLOT], by_rings: true, ..Leased::default() })
}

fn connect(name: &str) -> BrokerClient {
    let options = ConnectOptions { name: name.to_owned(), ..ConnectOptions::new(BrokerMode::None) };
    BrokerClient::connect_with(options).unwrap()
}

fn bind(client: &BrokerClient) {
    client.lease(1).unwrap();
    let bind = CmBind {
        handle: 1,
        space: PortSpace::Tcp,
        port: 7471,
        address: Ipv4Addr::UNSPECIFIED.into(),
        interface: 0,
        reuse: false,
        v6_only: false,
    };
    client.connections(CmRequest::Bind(bind), |_| {}).unwrap();
}

fn name_of(test: &str) -> String {
    format!("ferroce.test.link.{}.{test}", std::process::id())
}

/// A client with a port of a broker that goes on so.
fn served(
    test: &str,
    go_on: impl FnOnce(Broker) + Send + 'static,
) -> (BrokerClient, std::thread::JoinHandle<()>) {
    let name = name_of(test);
    let listener = Listener::bind(&name).unwrap();
    let broker = std::thread::spawn(move || {
        let mut broker = Broker::accept(listener);
        broker.serve();
        go_on(broker);
    });
    let client = connect(&name);
    bind(&client);
    (client, broker)
}

/// Without a slot the next broker would refuse ports and connections, and let management datagrams pass the
/// rules.
#[test]
fn the_next_broker_hears_of_connections_when_it_gave_the_slots_back() {
    let name = name_of("order");
    let listener = Listener::bind(&name).unwrap();
    let brokers = std::thread::spawn({
        let name = name.clone();
        move || {
            let mut first = Broker::accept(listener);
            first.serve();
            let (id, Message::MadFaults { .. }) = first.next() else { panic!("no rules") };
            first.say(id, &Message::Done);
            drop(first);
            let mut second = Broker::accept(Listener::bind(&name).unwrap());
            let (resume, Message::ResumeByRings(_)) = second.next() else { panic!("slots not asked for") };
            if let Some((_, early)) = second.next_within(Duration::from_millis(50))
                && !matches!(early, Message::ListDevices)
            {
                panic!("{early:?}");
            }
            second.say(resume, &leased());
            let mut heard = Vec::new();
            while heard.last() != Some(&Message::Cm(CmRequest::Restored)) {
                let (id, message) = second.next();
                if matches!(message, Message::Cm(CmRequest::Bind(_))) {
                    second.say(id, &Message::CmDone(CmDone::default()));
                }
                heard.push(message);
            }
            heard
        }
    });
    let client = connect(&name);
    bind(&client);
    client.give_mad_rules("seed=1\ndrop if op=rep\n".to_owned()).unwrap();
    while !brokers.is_finished() {
        client.process();
        std::thread::sleep(Duration::from_millis(1));
    }
    let heard = brokers.join().unwrap();
    let [Message::MadFaults { .. }, Message::Cm(CmRequest::Bind(_)), Message::Cm(CmRequest::Restored)] =
        heard.as_slice()
    else {
        panic!("{heard:?}")
    };
}

/// A program handles the events that a broker sent before it died, because the next broker does not send them
/// again.
#[test]
fn events_of_a_dead_broker_count() {
    let (client, broker) = served("rest", |broker| {
        let kind = CmEventKind::TimeWaitOver;
        let event = CmEvent { owner: SLOT, id: CommId(7), kind };
        broker.say(0, &Message::CmEvent(CmNotice { event, serial: 1, record: Vec::new() }));
        // A message of the client stays unread, so the client sees a reset.
        broker.connection.wait_readable(Instant::now() + LIMIT).unwrap();
    });
    while !broker.is_finished() {
        client.tell(CmRequest::Close(CommId(8)));
        std::thread::sleep(Duration::from_millis(1));
    }
    broker.join().unwrap();
    client.tell(CmRequest::Close(CommId(8)));
    let events = client.process();
    let heard =
        |event: &BrokerEvent| matches!(event, BrokerEvent::Connection(event) if event.id == CommId(7));
    assert!(events.iter().any(heard), "{events:?}");
}

/// The answer to a request that was sent without waiting comes while a thread waits for another one.
#[test]
fn an_answer_between_is_not_lost() {
    let (client, broker) = served("between", |mut broker| {
        let (id, Message::Cm(CmRequest::Restore { .. })) = broker.next() else { panic!("no restore") };
        let (other, Message::GetStatistics(_)) = broker.next() else { panic!("no question") };
        let sentence = "not here".to_owned();
        broker.say(id, &Message::Refused(Refusal { code: RefusalCode::UnknownId, sentence }));
        broker.say(other, &Message::Statistics(Vec::new()));
        // Until the client is gone.
        while broker.next_within(LIMIT).is_some_and(|(_, said)| !matches!(said, Message::Release(_))) {}
    });
    {
        let mut guard = Guard::new(&client, client.inner.lock());
        guard.inner.book.outbox.push_back(CmRequest::Restore { id: CommId(9), record: vec![1] });
        assert!(guard.inner.tell().unwrap());
        let Link::Up { client, .. } = &mut guard.inner.link else { panic!("no broker") };
        let (answer, _) = client.request(&Message::GetStatistics("fr0".to_owned()), LIMIT).unwrap();
        assert_eq!(answer, Message::Statistics(Vec::new()));
    }
    let events = client.process();
    assert!(matches!(events.as_slice(), [BrokerEvent::ConnectionLost(CommId(9))]), "{events:?}");
    drop(client);
    broker.join().unwrap();
}

/// The broker dies before it reads that a connection is closed, and the process ends: it waits until the next
/// broker knows.
#[test]
fn the_end_of_a_process_waits_for_a_broker_that_heard_of_what_it_closed() {
    let id = CommId(u32::from(SLOT) << 20 | 1);
    let (client, broker) = served("leave", move |mut first| {
        let (establish, Message::Cm(CmRequest::Establish(_))) = first.next() else {
            panic!("not established")
        };
        let done = CmDone { id, port: 0, serial: 1, record: vec![1] };
        first.say(establish, &Message::CmDone(done));
        // The first broker does not read the next message.
        first.connection.wait_readable(Instant::now() + LIMIT).unwrap();
        drop(first);
        let mut second = Broker::accept(Listener::bind(&name_of("leave")).unwrap());
        let (resume, Message::ResumeByRings(_)) = second.next() else { panic!("slots not asked for") };
        second.say(resume, &leased());
        let mut heard = Vec::new();
        while heard.last() != Some(&CmRequest::Restored) {
            let (request, Message::Cm(said)) = second.next() else { panic!("something else") };
            if matches!(said, CmRequest::Bind(_) | CmRequest::Restore { .. }) {
                second.say(request, &Message::CmDone(CmDone::default()));
            }
            heard.push(said);
        }
        assert_eq!(
            heard[1..],
            [CmRequest::Restore { id, record: vec![1] }, CmRequest::Close(id), CmRequest::Restored]
        );
        // The client asks whether all was read, and goes.
        while second.next_within(LIMIT).is_some_and(|(id, said)| match said {
            Message::ListDevices => {
                second.say(id, &Message::Devices(Vec::new()));
                true
            }
            other => !matches!(other, Message::Release(_)),
        }) {}
    });
    client.connections(CmRequest::Establish(id), |_| {}).unwrap();
    client.tell(CmRequest::Close(id));
    client.take_leave();
    assert!(client.inner.lock().is_ready(), "a broker that knows");
    drop(client);
    broker.join().unwrap();
}
