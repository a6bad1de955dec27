//! The public functions, constants, setters and names of the crate. A changed signature does not compile here, and a
//! function or an export of lib.rs that this file does not name fails the test. Fields, variants and traits are
//! listed by hand.

#![allow(clippy::type_complexity, reason = "the signatures are written out")]

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeFull;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;

use ferroce::cm::{
    ACCEPT_PRIVATE_DATA, Acceptor, Connected, Connector, DATAGRAM_ANSWER_PRIVATE_DATA,
    DATAGRAM_REQUEST_PRIVATE_DATA, DatagramConnector, DatagramListener, DatagramPeer, DatagramRequest,
    EndOptions, Listener, Pending, PendingPeer, REJECT_PRIVATE_DATA, REQUEST_PRIVATE_DATA, Request,
};
use ferroce::error::{Device, ErrorKind, Peer, System, Usage};
use ferroce::service::{Connected as ConnectedService, Rc, Shares, Uc, Ud};
use ferroce::*;

type Done<T = ()> = Result<T, Error>;
type Step<From, To, S = Rc> = Result<QueuePair<To, S>, QpError<QueuePair<From, S>>>;
type Queues = fn(&ProtectionDomain, &CompletionQueue, &CompletionQueue, QpOptions) -> Done<QueuePair<Reset>>;
type Region = MemoryRegion<'static>;

/// Compiles if each item has its type.
macro_rules! items {
    ($($item:expr => $type:ty;)*) => {
        $(let _: $type = $item;)*
    };
}

#[test]
fn functions_have_their_signatures() {
    items! {
        devices => fn() -> Done<Vec<DeviceInfo>>;
        Context::open => fn(&str) -> Done<Context>;
        Context::attributes => fn(&Context) -> DeviceAttr;
        Context::port => fn(&Context) -> Done<PortAttr>;
        Context::gids => fn(&Context) -> Vec<GidEntry>;
        Context::gid => fn(&Context, u32) -> Done<GidEntry>;
        Context::protection_domain => fn(&Context) -> Done<ProtectionDomain>;
        Context::completion_channel => fn(&Context) -> Done<CompletionChannel>;
        Context::completion_queue => fn(&Context, u32, Option<&CompletionChannel>) -> Done<CompletionQueue>;
        Context::device_memory => fn(&Context, usize) -> Done<DeviceMemory>;
        Context::xrc_domain => fn(&Context) -> Done<XrcDomain>;
        Context::xrc_domain_of => fn(&Context, fs::File) -> Done<XrcDomain>;
        Context::wait_event => fn(&Context) -> Done<Event>;
        Context::event_fd => fn(&Context) -> BorrowedFd<'_>;
        Context::clock => fn(&Context) -> u64;
        Completion::ok => fn(Completion) -> Done<Completion>;
        Event::queue_pair => fn(&Event) -> Option<Qpn>;

        ProtectionDomain::context => fn(&ProtectionDomain) -> Context;
        ProtectionDomain::register => fn(&ProtectionDomain, Vec<u8>, Access) -> Done<Region>;
        ProtectionDomain::allocate => fn(&ProtectionDomain, usize, Access) -> Done<Region>;
        ProtectionDomain::register_device_memory =>
            fn(&ProtectionDomain, &DeviceMemory, usize, usize, Access) -> Done<Region>;
        ProtectionDomain::register_for =>
            fn(&ProtectionDomain, &mut [u8], Access, fn(&MemoryRegion<'_>) -> u8) -> Done<u8>;
        ProtectionDomain::register_raw =>
            unsafe fn(&ProtectionDomain, NonNull<u8>, usize, Access) -> Done<Region>;
        ProtectionDomain::rc_queue_pair => Queues;
        ProtectionDomain::uc_queue_pair =>
            fn(&ProtectionDomain, &CompletionQueue, &CompletionQueue, QpOptions) -> Done<QueuePair<Reset, Uc>>;
        ProtectionDomain::ud_queue_pair =>
            fn(&ProtectionDomain, &CompletionQueue, &CompletionQueue, QpOptions) -> Done<QueuePair<Reset, Ud>>;
        ProtectionDomain::queue_pair_on::<Rc> =>
            fn(&ProtectionDomain, &SharedReceiveQueue, &CompletionQueue, &CompletionQueue, QpOptions)
                -> Done<QueuePair<Reset>>;
        ProtectionDomain::shared_receive_queue =>
            fn(&ProtectionDomain, SrqOptions) -> Done<SharedReceiveQueue>;
        ProtectionDomain::address_handle => fn(&ProtectionDomain, u8, Gid) -> Done<AddressHandle>;
        ProtectionDomain::answer => fn(&ProtectionDomain, &[u8; HEADER]) -> Done<AddressHandle>;
        ProtectionDomain::memory_window => fn(&ProtectionDomain) -> Done<MemoryWindow>;
        ProtectionDomain::xrc_initiator =>
            fn(&ProtectionDomain, &CompletionQueue, QpOptions) -> Done<XrcInitiator>;

        MemoryRegion::len => fn(&Region) -> usize;
        MemoryRegion::is_empty => fn(&Region) -> bool;
        MemoryRegion::slice => fn(&Region, RangeFull) -> Slice;
        MemoryRegion::remote => fn(&Region, usize) -> RemoteMemory;
        MemoryRegion::rkey => fn(&Region) -> Rkey;
        MemoryRegion::read => fn(&Region, usize, &mut [u8]);
        MemoryRegion::write => fn(&Region, usize, &[u8]);
        MemoryRegion::load => fn(&Region, usize) -> u64;
        MemoryRegion::store => fn(&Region, usize, u64);
        MemoryRegion::to_vec => fn(&Region) -> Vec<u8>;
        MemoryRegion::into_memory => fn(Region) -> Vec<u8>;
        Slice::len => fn(&Slice) -> usize;
        Slice::is_empty => fn(&Slice) -> bool;
        DeviceMemory::len => fn(&DeviceMemory) -> usize;
        DeviceMemory::read => fn(&DeviceMemory, usize, &mut [u8]) -> Done;
        DeviceMemory::write => fn(&DeviceMemory, usize, &[u8]) -> Done;
        MemoryWindow::remote => fn(&MemoryWindow) -> RemoteMemory;
        RemoteMemory::to_bytes => fn(&RemoteMemory) -> [u8; 13];
        RemoteMemory::from_bytes => fn(&[u8; 13]) -> Done<RemoteMemory>;

        CompletionChannel::wait => fn(&CompletionChannel) -> Done<CompletionQueue>;
        CompletionQueue::poll => fn(&CompletionQueue, &mut Vec<Completion>, usize) -> Done<usize>;
        CompletionQueue::poll_timed => fn(&CompletionQueue) -> Done<Option<(Completion, u64)>>;
        CompletionQueue::capacity => fn(&CompletionQueue) -> u32;
        CompletionQueue::resize => fn(&CompletionQueue, u32) -> Done;
        CompletionQueue::moderate => fn(&CompletionQueue, Moderation);
        CompletionQueue::wait => fn(&CompletionQueue) -> Done<Completion>;
        CompletionQueue::wait_many => fn(&CompletionQueue, &mut Vec<Completion>, usize) -> Done<usize>;
        CompletionQueue::request_event => fn(&CompletionQueue);
        CompletionQueue::request_solicited_event => fn(&CompletionQueue);
        SharedReceiveQueue::post_recv => fn(&SharedReceiveQueue, u64, &[Slice]) -> Done;
        SharedReceiveQueue::set_limit => fn(&SharedReceiveQueue, u32) -> Done;
        SharedReceiveQueue::resize => fn(&SharedReceiveQueue, u32) -> Done;
        SharedReceiveQueue::limit => fn(&SharedReceiveQueue) -> u32;
        SharedReceiveQueue::number => fn(&SharedReceiveQueue) -> SrqNumber;

        QueuePair::<Reset>::qpn => fn(&QueuePair<Reset>) -> Qpn;
        QueuePair::<Reset>::state => fn(&QueuePair<Reset>) -> QpState;
        QueuePair::<Reset>::send_queue => fn(&QueuePair<Reset>) -> &CompletionQueue;
        QueuePair::<Reset>::receive_queue => fn(&QueuePair<Reset>) -> &CompletionQueue;
        QueuePair::<Reset>::address => fn(&QueuePair<Reset>, u8) -> Done<Address>;
        QueuePair::<Init>::reset => fn(QueuePair<Init>) -> Step<Init, Reset>;
        QueuePair::<Reset>::init => fn(QueuePair<Reset>, Access) -> Step<Reset, Init>;
        QueuePair::<Reset, Uc>::init => fn(QueuePair<Reset, Uc>, Access) -> Step<Reset, Init, Uc>;
        QueuePair::<Reset, Ud>::init => fn(QueuePair<Reset, Ud>, Qkey) -> Step<Reset, Init, Ud>;
        QueuePair::<Init>::post_recv => fn(&QueuePair<Init>, u64, &[Slice]) -> Done;
        QueuePair::<ReadyToReceive>::post_recv => fn(&QueuePair<ReadyToReceive>, u64, &[Slice]) -> Done;
        QueuePair::<ReadyToSend>::post_recv => fn(&QueuePair<ReadyToSend>, u64, &[Slice]) -> Done;
        QueuePair::<Init>::ready_to_receive => fn(QueuePair<Init>, &Connection) -> Step<Init, ReadyToReceive>;
        QueuePair::<Init, Ud>::ready_to_receive => fn(QueuePair<Init, Ud>) -> Step<Init, ReadyToReceive, Ud>;
        QueuePair::<ReadyToReceive>::ready_to_send =>
            fn(QueuePair<ReadyToReceive>, SendOptions) -> Step<ReadyToReceive, ReadyToSend>;
        QueuePair::<ReadyToReceive, Uc>::ready_to_send =>
            fn(QueuePair<ReadyToReceive, Uc>) -> Step<ReadyToReceive, ReadyToSend, Uc>;
        QueuePair::<ReadyToReceive, Ud>::ready_to_send =>
            fn(QueuePair<ReadyToReceive, Ud>) -> Step<ReadyToReceive, ReadyToSend, Ud>;
        QueuePair::<ReadyToSend>::post_send => fn(&QueuePair<ReadyToSend>, &'static [WorkRequest]) -> Done;
        QueuePair::<ReadyToSend>::send => fn(&QueuePair<ReadyToSend>, u64, &[Slice]) -> Done;
        QueuePair::<ReadyToSend>::send_inline => fn(&QueuePair<ReadyToSend>, u64, &[u8]) -> Done;
        QueuePair::<ReadyToSend>::write => fn(&QueuePair<ReadyToSend>, u64, &[Slice], RemoteMemory) -> Done;
        QueuePair::<ReadyToSend>::read => fn(&QueuePair<ReadyToSend>, u64, &[Slice], RemoteMemory) -> Done;
        QueuePair::<ReadyToSend, Ud>::send_to =>
            fn(&QueuePair<ReadyToSend, Ud>, u64, &[Slice], &AddressHandle, Qpn, Qkey) -> Done;
        QueuePair::<Init, Ud>::attach => fn(&QueuePair<Init, Ud>, Gid) -> Done;
        QueuePair::<Init, Ud>::detach => fn(&QueuePair<Init, Ud>, Gid) -> Done;

        WorkRequest::send => fn(u64, &[Slice]) -> WorkRequest;
        WorkRequest::send_imm => fn(u64, &[Slice], Imm) -> WorkRequest;
        WorkRequest::send_invalidate => fn(u64, &[Slice], Rkey) -> WorkRequest;
        WorkRequest::write => fn(u64, &[Slice], RemoteMemory) -> WorkRequest;
        WorkRequest::write_imm => fn(u64, &[Slice], RemoteMemory, Imm) -> WorkRequest;
        WorkRequest::read => fn(u64, &[Slice], RemoteMemory) -> WorkRequest;
        WorkRequest::compare_swap => fn(u64, Slice, RemoteMemory, u64, u64) -> WorkRequest;
        WorkRequest::fetch_add => fn(u64, Slice, RemoteMemory, u64) -> WorkRequest;
        WorkRequest::atomic_write => fn(u64, [u8; 8], RemoteMemory) -> WorkRequest;
        WorkRequest::bind =>
            fn(u64, &mut MemoryWindow, &MemoryRegion<'_>, RangeFull, Access) -> WorkRequest;
        WorkRequest::local_invalidate => fn(u64, Rkey) -> WorkRequest;
        WorkRequest::to => fn(WorkRequest, &AddressHandle, Qpn, Qkey) -> Done<WorkRequest>;
        WorkRequest::to_queue => fn(WorkRequest, SrqNumber) -> WorkRequest;
        WorkRequest::inline => fn(WorkRequest, &[u8]) -> WorkRequest;
        WorkRequest::unsignaled => fn(WorkRequest) -> WorkRequest;
        WorkRequest::solicited => fn(WorkRequest) -> WorkRequest;
        WorkRequest::fenced => fn(WorkRequest) -> WorkRequest;

        Address::new => fn(Gid, Qpn, Psn, PathMtu) -> Address;
        Address::to_bytes => fn(&Address) -> [u8; 24];
        Address::from_bytes => fn(&[u8; 24]) -> Done<Address>;
        Connection::to => fn(Address, Address) -> Connection;

        XrcDomain::target => fn(&XrcDomain) -> Done<XrcTarget>;
        XrcDomain::shared_receive_queue =>
            fn(&XrcDomain, &ProtectionDomain, &CompletionQueue, SrqOptions) -> Done<SharedReceiveQueue>;
        XrcTarget::qpn => fn(&XrcTarget) -> Qpn;
        XrcTarget::address => fn(&XrcTarget, u8) -> Done<Address>;
        XrcTarget::connect => fn(&XrcTarget, &Connection, Access) -> Done;
        XrcInitiator::qpn => fn(&XrcInitiator) -> Qpn;
        XrcInitiator::send_queue => fn(&XrcInitiator) -> &CompletionQueue;
        XrcInitiator::address => fn(&XrcInitiator, u8) -> Done<Address>;
        XrcInitiator::connect => fn(&XrcInitiator, &Connection, SendOptions) -> Done;
        XrcInitiator::post_send => fn(&XrcInitiator, &'static [WorkRequest]) -> Done;
        XrcInitiator::send => fn(&XrcInitiator, u64, &[Slice], SrqNumber) -> Done;

        Error::kind => fn(&Error) -> ErrorKind;
        Error::is_queue_full => fn(&Error) -> bool;
        Error::index => fn(&Error) -> Option<usize>;
        Error::private_data => fn(&Error) -> &[u8];
        Error::raw_os_error => fn(&Error) -> Option<i32>;

        Listener::bind => fn(SocketAddr) -> Done<Listener>;
        Listener::with_backlog => fn(SocketAddr, u16) -> Done<Listener>;
        Listener::local_addr => fn(&Listener) -> SocketAddr;
        Listener::accept => fn(&Listener) -> Done<Request>;
        Listener::poll => fn(&Listener) -> Option<Request>;
        Request::local_addr => fn(&Request) -> SocketAddr;
        Request::peer_addr => fn(&Request) -> SocketAddr;
        Request::private_data => fn(&Request) -> &[u8];
        Request::device => fn(&Request) -> Done<Context>;
        Request::prepare => fn(Request, &EndOptions) -> Done<Acceptor>;
        Request::reject => fn(Request, &[u8]) -> Done;
        Acceptor::domain => fn(&Acceptor) -> &ProtectionDomain;
        Acceptor::queue_pair => fn(&Acceptor) -> &QueuePair<Init>;
        Acceptor::request => fn(&Acceptor) -> &Request;
        Acceptor::accept => fn(Acceptor, &[u8]) -> Done<Connected>;
        Acceptor::start => fn(Acceptor, &[u8]) -> Done<Pending>;
        Connector::new => fn(SocketAddr, &EndOptions) -> Done<Connector>;
        Connector::bound => fn(SocketAddr, SocketAddr, &EndOptions) -> Done<Connector>;
        Connector::device_for => fn(SocketAddr) -> Done<Context>;
        Connector::domain => fn(&Connector) -> &ProtectionDomain;
        Connector::queue_pair => fn(&Connector) -> &QueuePair<Init>;
        Connector::local_addr => fn(&Connector) -> SocketAddr;
        Connector::connect => fn(Connector, &[u8]) -> Done<Connected>;
        Connector::start => fn(Connector, &[u8]) -> Done<Pending>;
        Pending::poll => fn(&mut Pending) -> Done<Option<Connected>>;
        Pending::wait => fn(&mut Pending) -> Done<Connected>;
        Connected::queue_pair => fn(&Connected) -> &QueuePair<ReadyToSend>;
        Connected::domain => fn(&Connected) -> &ProtectionDomain;
        Connected::local_addr => fn(&Connected) -> SocketAddr;
        Connected::peer_addr => fn(&Connected) -> SocketAddr;
        Connected::private_data => fn(&Connected) -> &[u8];
        Connected::disconnect => fn(&Connected) -> Done;
        Connected::poll_disconnected => fn(&mut Connected) -> bool;
        Connected::wait_disconnected => fn(&mut Connected) -> Done;
        DatagramListener::bind => fn(SocketAddr) -> Done<DatagramListener>;
        DatagramListener::with_backlog => fn(SocketAddr, u16) -> Done<DatagramListener>;
        DatagramListener::local_addr => fn(&DatagramListener) -> SocketAddr;
        DatagramListener::accept => fn(&DatagramListener) -> Done<DatagramRequest>;
        DatagramListener::poll => fn(&DatagramListener) -> Option<DatagramRequest>;
        DatagramRequest::local_addr => fn(&DatagramRequest) -> SocketAddr;
        DatagramRequest::peer_addr => fn(&DatagramRequest) -> SocketAddr;
        DatagramRequest::private_data => fn(&DatagramRequest) -> &[u8];
        DatagramRequest::device => fn(&DatagramRequest) -> Done<Context>;
        DatagramRequest::answer => fn(DatagramRequest, &QueuePair<Init, Ud>, &[u8]) -> Done;
        DatagramRequest::reject => fn(DatagramRequest, &[u8]) -> Done;
        DatagramConnector::new => fn(SocketAddr) -> Done<DatagramConnector>;
        DatagramConnector::bound => fn(SocketAddr, SocketAddr) -> Done<DatagramConnector>;
        DatagramConnector::traffic_class => fn(DatagramConnector, u8) -> DatagramConnector;
        DatagramConnector::device => fn(&DatagramConnector) -> Done<Context>;
        DatagramConnector::local_addr => fn(&DatagramConnector) -> SocketAddr;
        DatagramConnector::ask => fn(DatagramConnector, &[u8]) -> Done<DatagramPeer>;
        DatagramConnector::start => fn(DatagramConnector, &[u8]) -> Done<PendingPeer>;
        PendingPeer::poll => fn(&mut PendingPeer) -> Done<Option<DatagramPeer>>;
        PendingPeer::wait => fn(&mut PendingPeer) -> Done<DatagramPeer>;
        DatagramPeer::address_handle => fn(&DatagramPeer, &ProtectionDomain) -> Done<AddressHandle>;
        DatagramPeer::local_addr => fn(&DatagramPeer) -> SocketAddr;
        DatagramPeer::peer_addr => fn(&DatagramPeer) -> SocketAddr;
        DatagramPeer::private_data => fn(&DatagramPeer) -> &[u8];
    }
}

#[test]
fn options_have_their_setters() {
    items! {
        QpOptions::max_send_wr => fn(QpOptions, u32) -> QpOptions;
        QpOptions::max_recv_wr => fn(QpOptions, u32) -> QpOptions;
        QpOptions::max_send_sge => fn(QpOptions, u32) -> QpOptions;
        QpOptions::max_recv_sge => fn(QpOptions, u32) -> QpOptions;
        QpOptions::max_inline => fn(QpOptions, u32) -> QpOptions;
        SrqOptions::max_wr => fn(SrqOptions, u32) -> SrqOptions;
        SrqOptions::max_sge => fn(SrqOptions, u32) -> SrqOptions;
        SendOptions::timeout => fn(SendOptions, u8) -> SendOptions;
        SendOptions::retry_cnt => fn(SendOptions, u8) -> SendOptions;
        SendOptions::rnr_retry => fn(SendOptions, u8) -> SendOptions;
        SendOptions::max_rd_atomic => fn(SendOptions, u8) -> SendOptions;
        Connection::path_mtu => fn(Connection, PathMtu) -> Connection;
        Connection::max_dest_rd_atomic => fn(Connection, u8) -> Connection;
        Connection::min_rnr_timer => fn(Connection, u8) -> Connection;
        Connection::traffic_class => fn(Connection, u8) -> Connection;
        Connection::hop_limit => fn(Connection, u8) -> Connection;
        Moderation::count => fn(Moderation, u16) -> Moderation;
        Moderation::period => fn(Moderation, u16) -> Moderation;
        EndOptions::queues => fn(EndOptions, QpOptions) -> EndOptions;
        EndOptions::domain => fn(EndOptions, ProtectionDomain) -> EndOptions;
        EndOptions::send_queue => fn(EndOptions, CompletionQueue) -> EndOptions;
        EndOptions::receive_queue => fn(EndOptions, CompletionQueue) -> EndOptions;
        EndOptions::responder_resources => fn(EndOptions, u8) -> EndOptions;
        EndOptions::initiator_depth => fn(EndOptions, u8) -> EndOptions;
        EndOptions::retry_cnt => fn(EndOptions, u8) -> EndOptions;
        EndOptions::rnr_retry => fn(EndOptions, u8) -> EndOptions;
        EndOptions::min_rnr_timer => fn(EndOptions, u8) -> EndOptions;
        EndOptions::traffic_class => fn(EndOptions, u8) -> EndOptions;
    }
    let options = EndOptions::default().traffic_class(8).retry_cnt(3);
    assert_eq!((options.traffic_class, options.retry_cnt, options.rnr_retry), (Some(8), 3, 7));
}

#[test]
fn constants_have_their_values() {
    assert_eq!([Address::LEN, RemoteMemory::LEN, HEADER], [24, 13, 40]);
    assert_eq!([REQUEST_PRIVATE_DATA, ACCEPT_PRIVATE_DATA, REJECT_PRIVATE_DATA], [56, 196, 148]);
    assert_eq!([DATAGRAM_REQUEST_PRIVATE_DATA, DATAGRAM_ANSWER_PRIVATE_DATA], [180, 136]);
    assert_eq!((RejReason::CONSUMER.0, SidrStatus::REJECTED.0), (28, 2));
    assert_eq!(Access::all().bits(), 0b11_0001_1111);
}

#[test]
fn types_have_their_traits() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn value<T: Copy + Eq + std::fmt::Debug>() {}
    fn descriptor<T: AsFd + AsRawFd>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    fn on_shared_queues<T: Shares>() {}
    fn of_two<T: ConnectedService>() {}
    shared::<Context>();
    shared::<ProtectionDomain>();
    shared::<Region>();
    shared::<DeviceMemory>();
    shared::<CompletionQueue>();
    shared::<CompletionChannel>();
    shared::<SharedReceiveQueue>();
    shared::<QueuePair<ReadyToSend>>();
    shared::<WorkRequest>();
    shared::<AddressHandle>();
    shared::<MemoryWindow>();
    shared::<XrcDomain>();
    shared::<XrcTarget>();
    shared::<XrcInitiator>();
    shared::<Event>();
    shared::<EventSource>();
    shared::<DeviceInfo>();
    shared::<DeviceAttr>();
    value::<Completion>();
    value::<Slice>();
    value::<RemoteMemory>();
    value::<Address>();
    value::<Status>();
    value::<Opcode>();
    value::<QpState>();
    value::<EventKind>();
    value::<Access>();
    value::<Transport>();
    value::<GidType>();
    value::<GidEntry>();
    value::<PortState>();
    value::<QpOptions>();
    value::<SrqOptions>();
    value::<SendOptions>();
    value::<Connection>();
    value::<ErrorKind>();
    value::<Device>();
    value::<Usage>();
    value::<Peer>();
    value::<System>();
    descriptor::<CompletionChannel>();
    descriptor::<Listener>();
    descriptor::<Pending>();
    descriptor::<Connected>();
    descriptor::<DatagramListener>();
    descriptor::<PendingPeer>();
    error::<Error>();
    error::<QpError<QueuePair<Init>>>();
    on_shared_queues::<Rc>();
    on_shared_queues::<Uc>();
    on_shared_queues::<Ud>();
    of_two::<Rc>();
    of_two::<Uc>();
}

#[test]
fn asynchronous_functions_have_their_signatures() {
    use ferroce::aio::{
        self, Atomic, Buffer, BufferPool, Connecting, Driver, Endpoint, Failed, Failure, Operation, Received,
        Recv, Setup, Take,
    };
    use tokio::task::JoinHandle;

    fn future<F: Future<Output = O>, O>() {}

    items! {
        Driver::new => fn(&Context) -> Done<Driver>;
        Driver::context => fn(&Driver) -> &Context;
        Driver::turn => fn(&Driver) -> Done;
        Driver::spawn_on_tokio => fn(&Driver) -> Done<JoinHandle<Error>>;

        BufferPool::new => fn(&ProtectionDomain, usize, u32) -> Done<BufferPool>;
        BufferPool::try_take => fn(&BufferPool) -> Option<Buffer>;
        BufferPool::take => fn(&BufferPool) -> Take;
        BufferPool::available => fn(&BufferPool) -> usize;
        BufferPool::domain => fn(&BufferPool) -> &ProtectionDomain;

        aio::Listener::bind => fn(&Driver, SocketAddr) -> Done<aio::Listener>;
        aio::Listener::local_addr => fn(&aio::Listener) -> SocketAddr;
        Setup::to => fn(&Driver, SocketAddr, &EndOptions) -> Done<Setup>;
        Setup::of => fn(&Driver, Request, &EndOptions) -> Done<Setup>;
        Setup::domain => fn(&Setup) -> &ProtectionDomain;
        Setup::post_recv => fn(&Setup, Buffer) -> Result<(), Failed>;
        Setup::connect => fn(Setup, &[u8]) -> Connecting;

        Endpoint::send => fn(&Endpoint, Buffer, usize) -> Operation;
        Endpoint::send_imm => fn(&Endpoint, Buffer, usize, Imm) -> Operation;
        Endpoint::write => fn(&Endpoint, Buffer, usize, RemoteMemory) -> Operation;
        Endpoint::write_imm => fn(&Endpoint, Buffer, usize, RemoteMemory, Imm) -> Operation;
        Endpoint::read => fn(&Endpoint, Buffer, usize, RemoteMemory) -> Operation;
        Endpoint::fetch_add => fn(&Endpoint, Buffer, RemoteMemory, u64) -> Atomic;
        Endpoint::compare_swap => fn(&Endpoint, Buffer, RemoteMemory, u64, u64) -> Atomic;
        Endpoint::post_recv => fn(&Endpoint, Buffer) -> Result<(), Failed>;
        Endpoint::recv => fn(&Endpoint) -> Recv;
        Endpoint::peer_addr => fn(&Endpoint) -> SocketAddr;
        Endpoint::local_addr => fn(&Endpoint) -> SocketAddr;
        Endpoint::private_data => fn(&Endpoint) -> &[u8];
        Endpoint::disconnect => fn(&Endpoint) -> Done;
        Received::imm => fn(&Received) -> Option<Imm>;
        Received::written => fn(&Received) -> Option<u32>;
        Failure::kind => fn(&Failure) -> ErrorKind;
        Received::into_buffer => fn(Received) -> Buffer;
    }
    let _ = async |mut listener: aio::Listener| -> Done<Request> { listener.accept().await };
    let _: [fn(Failed) -> Error; 1] = [Error::from];
    let _: [fn(Failure) -> Error; 1] = [Error::from];
    future::<Take, Buffer>();
    future::<Connecting, Done<Endpoint>>();
    future::<Operation, Result<Buffer, Failed>>();
    future::<Atomic, Result<(u64, Buffer), Failed>>();
    future::<Recv, Result<Received, Failure>>();
}

/// Each public function, and each name that the crate exports, occurs above.
#[test]
fn each_public_item_is_listed() {
    let listed: Vec<String> = include_str!("api.rs")
        .lines()
        .filter_map(|line| line.split_once(" =>"))
        .map(|(item, _)| without_generics(item.trim()))
        .collect();
    let mut missing = Vec::new();
    functions(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut missing);
    missing.retain(|function| !listed.contains(function));
    let exports = include_str!("../src/lib.rs").split("pub use ").skip(1);
    let names =
        exports.flat_map(|text| text.split(';').next().unwrap_or_default().split(['{', '}', ',', ':']));
    let here = include_str!("api.rs");
    let words: Vec<&str> = here.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let names =
        names.map(str::trim).filter(|name| name.starts_with(char::is_uppercase) || *name == "devices");
    missing.extend(names.filter(|name| !words.contains(name)).map(str::to_owned));
    assert!(missing.is_empty(), "tests/api.rs does not list {missing:?}");
}

/// Adds the public functions of each file, as `Type::name`.
fn functions(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
            continue;
        }
        let mut of = String::new();
        for line in fs::read_to_string(&path).unwrap().lines() {
            if line.starts_with("impl") {
                let plain = without_generics(line);
                of = plain.trim_end_matches(" {").rsplit(' ').next().unwrap_or_default().to_owned();
            }
            let words = line.trim_start().strip_prefix("pub ").unwrap_or_default();
            let words = words.trim_start_matches("const ").trim_start_matches("unsafe ");
            let Some((name, _)) = words
                .trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once(['(', '<']))
            else {
                continue;
            };
            if !name.starts_with('$') {
                let owner = if line.starts_with(' ') { format!("{of}::") } else { String::new() };
                found.push(owner + name);
            }
        }
    }
}

/// The text without what angle brackets enclose, and without the colons before them.
fn without_generics(text: &str) -> String {
    let mut depth = 0;
    let plain = text.chars().filter(|letter| {
        depth += i32::from(*letter == '<');
        let keep = depth == 0;
        depth -= i32::from(*letter == '>');
        keep
    });
    let plain: String = plain.collect();
    plain.replace("::::", "::").trim_end_matches("::").to_owned()
}
