//! Two ends of a connection of iWARP in one process, over TCP on lo, in a network namespace of their own.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferroce_engine::iwarp::{AcceptParams, ConnectParams, Connection, Event, Listener, Port, Request, Sink};
use ferroce_engine::{Context, QpAccess, QpAttr, QpAttrMask, QpState};
use ferroce_ipc::{BROKER_NAME, Client, LinkKind, Message, Setting};

use super::{End, Memory, PATIENCE, all_access, init, open};

const ROLE: &str = "FERROCE_TEST_ROLE";

/// Runs `body` in a new network namespace: this test once more.
pub fn inside(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        return body();
    }
    let forms = [vec!["--net"], vec!["--map-root-user", "--net"]];
    let works = |form: &&Vec<&str>| {
        let tried = Command::new("unshare").args(*form).arg("true").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let Some(form) = forms.iter().find(works) else {
        println!("skipped {name}: no network namespace can be made here");
        return;
    };
    let runtime = std::env::temp_dir().join(format!("ferroce-iwarp-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&runtime).unwrap();
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(form).args(["sh", "-c", script]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "inside").env("FERROCE_RUNTIME_DIR", &runtime);
    let status = command.status().unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

/// Whether [`device`] asks for a CRC. Set before its first call.
pub static CRC: AtomicBool = AtomicBool::new(true);

/// The iWARP device on lo, by the name `iw0`.
pub fn device() -> Arc<Context> {
    static DEVICE: OnceLock<Arc<Context>> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        drop(open());
        let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let add = Message::LinkAdd {
            name: "iw0".to_owned(),
            kind: LinkKind::Siw,
            netdev: "lo".to_owned(),
            transient: true,
        };
        client.request(&add, PATIENCE).unwrap();
        if !CRC.load(Ordering::Relaxed) {
            let settings = vec![Setting::Crc(false)];
            let set = Message::LinkSet { name: "iw0".to_owned(), settings, transient: true, force: false };
            client.request(&set, PATIENCE).unwrap();
        }
        // The broker tells of it a moment later.
        let start = Instant::now();
        loop {
            match Context::open("iw0") {
                Ok(context) => return context,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
        }
    });
    Arc::clone(made)
}

pub fn end(wr: u32, memory: usize) -> End {
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(2 * wr, 7, None, 0).unwrap();
    let memory = Memory::new(memory);
    let mr = pd.reg_mr(memory.addr(), memory.len(), memory.addr(), all_access()).unwrap();
    let qp = pd.create_qp(init(&cq, &cq, wr)).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Init,
        access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
    End { context, pd, channel: None, cq, memory, mr, qp }
}

pub type Events = Receiver<Event>;

pub fn events() -> (Sink, Events) {
    let (tell, events) = mpsc::channel();
    (Sink::new(move |event| drop(tell.send(event))), events)
}

pub fn next(events: &Events) -> Event {
    events.recv_timeout(PATIENCE).expect("an event")
}

pub fn nothing(events: &Events, time: Duration) {
    // A sink that is gone tells nothing either.
    let came = events.recv_timeout(time);
    assert!(came.is_err(), "{came:?}");
}

pub fn listen(backlog: u16) -> (Listener, SocketAddr, Events) {
    device();
    let (sink, events) = events();
    let port = Port::bind(([127, 0, 0, 1], 0).into(), false).unwrap();
    (Listener::listen(&port, backlog, sink).unwrap(), port.local(), events)
}

pub fn connect(end: &End, to: SocketAddr, private: &[u8]) -> (Connection, Events) {
    let (sink, events) = events();
    let port = Port::bind(([127, 0, 0, 1], 0).into(), false).unwrap();
    let params = ConnectParams { destination: to, qpn: end.qp.qpn(), ird: 3, ord: 5, private };
    (Connection::connect(&port, &params, sink).unwrap(), events)
}

pub fn request(events: &Events) -> Request {
    match next(events) {
        Event::Request(request) => *request,
        other => panic!("{other:?}"),
    }
}

pub fn accept(request: &Request, end: &End, private: &[u8]) {
    let params = AcceptParams { qpn: end.qp.qpn(), ird: 8, ord: 1, private };
    request.connection.accept(&params).unwrap();
}

pub fn established(event: Event) -> (u8, u8, Vec<u8>) {
    match event {
        Event::Established { ird, ord, private } => (ird, ord, private),
        other => panic!("{other:?}"),
    }
}

pub fn failed(event: Event) -> (i32, Vec<u8>) {
    match event {
        Event::Failed { errno, private } => (errno, private),
        other => panic!("{other:?}"),
    }
}

/// Two connected ends with their connections and events; the listener's events are those of the passive end.
pub struct Pair {
    pub active: (End, Connection, Events),
    pub passive: (End, Connection, Events),
    pub listener: Listener,
}

pub fn pair(wr: u32, memory: usize) -> Pair {
    let (listener, address, requests) = listen(1);
    let (a, b) = (end(wr, memory), end(wr, memory));
    let (connection, events) = connect(&a, address, b"question");
    let request = request(&requests);
    assert_eq!((request.ird, request.ord, &*request.private), (4, 8, &b"question"[..]), "powers of two");
    accept(&request, &b, b"answer");
    assert_eq!(established(next(&events)), (4, 8, b"answer".to_vec()));
    assert_eq!(established(next(&requests)).2, b"", "on the frame that says that the peer is ready");
    let passive = (b, request.connection, requests);
    Pair { active: (a, connection, events), passive, listener }
}
