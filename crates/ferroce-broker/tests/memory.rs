//! Memory that one program's connections took is the host's again when they are gone.
#![cfg(target_env = "gnu")]

mod common;

use std::net::Ipv4Addr;
use std::time::Duration;

use common::{brokers, connect, eventually, isolated};
use ferroce_cm::{ConnectParams, Route};
use ferroce_ipc::{BROKER_NAME, Client, CmRequest, Leased, Message};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{IpCmHeader, PortSpace, PrivateData};

const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: u32 = 30_000;

/// Kibibytes of a process in memory.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Asks an address at which nobody is, which the broker repeats for a minute.
fn ask(qpn: u32) -> Message {
    let (source, destination) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into());
    let route = Route { local: source, remote: destination, interface: 0 };
    let header = IpCmHeader { source_port: 1, source, destination }.emit();
    let params = ConnectParams {
        private: PrivateData::new(&header).unwrap(),
        ..ConnectParams::new(route, PortSpace::Tcp.service_id(7471), 1, Qpn::new(qpn))
    };
    Message::Cm(CmRequest::Connect(Box::new(params)))
}

#[test]
fn connections_that_are_gone_take_no_memory() {
    isolated("connections_that_are_gone_take_no_memory", || {
        let _holder = connect();
        let [pid] = brokers()[..] else { panic!("one broker") };
        let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let (Message::Leased(Leased { addresses, .. }), _) =
            client.request(&Message::Lease(1), PATIENCE).unwrap()
        else {
            panic!("no lease")
        };
        for _ in 0..addresses {
            client.more(PATIENCE).unwrap();
        }
        let before = resident(pid);
        for qpn in 0..CONNECTIONS {
            let (answer, _) = client.request(&ask(0x10_0000 + qpn), PATIENCE).unwrap();
            assert!(matches!(answer, Message::CmDone(_)), "{answer:?}");
        }
        let most = resident(pid);
        assert!(most > before + 16 * 1024, "{most} KiB, before {before} KiB");
        drop(client);
        let limit = before + (most - before) / 4;
        eventually("most of it is given back", || resident(pid) < limit);
    });
}
