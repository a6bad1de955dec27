//! A ping-pong of SENDs between two hosts on a lossy line, in simulated time: `cargo run -p ferroce-sim --example two_hosts`.

use std::error::Error;
use std::time::Duration;

use ferroce_sim::fabric::{Flaws, Line, Topology};
use ferroce_sim::hosts::{Connection, EndId, Hosts, Socket};
use ferroce_sim::ram::Ram;
use ferroce_sim::verbs::{RecvWr, SendOp, SendWr, Sge, WcStatus};
use ferroce_sim::wire::{Instant, Lkey};

const KEY: u32 = 1;
const SIZE: u32 = 64;
const ROUNDS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    // Two hosts, and a line that loses one packet of a hundred.
    let mut topology = Topology::default();
    let nodes = [topology.node(), topology.node()];
    let delay = Duration::from_micros(5);
    topology.link(
        nodes[0],
        nodes[1],
        Line { bits_per_second: 10_000_000_000, delay, queue: 1 << 20, mark: None },
    );
    let mut hosts = Hosts::with_seed(topology, 7);
    hosts.harm(nodes, Flaws { loss: 10_000, seed: 7, ..Flaws::default() }, None);
    let ids = nodes.map(|node| hosts.host(node, Socket::default()));

    // A queue pair at each, with registered memory.
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0x5a; SIZE as usize]);
        ram
    };
    let ends = hosts.connect(ids, [memory(), memory()], &Connection::default())?;
    for end in ends {
        receive(&mut hosts, end, 0)?;
    }

    // The end that received sends the next message.
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let [from, to] = if round.is_multiple_of(2) { ends } else { [ends[1], ends[0]] };
        let begin = hosts.now();
        let sges = [Sge { addr: 0, length: SIZE, lkey: Lkey::new(KEY) }];
        hosts.post_send(from, &SendWr::signaled(round, SendOp::Send, &sges))?;
        while hosts.end(to).recvs.is_empty() {
            assert!(hosts.step(), "nothing will ever happen");
        }
        let completion = hosts.end(to).recvs.remove(0);
        assert_eq!((completion.status, completion.byte_len), (WcStatus::Success, SIZE));
        longest = longest.max(hosts.now().saturating_since(begin));
        receive(&mut hosts, to, round + 1)?;
    }
    // The last acknowledgements.
    while ends.iter().any(|end| hosts.end(*end).sends.len() < ROUNDS as usize / 2) {
        assert!(hosts.step(), "nothing will ever happen");
    }
    let mut resent = 0;
    for end in ends {
        let end = hosts.end(end);
        assert!(end.sends.iter().all(|completion| completion.status == WcStatus::Success));
        resent += end.qp.counters().resent_pkts;
    }
    let simulated = hosts.now().saturating_since(Instant::ZERO);
    println!(
        "{ROUNDS} messages in {simulated:?}, the longest took {longest:?}; {resent} packets were sent again"
    );
    println!("hash {:016x}", hosts.digest());
    Ok(())
}

fn receive(hosts: &mut Hosts<'_>, end: EndId, wr_id: u64) -> Result<(), Box<dyn Error>> {
    let sges = [Sge { addr: 0, length: SIZE, lkey: Lkey::new(KEY) }];
    Ok(hosts.post_recv(end, &RecvWr { wr_id, sges: &sges })?)
}
