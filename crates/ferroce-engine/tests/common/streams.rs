//! Two ends of a connection of iWARP in one process, over TCP on lo, in a network namespace of their own.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferroce_engine::cm::resolve::{self, Transports};
use ferroce_engine::cm::{
    AcceptParams, Bind, ConnectParams, Connection, EventKind, EventSink, Port, Request, Terms,
};
use ferroce_engine::{Context, QpAccess, QpAttr, QpAttrMask, QpState};
use ferroce_ipc::{BROKER_NAME, Client, LinkKind, Message, Setting};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{PortSpace, RejReason};

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
        state: QpState::Init,
        access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
    End { context, pd, channel: None, cq, memory, mr, qp }
}

pub type Events = Receiver<EventKind>;

pub fn events() -> (EventSink, Events) {
    let (tell, events) = mpsc::channel();
    (EventSink::new(move |event| drop(tell.send(event.kind))), events)
}

pub fn next(events: &Events) -> EventKind {
    events.recv_timeout(PATIENCE).expect("an event")
}

pub fn nothing(events: &Events, time: Duration) {
    // A sink that is gone tells nothing either.
    let came = events.recv_timeout(time);
    assert!(came.is_err(), "{came:?}");
}

pub fn port(address: SocketAddr) -> Port {
    let bind = Bind { transports: Transports::Iwarp, ..Bind::new(PortSpace::Tcp, address) };
    Port::bind(&bind).unwrap()
}

pub fn listen(backlog: u16) -> (Port, SocketAddr, Events) {
    device();
    let (sink, events) = events();
    let port = port(([127, 0, 0, 1], 0).into());
    port.listen(backlog, sink).unwrap();
    let address = ([127, 0, 0, 1], port.number()).into();
    (port, address, events)
}

pub fn connect(end: &End, to: SocketAddr, private: &[u8]) -> (Connection, Events) {
    let (sink, events) = events();
    let port = port(([127, 0, 0, 1], 0).into());
    let route = resolve::route_by(Transports::Iwarp, None, to).unwrap();
    let params =
        ConnectParams { responder_resources: 3, initiator_depth: 5, ..route.request(end.qp.qpn(), None) };
    (port.connect(&route, &params, private, sink).unwrap().0, events)
}

pub fn request(events: &Events) -> Request {
    match next(events) {
        EventKind::Request(request) => *request,
        other => panic!("{other:?}"),
    }
}

/// The answer that names a queue pair, with these depths.
pub fn answer(qpn: Qpn, responder_resources: u8, initiator_depth: u8) -> AcceptParams {
    AcceptParams { responder_resources, initiator_depth, ..AcceptParams::new(0, qpn) }
}

pub fn accept(request: &Request, end: &End, private: &[u8]) {
    request.connection.accept(&answer(end.qp.qpn(), 8, 1), private).unwrap();
}

pub fn established(event: EventKind) -> (u8, u8, Vec<u8>) {
    match event {
        EventKind::Established(Terms { responder_resources, initiator_depth, private }) => {
            (responder_resources, initiator_depth, private.into())
        }
        other => panic!("{other:?}"),
    }
}

pub fn rejected(event: EventKind) -> (RejReason, Vec<u8>) {
    match event {
        EventKind::Rejected { reason, private } => (reason, private.into()),
        other => panic!("{other:?}"),
    }
}

/// Two connected ends with their connections and events; the listener's events are those of the passive end.
pub struct Pair {
    pub active: (End, Connection, Events),
    pub passive: (End, Connection, Events),
    pub listener: Port,
}

pub fn pair(wr: u32, memory: usize) -> Pair {
    let (listener, address, requests) = listen(1);
    let (a, b) = (end(wr, memory), end(wr, memory));
    let (connection, events) = connect(&a, address, b"question");
    let request = request(&requests);
    let depths = (request.responder_resources, request.initiator_depth);
    assert_eq!((depths, &*request.private), ((4, 8), &b"question"[..]), "powers of two");
    accept(&request, &b, b"answer");
    assert_eq!(established(next(&events)), (4, 8, b"answer".to_vec()));
    assert_eq!(established(next(&requests)).2, b"", "on the frame that says that the peer is ready");
    let passive = (b, request.connection, requests);
    Pair { active: (a, connection, events), passive, listener }
}
