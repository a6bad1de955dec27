//! Asks another host by connection management, and by UDP where no answer comes.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroce::cm::{Connected, Connector, Pending};
use ferroce::error::{Device, ErrorKind, Peer, System};
use ferroce::{PathMtu, RejReason, Transport};
use ferroce_wire::ROCE_UDP_PORT;

use super::client::Client;
use super::probe::{self, Heard, Probe, Reason};
use super::verdict::{self, Facts, Large};
use super::{Local, ends};
use crate::broker::{self, Observer};
use crate::finding::{Finding, Severity};

/// How long one request waits for its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long a first request waits before a datagram looks for an error of ICMP.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// Requests to a host that does not answer.
const TRIES: usize = 3;
/// Requests to a host that answers, for loss and round trip.
const ROUNDS: usize = 10;
/// How long an error of ICMP may take, if an earlier answer took no longer.
const LEAST_WAIT: Duration = Duration::from_millis(250);
/// The port to which traceroute sends, and that nobody has.
const CLOSED_PORT: u16 = 33434;
/// Headers of a WRITE from BTH on, and its ICRC.
const HEADERS: usize = 12 + 16 + 4;

/// The outcome of one request.
enum Outcome {
    Connected(Box<Connected>),
    Refused(RejReason),
    Silent,
}

/// The findings about `host`, whose `ferroce ping --serve` may answer at `port`.
pub fn examine(host: &str, port: u16, local: Option<&Local>) -> Result<Vec<Finding>> {
    broker::ensure()?;
    let peer = resolve(host, port, local)?;
    let connector = match Client::connector(local, peer) {
        Ok(connector) => connector,
        Err(error) if leads_nowhere(error.kind()) => {
            let error = anyhow::Error::from(error);
            return Ok(vec![Finding::new("route", Severity::Error, format!("{host}: {error:#}")).cure(
                "add a link on the interface that leads there (ferroce link add fr1 type roce netdev IF), or see `ferroce doctor`",
            )]);
        }
        Err(error) => return Err(error.into()),
    };
    if connector.domain().context().attributes().transport == Transport::Iwarp {
        return Ok(by_iwarp(host, connector));
    }
    let mut from = connector.local_addr();
    from.set_port(0);
    let device_mtu = connector.domain().context().port()?.active_mtu;
    let spoiled = || -> Result<u64> { Ok(Observer::of_running()?.status()?.cm.no_mad) };
    let before = spoiled()?;
    let probe = Probe::new(from, with_port(peer, ROCE_UDP_PORT))?;
    let path_mtu = PathMtu::largest_fitting(probe.mtu()?).min(device_mtu);

    let mut facts = Facts::new(host, peer.ip(), from.ip(), path_mtu.bytes());
    let mut connected = None;
    let mut next = Some(connector);
    while facts.answered == 0 && facts.asked < TRIES && facts.port == Heard::Nothing {
        let connector = next.take().map_or_else(|| Client::connector(local, peer), Ok)?;
        let asked = Instant::now();
        facts.asked += 1;
        match ask(connector.start(ends::GREETING)?, asked, Some((&probe, &mut facts.port)))? {
            Outcome::Connected(connection) => connected = Some(connection),
            Outcome::Refused(reason) => facts.refused = Some(reason),
            Outcome::Silent => continue,
        }
        facts.answered += 1;
        facts.time = asked.elapsed();
    }
    if facts.refused.is_some() {
        // All at once, because a broker of ferroce waits a moment for somebody who listens.
        let more = facts.asked..ROUNDS;
        let asked = Instant::now();
        let start = |_| anyhow::Ok(Client::connector(local, peer)?.start(ends::GREETING)?);
        for pending in more.map(start).collect::<Result<Vec<_>>>()? {
            facts.asked += 1;
            facts.answered += usize::from(!matches!(ask(pending, asked, None)?, Outcome::Silent));
        }
    }
    facts.spoiled = spoiled()?.wrapping_sub(before);
    let wait =
        if facts.answered == 0 { ANSWER_LIMIT } else { (2 * facts.time).clamp(LEAST_WAIT, ANSWER_LIMIT) };
    let closed = Probe::new(from, with_port(peer, CLOSED_PORT))?;
    (facts.closed, facts.large) = large(&closed, path_mtu, wait)?;
    let mut findings = verdict::judge(&facts);
    match connected.map(|connection| Client::new(*connection)).transpose()? {
        Some(Some(client)) => {
            findings.extend(client.run());
            let counters = own_counters()?;
            findings.extend(
                counters.map(|counters| verdict::way(|name| counters.get(name).copied().unwrap_or(0))),
            );
        }
        _ if facts.answered == 0 => {}
        _ => findings.push(verdict::no_server(port)),
    }
    Ok(findings)
}

/// Whether no device of this host leads to the peer.
fn leads_nowhere(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Device(Device::NoAddress) | ErrorKind::System(System::NoRoute))
}

/// The counters of this process, if the broker knows it by its number.
fn own_counters() -> Result<Option<BTreeMap<&'static str, u64>>> {
    let ledgers = Observer::of_running()?.ledgers()?;
    let own = ledgers.iter().find(|(program, _)| program.pid == std::process::id());
    let blocks = own.map(|(_, ledger)| ledger.devices()).transpose()?;
    Ok(blocks.map(|blocks| {
        let mut sums = BTreeMap::new();
        for (name, count) in blocks.iter().flat_map(|block| block.totals.named()) {
            *sums.entry(name).or_default() += count;
        }
        sums
    }))
}

/// The findings where an iWARP device leads to the host: its connections are TCP's, whose errors say enough.
fn by_iwarp(host: &str, connector: Connector) -> Vec<Finding> {
    let client = connector.connect(ends::GREETING).map_err(anyhow::Error::from).and_then(Client::new);
    match client {
        Ok(Some(client)) => {
            let answer = Finding::ok("answer", format!("{host} answers iWARP"));
            std::iter::once(answer).chain(client.run()).collect()
        }
        other => {
            let why = other.err().map_or_else(String::new, |why| format!(": {why:#}"));
            let found = format!("{host} does not answer `ferroce ping` by iWARP{why}");
            vec![
                Finding::new("answer", Severity::Error, found)
                    .cure("run `ferroce ping --serve` there, on an iWARP device"),
            ]
        }
    }
}

/// The first address of the host that a device of this one reaches, or the first of all.
fn resolve(host: &str, port: u16, local: Option<&Local>) -> Result<SocketAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let all = (host, port).to_socket_addrs().with_context(|| format!("{host} has no address"))?;
    let family = |peer: &SocketAddr| local.is_none_or(|local| local.address.is_ipv4() == peer.is_ipv4());
    let all: Vec<SocketAddr> = all.filter(family).collect();
    let reached = |peer: &&SocketAddr| local.is_some() || Connector::device_for(**peer).is_ok();
    let found = all.iter().find(reached).or(all.first()).copied();
    found.with_context(|| format!("{host} has no address of the family of this end's"))
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Waits for the answer to a request that was sent at `begin`, and for an error of ICMP that ends the wait
/// earlier.
fn ask(mut pending: Pending, begin: Instant, mut probe: Option<(&Probe, &mut Heard)>) -> Result<Outcome> {
    let mut sent = probe.is_none();
    loop {
        match pending.poll() {
            Ok(Some(connection)) => return Ok(Outcome::Connected(Box::new(connection))),
            Ok(None) => {}
            Err(error) => match error.kind() {
                ErrorKind::Peer(Peer::Rejected { reason }) => return Ok(Outcome::Refused(reason)),
                ErrorKind::Peer(Peer::Unreachable) => return Ok(Outcome::Silent),
                _ => return Err(error.into()),
            },
        }
        let passed = begin.elapsed();
        let mut left = ANSWER_LIMIT.saturating_sub(passed);
        if let Some((probe, heard)) = &mut probe {
            **heard = probe.heard()?;
            if !sent && passed >= PROBE_AFTER {
                sent = true;
                **heard = probe.send(PathMtu::B256.bytes())?;
            }
            if **heard != Heard::Nothing {
                return Ok(Outcome::Silent);
            }
            if !sent {
                left = left.min(PROBE_AFTER.saturating_sub(passed));
            }
        }
        if left.is_zero() {
            return Ok(Outcome::Silent);
        }
        let probe = probe.as_ref().map(|(probe, _)| probe.as_fd());
        let descriptors: Vec<_> = std::iter::once(pending.as_fd()).chain(probe).collect();
        probe::wait(&descriptors, left)?;
    }
}

/// Asks a port that nobody has: its answer, and whether large packets arrive there.
fn large(closed: &Probe, path_mtu: PathMtu, wait: Duration) -> io::Result<(Heard, Large)> {
    let ask = |mtu: PathMtu| closed.ask(mtu.bytes() + HEADERS, wait);
    let is_there = |heard: Heard| matches!(heard, Heard::Error(Reason::PortClosed, _));
    let asked = Instant::now();
    match ask(path_mtu)? {
        Heard::Error(Reason::TooBig(mtu), by) => return Ok((Heard::Nothing, Large::Refused { mtu, by })),
        heard if is_there(heard) => return Ok((heard, Large::Arrive(asked.elapsed()))),
        heard @ Heard::Error(..) => return Ok((heard, Large::Unknown)),
        Heard::Nothing => {}
    }
    let small = ask(PathMtu::B256)?;
    if !is_there(small) {
        return Ok((small, Large::Unknown));
    }
    let mut fits = PathMtu::B256;
    for mtu in PathMtu::ALL.into_iter().filter(|mtu| (PathMtu::B512..path_mtu).contains(mtu)) {
        if !is_there(ask(mtu)?) {
            break;
        }
        fits = mtu;
    }
    // Hosts limit how many errors they send. If a small packet is answered now, the large ones were lost.
    let lost =
        if is_there(ask(PathMtu::B256)?) { Large::Lost { fits: fits.bytes() } } else { Large::Unknown };
    Ok((small, lost))
}
