//! From the tables of a file to a scenario: names become places, and every number is held against its bounds.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use ferroce_fault::{Act, Key, Kind as FaultKind, Plan, Rule, rule_text};
use toml::Spanned;

use super::words::{Kind, Octets, Room, Time, outage};
use super::{
    Amount, DEFAULT_PACKETS, Fault, FlowKind, Host, LONGEST, Link, MAX_LINKS, MAX_MEMORY, MAX_NODES,
    MAX_QUEUE_PAIRS, Messages, Operation, Place, Scenario, ScenarioError, ScenarioFlow, file,
};
use crate::fabric::{Line, Topology};
use crate::hosts::Socket;

/// The longest file, in octets.
const LARGEST_FILE: usize = 1 << 20;
/// The longest delay of a link.
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// The most octets in front of a link, or at a socket.
const LARGEST_QUEUE: u64 = 1 << 30;
/// The queue of a link that has none in the file.
const DEFAULT_QUEUE: u64 = 1 << 20;
/// The largest message.
const LARGEST_MESSAGE: u64 = 64 << 20;
const MOST_OUTSTANDING: u32 = 16_384;
const MOST_MESSAGES: u64 = 1_000_000_000;
/// The most rules of faults, over all places.
const MOST_RULES: usize = 1024;
const MOST_OUTAGES: usize = 1024;

type Result_<T> = Result<T, ScenarioError>;

/// The nodes of a name.
#[derive(Clone, Debug)]
struct Group {
    nodes: Range<usize>,
    is_host: bool,
}

struct Resolver<'t> {
    text: &'t str,
    groups: BTreeMap<String, Group>,
    names: BTreeMap<String, usize>,
    scenario: Scenario,
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result_<Self> {
        if text.len() > LARGEST_FILE {
            return Err(ScenarioError::at(
                text,
                &(0..0),
                format!("a file has at most {LARGEST_FILE} octets"),
            ));
        }
        let file: file::File = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            ScenarioError::at(text, &span, error.message().replace('\n', " "))
        })?;
        scenario(text, file)
    }
}

/// The scenario of a file.
fn scenario(text: &str, file: file::File) -> Result_<Scenario> {
    let scenario = Scenario {
        seed: file.seed.unwrap_or(1),
        end: Duration::ZERO,
        warm_up: Duration::ZERO,
        max_packets: DEFAULT_PACKETS,
        switches: Vec::new(),
        hosts: Vec::new(),
        links: Vec::new(),
        flows: Vec::new(),
        faults: Vec::new(),
    };
    let mut resolver = Resolver { text, groups: BTreeMap::new(), names: BTreeMap::new(), scenario };
    resolver.times(&file)?;
    for host in &file.host {
        resolver.host(host)?;
    }
    let hosts = resolver.scenario.hosts.len();
    for switch in &file.switch {
        let names = resolver.names(&switch.name, switch.count.as_ref(), false)?;
        resolver.scenario.switches.extend(names);
    }
    for link in &file.link {
        resolver.link(link)?;
    }
    if hosts == 0 {
        return Err(resolver.error(&(0..0), "a scenario needs hosts: [[host]] with name = \"…\""));
    }
    if file.flow.is_empty() {
        return Err(resolver.error(&(0..0), "a scenario needs flows: [[flow]] with from, to and op"));
    }
    for (index, flow) in file.flow.iter().enumerate() {
        resolver.flow(index, flow)?;
    }
    for fault in &file.fault {
        resolver.fault(fault)?;
    }
    Ok(resolver.scenario)
}

impl Resolver<'_> {
    fn error(&self, span: &Range<usize>, message: impl Into<String>) -> ScenarioError {
        ScenarioError::at(self.text, span, message)
    }

    /// A number within its bounds.
    fn number<T>(
        &self,
        value: Option<&Spanned<T>>,
        default: T,
        bounds: RangeInclusive<T>,
        what: &str,
    ) -> Result_<T>
    where
        T: Copy + PartialOrd + std::fmt::Display,
    {
        let Some(value) = value else { return Ok(default) };
        match bounds.contains(value.get_ref()) {
            true => Ok(*value.get_ref()),
            false => {
                let (low, high) = (bounds.start(), bounds.end());
                Err(self
                    .error(&value.span(), format!("{what} is {low} to {high}; this is {}", value.get_ref())))
            }
        }
    }

    fn octets(&self, value: Option<&Spanned<Octets>>, default: u64, most: u64, what: &str) -> Result_<u64> {
        match value {
            None => Ok(default),
            Some(value) if value.get_ref().0 <= most => Ok(value.get_ref().0),
            Some(value) => Err(self.error(&value.span(), format!("{what} has at most {most} octets"))),
        }
    }

    fn time(&self, value: Option<&Spanned<Time>>, most: Duration, what: &str) -> Result_<Duration> {
        match value {
            None => Ok(Duration::ZERO),
            Some(value) if value.get_ref().0 <= most => Ok(value.get_ref().0),
            Some(value) => Err(self.error(&value.span(), format!("{what} is at most {most:?}"))),
        }
    }

    fn times(&mut self, file: &file::File) -> Result_<()> {
        let end = self.time(Some(&file.end), LONGEST, "the end of a run")?;
        if end.is_zero() {
            return Err(self.error(&file.end.span(), "the end of a run is a time above 0"));
        }
        let warm_up = self.time(file.warm_up.as_ref(), end, "the warm-up, which is part of the run,")?;
        let packets = file.max_packets.as_ref();
        let packets = self.number(packets, DEFAULT_PACKETS, 1..=100_000_000_000, "max_packets")?;
        (self.scenario.end, self.scenario.warm_up, self.scenario.max_packets) = (end, warm_up, packets);
        Ok(())
    }

    /// The names of a group of nodes, which come behind those that are there.
    fn names(
        &mut self,
        name: &Spanned<String>,
        count: Option<&Spanned<usize>>,
        is_host: bool,
    ) -> Result_<Vec<String>> {
        let first = self.names.len();
        let word = name.get_ref();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if word.is_empty() || word.len() > 40 || !word.chars().all(fits) {
            return Err(self.error(&name.span(), "a name has 1 to 40 letters, digits, `_` and `-`"));
        }
        let number = self.number(count, 1, 1..=MAX_NODES, "count")?;
        if first + number > MAX_NODES {
            return Err(self.error(&name.span(), format!("at most {MAX_NODES} hosts and switches")));
        }
        let names: Vec<String> = match count {
            None => vec![word.clone()],
            Some(_) => (0..number).map(|number| format!("{word}{number}")).collect(),
        };
        let taken = |name: &String| self.names.contains_key(name) || self.groups.contains_key(name);
        if let Some(name_taken) = names.iter().chain([word]).find(|name| taken(name)) {
            return Err(
                self.error(&name.span(), format!("another host or switch has the name `{name_taken}`"))
            );
        }
        for (place, name) in names.iter().enumerate() {
            self.names.insert(name.clone(), first + place);
            let nodes = first + place..first + place + 1;
            self.groups.insert(name.clone(), Group { nodes, is_host });
        }
        self.groups.insert(word.clone(), Group { nodes: first..first + number, is_host });
        Ok(names)
    }

    fn host(&mut self, host: &file::Host) -> Result_<()> {
        let names = self.names(&host.name, host.count.as_ref(), true)?;
        let default = Socket::default();
        let second = Duration::from_secs(1);
        let socket = Socket {
            buffer: self.octets(host.buffer.as_ref(), default.buffer as u64, LARGEST_QUEUE, "a socket")?
                as usize,
            per_packet: self.time(host.per_packet.as_ref(), second, "per_packet")?,
            batch: self.number(host.batch.as_ref(), default.batch, 1..=1024, "batch")?,
            jitter: self.time(host.jitter.as_ref(), second, "jitter")?,
            ..default
        };
        if socket.buffer < 8192 {
            let span = host.buffer.as_ref().map_or(0..0, Spanned::span);
            return Err(self.error(&span, "a socket has at least 8k: a packet and its charge must fit"));
        }
        self.scenario.hosts.extend(names.into_iter().map(|name| Host {
            name,
            socket,
            mtu: host.mtu.map_or(ferroce_wire::PathMtu::B1024, |mtu| mtu.0),
            congestion: host.congestion.map_or_else(Default::default, |word| word.0),
            selective_repeat:
                host.selective_repeat.map_or(ferroce_proto::SelectiveRepeat::Agreed, |word| word.0),
        }));
        Ok(())
    }

    /// The nodes of a name.
    fn group(&self, name: &Spanned<String>, hosts_only: bool) -> Result_<Range<usize>> {
        let list = || {
            let fit = self.groups.iter().filter(|(_, group)| group.is_host || !hosts_only);
            fit.map(|(name, _)| name.as_str()).take(20).collect::<Vec<_>>().join(", ")
        };
        let what = if hosts_only { "host" } else { "host or switch" };
        match self.groups.get(name.get_ref()) {
            Some(group) if group.is_host || !hosts_only => Ok(group.nodes.clone()),
            Some(_) => {
                Err(self
                    .error(&name.span(), format!("`{}` is a switch; hosts are: {}", name.get_ref(), list())))
            }
            None => Err(self.error(
                &name.span(),
                format!("no {what} has the name `{}`; there are: {}", name.get_ref(), list()),
            )),
        }
    }

    fn pair<'s>(&self, ends: &'s Spanned<Vec<Spanned<String>>>) -> Result_<[&'s Spanned<String>; 2]> {
        match ends.get_ref().as_slice() {
            [one, other] => Ok([one, other]),
            _ => Err(self.error(&ends.span(), "a link has two ends, such as [\"client\", \"switch\"]")),
        }
    }

    fn link(&mut self, link: &file::Link) -> Result_<()> {
        let [one, other] = self.pair(&link.ends)?;
        let (ones, others) = (self.group(one, false)?, self.group(other, false)?);
        let bits_per_second = link.rate.0;
        let room = link.queue.as_ref().map_or(Room::Octets(DEFAULT_QUEUE), |queue| queue.get_ref().0);
        let queue = room.octets(bits_per_second);
        if queue > LARGEST_QUEUE {
            let span = link.queue.as_ref().map_or(0..0, Spanned::span);
            let message = format!("a queue has at most {LARGEST_QUEUE} octets; this one has {queue}");
            return Err(self.error(&span, message));
        }
        let line = Line {
            bits_per_second,
            delay: self.time(link.delay.as_ref(), LONGEST_DELAY, "the delay of a link")?,
            queue,
            mark: link.mark.map(|mark| mark.0.octets(bits_per_second)),
        };
        if link.down.len() > MOST_OUTAGES {
            return Err(self.error(&link.ends.span(), format!("a link has at most {MOST_OUTAGES} outages")));
        }
        let down =
            link.down.iter().map(|text| outage(text.get_ref()).map_err(|why| self.error(&text.span(), why)));
        let down: Vec<Range<Duration>> = down.collect::<Result<_, _>>()?;
        for one in ones {
            for other in others.clone().filter(|other| *other != one) {
                let ends = [one, other];
                let same = |known: &&Link| known.ends == ends || known.ends == [other, one];
                if self.scenario.links.iter().find(same).is_some() {
                    let [one, other] = ends.map(|node| self.scenario.node_name(node).to_owned());
                    let message = format!("{one} and {other} have a link already");
                    return Err(self.error(&link.ends.span(), message));
                }
                if self.scenario.links.len() == MAX_LINKS {
                    return Err(self.error(&link.ends.span(), format!("at most {MAX_LINKS} links")));
                }
                let loss = link.loss.map_or(0, |loss| loss.0);
                self.scenario.links.push(Link { ends, line, loss, down: down.clone() });
            }
        }
        if link.ends.get_ref().first().map(Spanned::get_ref)
            == link.ends.get_ref().get(1).map(Spanned::get_ref)
            && self.group(one, false)?.len() == 1
        {
            return Err(self.error(&link.ends.span(), "a link joins two different nodes"));
        }
        Ok(())
    }

    fn flow(&mut self, index: usize, flow: &file::FlowTable) -> Result_<()> {
        let (senders, receivers) = (self.group(&flow.from, true)?, self.group(&flow.to, true)?);
        let pairs: Vec<[usize; 2]> = senders
            .flat_map(|from| receivers.clone().filter(move |to| *to != from).map(move |to| [from, to]))
            .collect();
        if pairs.is_empty() {
            return Err(self.error(&flow.to.span(), "a flow is between two different hosts"));
        }
        self.are_joined(flow, &pairs)?;
        let queue_pairs = self.number(flow.queue_pairs.as_ref(), 1, 1..=MAX_QUEUE_PAIRS, "queue_pairs")?;
        let earlier =
            self.scenario.flows.iter().map(|flow| flow.pairs.len() * flow.queue_pairs).sum::<usize>();
        if earlier + pairs.len() * queue_pairs > MAX_QUEUE_PAIRS {
            return Err(
                self.error(&flow.from.span(), format!("at most {MAX_QUEUE_PAIRS} queue pairs of all flows"))
            );
        }
        let start = self.time(flow.start.as_ref(), self.scenario.end, "the start of a flow")?;
        let kind = match flow.op.get_ref().0 {
            Kind::Tcp => self.tcp(flow)?,
            Kind::Rdma(op) => FlowKind::Rdma(self.messages(flow, op)?),
        };
        let name = flow.name.clone().unwrap_or_else(|| format!("flow{index}"));
        self.scenario.flows.push(ScenarioFlow { name, pairs, queue_pairs, start, kind });
        let memory = self.scenario.flows.iter().map(|flow| match &flow.kind {
            FlowKind::Rdma(what) => what.memory() * 2 * (flow.pairs.len() * flow.queue_pairs) as u64,
            FlowKind::Tcp { .. } => 0,
        });
        let memory: u64 = memory.sum();
        if memory > MAX_MEMORY {
            let message = format!(
                "the messages outstanding of all flows need {} MiB of memory, and may have {} MiB: take a smaller \
                 size, outstanding or queue_pairs",
                memory >> 20,
                MAX_MEMORY >> 20
            );
            return Err(self.error(&flow.from.span(), message));
        }
        Ok(())
    }

    /// Links must lead from each sender to its receiver.
    fn are_joined(&self, flow: &file::FlowTable, pairs: &[[usize; 2]]) -> Result_<()> {
        let islands = self.scenario.topology().islands();
        match pairs.iter().find(|pair| islands.get(pair[0]) != islands.get(pair[1])) {
            None => Ok(()),
            Some(pair) => {
                let [from, to] = pair.map(|node| self.scenario.node_name(node));
                Err(self.error(&flow.to.span(), format!("no links lead from {from} to {to}")))
            }
        }
    }

    fn tcp(&self, flow: &file::FlowTable) -> Result_<FlowKind> {
        let spans = [
            ("size", flow.size.as_ref().map(Spanned::span)),
            ("messages", flow.messages.as_ref().map(Spanned::span)),
            ("duration", flow.duration.as_ref().map(Spanned::span)),
            ("outstanding", flow.outstanding.as_ref().map(Spanned::span)),
            ("receives", flow.receives.as_ref().map(Spanned::span)),
            ("receive_delay", flow.receive_delay.as_ref().map(Spanned::span)),
            ("timeout", flow.timeout.as_ref().map(Spanned::span)),
            ("retry_cnt", flow.retry_cnt.as_ref().map(Spanned::span)),
            ("rnr_retry", flow.rnr_retry.as_ref().map(Spanned::span)),
            ("min_rnr_timer", flow.min_rnr_timer.as_ref().map(Spanned::span)),
            ("rd_atomic", flow.rd_atomic.as_ref().map(Spanned::span)),
            ("expect", flow.expect.as_ref().map(Spanned::span)),
        ];
        if let Some((name, Some(span))) = spans.iter().find(|(_, span)| span.is_some()) {
            let message = format!(
                "a flow of TCP has no `{name}`: it sends from its start to the end of the run; it has from, to, op, name, start, \
                 queue_pairs, ecn"
            );
            return Err(self.error(span, message));
        }
        Ok(FlowKind::Tcp { ecn: flow.ecn.as_ref().is_some_and(|ecn| *ecn.get_ref()) })
    }

    fn messages(&self, flow: &file::FlowTable, op: Operation) -> Result_<Messages> {
        if let Some(ecn) = &flow.ecn {
            return Err(self.error(&ecn.span(), "`ecn` is for op = \"tcp\"; hosts have congestion = \"ecn\""));
        }
        let (default, most) = if op == Operation::Atomic { (8, 8) } else { (64 << 10, LARGEST_MESSAGE) };
        let size = self.octets(flow.size.as_ref(), default, most, "a message")?;
        if op == Operation::Atomic && size != 8 {
            let span = flow.size.as_ref().map_or(0..0, Spanned::span);
            return Err(self.error(&span, "an atomic has 8 octets"));
        }
        let amount = match (&flow.messages, &flow.duration) {
            (None, None) => Amount::Endless,
            (None, Some(time)) => {
                let start = flow.start.as_ref().map_or(Duration::ZERO, |start| start.get_ref().0);
                let most = self.scenario.end.saturating_sub(start);
                Amount::During(self.time(
                    Some(time),
                    most,
                    "the duration of a flow, with its start within the run,",
                )?)
            }
            (Some(_), None) => {
                Amount::Messages(self.number(flow.messages.as_ref(), 0, 1..=MOST_MESSAGES, "messages")?)
            }
            (Some(_), Some(time)) => {
                let message =
                    "a flow has `messages` or `duration`, not both; without either it sends until the end";
                return Err(self.error(&time.span(), message));
            }
        };
        let outstanding = self.number(flow.outstanding.as_ref(), 16, 1..=MOST_OUTSTANDING, "outstanding")?;
        let receives = flow.receives.as_ref();
        let only_send = [
            ("receives", receives.map(Spanned::span)),
            ("receive_delay", flow.receive_delay.as_ref().map(Spanned::span)),
        ];
        if let Some((name, Some(span))) = only_send.iter().find(|(_, span)| span.is_some())
            && op != Operation::Send
        {
            return Err(self.error(span, format!("`{name}` is for op = \"send\"")));
        }
        Ok(Messages {
            op,
            size: size as u32,
            amount,
            outstanding,
            receives: self.number(receives, outstanding, 1..=MOST_OUTSTANDING, "receives")?,
            receive_delay: self.time(flow.receive_delay.as_ref(), self.scenario.end, "receive_delay")?,
            timeout: self.number(
                flow.timeout.as_ref(),
                14,
                0..=31,
                "timeout, a code for 4.096 us * 2^code,",
            )?,
            retry_cnt: self.number(flow.retry_cnt.as_ref(), 7, 0..=7, "retry_cnt")?,
            rnr_retry: self.number(
                flow.rnr_retry.as_ref(),
                7,
                0..=7,
                "rnr_retry, where 7 is without end,",
            )?,
            min_rnr_timer: self.number(flow.min_rnr_timer.as_ref(), 1, 0..=31, "min_rnr_timer, a code,")?,
            rd_atomic: self.number(flow.rd_atomic.as_ref(), 16, 1..=128, "rd_atomic")?,
            expect: flow.expect.as_ref().map(|status| status.get_ref().0),
        })
    }

    fn fault(&mut self, fault: &file::Fault) -> Result_<()> {
        let places = self.places(fault)?;
        let rule = self.rule(fault)?;
        let network = places == [Place::Network];
        if let Some(key) =
            rule.terms.iter().map(|term| term.key).find(|key| *key == Key::Dev || network && *key == Key::Dir)
        {
            let span = fault.r#if.as_ref().map_or_else(|| fault.r#do.span(), Spanned::span);
            let message = match key {
                Key::Dev => "simulated hosts have no devices: name a host by host = \"…\"",
                _ => {
                    "a rule for the whole network sees each packet once, as its receiver does: `dir` needs host = \"…\" or link = […]"
                }
            };
            return Err(self.error(&span, message));
        }
        for place in places {
            let others = self.scenario.faults.iter().filter(|other| other.place == place);
            if rule.name.is_some() && others.map(|other| &other.rule.name).any(|name| *name == rule.name) {
                let span = fault.name.as_ref().map_or(0..0, Spanned::span);
                return Err(self.error(&span, "another rule of this place has this name"));
            }
            if self.scenario.faults.len() == MOST_RULES {
                let message = format!("at most {MOST_RULES} rules, counted for each host or link");
                return Err(self.error(&fault.r#do.span(), message));
            }
            self.scenario.faults.push(Fault { place, rule: rule.clone() });
        }
        Ok(())
    }

    fn places(&self, fault: &file::Fault) -> Result_<Vec<Place>> {
        match (&fault.host, &fault.link) {
            (None, None) => Ok(vec![Place::Network]),
            (Some(host), None) => Ok(self.group(host, true)?.map(Place::Host).collect()),
            (None, Some(link)) => {
                let [one, other] = self.pair(link)?;
                let (ones, others) = (self.group(one, false)?, self.group(other, false)?);
                let found = |(_, link): &(usize, &Link)| {
                    let [a, b] = link.ends;
                    ones.contains(&a) && others.contains(&b) || ones.contains(&b) && others.contains(&a)
                };
                let links = self.scenario.links.iter().enumerate().filter(found);
                let places: Vec<Place> = links.map(|(index, _)| Place::Link(index)).collect();
                if places.is_empty() {
                    let message = format!("{} and {} have no link", one.get_ref(), other.get_ref());
                    return Err(self.error(&link.span(), message));
                }
                Ok(places)
            }
            (Some(host), Some(_)) => Err(self.error(
                &host.span(),
                "a rule is for a host or for a link; without both it is for the whole network",
            )),
        }
    }

    /// The rule of a table, if it acts on packets.
    fn rule(&self, fault: &file::Fault) -> Result_<Rule> {
        let name = fault.name.as_ref().map(|name| name.get_ref().as_str());
        let acts = &fault.r#do;
        let empty = toml::Table::new();
        let terms = fault.r#if.as_ref();
        let text =
            rule_text(name, acts.get_ref(), terms.map_or(&empty, Spanned::get_ref)).map_err(|key| {
                let span = terms.map_or_else(|| acts.span(), Spanned::span);
                self.error(&span, format!("`if.{key}` is a number, a text, or a list of these"))
            })?;
        let plan: Plan = text.parse().map_err(|error: ferroce_fault::PlanError| {
            // The text begins with the name; behind the acts are the terms.
            let front = name.map_or(0, |name| name.chars().count() + 2);
            let within = error.column.saturating_sub(1);
            let in_acts = within >= front && within <= front + acts.get_ref().chars().count();
            let span = match (in_acts, terms, &fault.name) {
                (true, ..) => acts.span().start + 1 + within - front..acts.span().end,
                (false, Some(terms), _) if within > front => terms.span(),
                (false, _, Some(name)) => name.span(),
                _ => acts.span(),
            };
            self.error(&span, format!("at {:?}: {}", error.word, error.message))
        })?;
        let [rule] = <[Rule; 1]>::try_from(plan.rules).map_err(|_| {
            self.error(
                &acts.span(),
                "`do` has the acts of one rule, such as \"drop 1%\"; `seed` is a key of the file",
            )
        })?;
        let refused = match rule.acts.iter().find(|act| matches!(act, Act::Rnr(_) | Act::Nak(_))) {
            Some(_) => Some("rnr= and nak="),
            None if rule.kind() == FaultKind::Mad => Some("rules for management datagrams"),
            None => (rule.kind() != FaultKind::Packet).then_some("fail=, stall=, wc= and kill="),
        };
        match refused {
            None => Ok(rule),
            Some(acts_refused) => {
                let message = format!(
                    "{acts_refused} are for programs: rules of the simulation are drop, dup, ce, burst(…), reorder, corrupt, delay=, \
                     rate=, cut, hold"
                );
                Err(self.error(&acts.span(), message))
            }
        }
    }
}

impl Scenario {
    /// The hosts, switches and links, in their order.
    pub(super) fn topology(&self) -> Topology {
        let mut topology = Topology::default();
        let count = self.hosts.len() + self.switches.len();
        let nodes: Vec<_> = (0..count).map(|_| topology.node()).collect();
        for Link { ends, line, .. } in &self.links {
            if let (Some(one), Some(other)) = (nodes.get(ends[0]), nodes.get(ends[1])) {
                topology.link(*one, *other, *line);
            }
        }
        topology
    }
}
