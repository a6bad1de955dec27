//! Findings from the facts.

use std::net::IpAddr;

use ferroce_host::environment;
use ferroce_host::rtnetlink::RouteMtu;
use ferroce_ipc::{Datapath, DatapathState, Origin};
use ferroce_wire::{PathMtu, ROCE_UDP_PORT};

use super::firewall::{Firewall, Obstacle};
use super::host::{
    Broker, CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, Folder, Holder, Host, KernelDevice,
};
use crate::finding::{Finding, Severity};
use crate::run::LIBRARIES;

/// The buffer size that sockets request.
const BUFFER: u64 = 8 << 20;
/// With a smaller buffer, a sender with one outstanding message begins to lose packets.
const SMALL: u64 = 4 << 20;
/// The broker has a descriptor for each slot and address.
const FILES: u64 = 1024;
/// With fewer, `ferroced` does not start.
const FEWEST: u64 = 256;
/// The oldest tested kernel.
const KERNEL: (u32, u32) = (5, 10);

/// All findings, in the order of importance to a starting program.
pub fn all(host: &Host) -> Vec<Finding> {
    let mut all = vec![kernel(host), libraries(&host.libraries), loopback(host), broker(host), port(host)];
    all.extend(links(host));
    all.extend(routes(host));
    all.extend(datapaths(host));
    all.extend(cards(host));
    all.push(buffers(host));
    all.push(files(host));
    all.extend(in_flight(host));
    all.extend(direct_copies(host));
    all.push(namespaces(host));
    all.push(nat(host));
    all.extend(firewall(host));
    all
}

fn kernel(host: &Host) -> Finding {
    let mut numbers = host.kernel.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    let found = format!("Linux {}", host.kernel);
    match version {
        Some(version) if version < KERNEL => {
            Finding::new("kernel", Severity::Warning, format!("{found} is older than 5.10"))
                .cure("use a kernel since 5.10; older ones are untested")
        }
        Some(_) => Finding::ok("kernel", found),
        None => Finding::new("kernel", Severity::Note, "the release is unknown: is /proc mounted?"),
    }
}

fn libraries(folders: &[Folder]) -> Finding {
    for Folder { path, files } in folders {
        let mut distinct: Vec<_> = files.values().collect();
        distinct.sort();
        distinct.dedup();
        if distinct.len() > 1 {
            let names: Vec<&str> = files.keys().map(String::as_str).collect();
            let found =
                format!("in {} {} are copies, not links to one file", path.display(), names.join(", "));
            let links = LIBRARIES.iter().skip(1);
            let cure: Vec<String> = links.map(|name| format!("ln -sf {} {name}", LIBRARIES[0])).collect();
            let cure = format!("cd {} && {}", path.display(), cure.join(" && "));
            return Finding::new("libraries", Severity::Error, found).cure(cure);
        }
    }
    match folders {
        [] => Finding::new(
            "libraries",
            Severity::Error,
            "none of ferroce's libraries is in a directory that the loader searches",
        )
        .cure("run ferroce from its distribution: lib/ beside bin/ (`ferroce run`), or LD_LIBRARY_PATH"),
        [first, ..] => {
            let missing: Vec<&str> =
                LIBRARIES.iter().copied().filter(|name| !first.files.contains_key(*name)).collect();
            let at = first.path.display();
            if missing.is_empty() {
                Finding::ok("libraries", format!("in {at}, one file by all its names"))
            } else {
                let cure = missing.iter().map(|name| format!("ln -s {} {at}/{name}", LIBRARIES[0]));
                let found = format!("in {at}, but not by the name {}", missing.join(", "));
                Finding::new("libraries", Severity::Warning, found).cure(cure.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

fn loopback(host: &Host) -> Finding {
    let Some((name, lo)) = host.netdevs.iter().find(|(_, netdev)| netdev.loopback) else {
        return Finding::new("loopback", Severity::Warning, "there is no loopback device, and so no fr0")
            .cure("create the network namespace with lo, or use a link on another netdev");
    };
    if !lo.up && host.net_admin && matches!(host.broker, Broker::None) {
        return Finding::new(
            "loopback",
            Severity::Note,
            format!("{name} is down; the broker will set it up"),
        );
    }
    if !lo.up {
        return Finding::new("loopback", Severity::Error, format!("{name} is down"))
            .cure(format!("ip link set {name} up"));
    }
    let has = |v4: bool| lo.addresses.iter().any(|address| address.is_ipv4() == v4);
    match (has(true), has(false)) {
        (true, true) => Finding::ok("loopback", format!("{name} is up, with IPv4 and IPv6")),
        (true, false) => Finding::new(
            "loopback",
            Severity::Note,
            format!("{name} has no IPv6 address: fr0 has no GID ::1"),
        ),
        (false, _) => Finding::new(
            "loopback",
            Severity::Warning,
            format!("{name} has no IPv4 address: fr0 has no GID for it"),
        )
        .cure(format!("ip addr add 127.0.0.1/8 dev {name}")),
    }
}

fn broker(host: &Host) -> Finding {
    match &host.broker {
        Broker::None if host.no_starter.is_some() => {
            let why = host.no_starter.clone().unwrap_or_default();
            Finding::new("broker", Severity::Error, format!("no broker runs, and none can be started: {why}"))
                .cure("copy the distribution to a folder to which only root and you may write, or chmod go-w these folders")
        }
        Broker::None => Finding::ok("broker", "no broker runs; the first program starts one"),
        Broker::Runs { pid: 0, uid, .. } => {
            Finding::ok("broker", format!("runs, as uid {uid}, outside our pid namespace"))
        }
        Broker::Runs { pid, uid, .. } => {
            Finding::ok("broker", format!("runs, as process {pid} of uid {uid}"))
        }
        Broker::Unusable(why) => Finding::new("broker", Severity::Error, why.clone()).cure(
            "one user's programs share a broker in a network namespace: end the other's, or \
             `ferroce run --private-net -- CMD`",
        ),
    }
}

pub fn port(host: &Host) -> Finding {
    let who = |Holder { address, uid, kernel, process }: &Holder| match (kernel, process) {
        (true, _) => format!("the kernel on {address}"),
        (_, Some(process)) => format!("{process} on {address}"),
        (_, None) => format!("an invisible process of uid {uid} on {address}"),
    };
    if host.port.is_empty() {
        return Finding::ok("port", format!("UDP port {ROCE_UDP_PORT} is free for the broker"));
    }
    let mut holders: Vec<String> = host.port.iter().map(who).collect();
    holders.sort();
    holders.dedup();
    let found = format!("UDP port {ROCE_UDP_PORT} is held by {}", holders.join(", "));
    if host.port.iter().any(|holder| holder.kernel) {
        let rxe: Vec<&str> = host.kernel_devices.iter().filter(|d| d.rxe).map(|d| d.name.as_str()).collect();
        let cure = match rxe.as_slice() {
            [] => "the kernel's software RoCE: rdma link delete DEV, for each that `rdma link` shows, or \
                   `ferroce run --private-net -- CMD`"
                .to_owned(),
            rxe => format!("rdma link delete {}", rxe.join("; rdma link delete ")),
        };
        return Finding::new("port", Severity::Error, found).cure(cure);
    }
    match host.broker {
        // Surviving programs of a dead broker hold its sockets, and start the next one.
        Broker::None
            if host
                .port
                .iter()
                .all(|holder| holder.process.as_deref().is_some_and(|p| p.contains("ferroce"))) =>
        {
            Finding::new("port", Severity::Note, found)
        }
        _ => Finding::new("port", Severity::Error, found)
            .cure("end it, or run the program on a port of its own: ferroce run --private-net -- CMD"),
    }
}

fn links(host: &Host) -> Vec<Finding> {
    let Broker::Runs { devices, .. } = &host.broker else { return Vec::new() };
    let links: Vec<_> = devices.iter().filter(|device| device.origin == Origin::Link).collect();
    if links.is_empty() {
        return vec![
            Finding::new(
                "links",
                Severity::Note,
                "devices reach only this host: there is fr0 on lo, and no link",
            )
            .cure("ferroce link add fr1 type roce netdev eth0"),
        ];
    }
    let mut found = Vec::new();
    for device in links {
        let (name, netdev, transport) = (&device.name, &device.netdev, device.kind.transport());
        // An iWARP device uses every address of its interface.
        let addressed = match device.is_iwarp() {
            true => host.netdevs.get(netdev).is_some_and(|netdev| !netdev.addresses.is_empty()),
            false => !device.gids.is_empty(),
        };
        found.push(if device.port_active && addressed {
            Finding::ok("links", format!("{name} ({transport}) on {netdev} is active"))
        } else if device.port_active {
            let found = format!("{name}: {netdev} has no address that {transport} can use");
            Finding::new("links", Severity::Error, found)
                .cure(format!("ip addr add ADDRESS/LENGTH dev {netdev}"))
        } else {
            Finding::new("links", Severity::Error, format!("{name} is down, because {netdev} is"))
                .cure(format!("ip link set {netdev} up, and check the cable and `ip link show {netdev}`"))
        });
    }
    found
}

/// A line for each route that carries smaller packets than its device sends. Nobody tells the sender that
/// they are lost: packets leave with "do not fragment", whatever the route says.
fn routes(host: &Host) -> Vec<Finding> {
    let Broker::Runs { devices, .. } = &host.broker else { return Vec::new() };
    let mut found = Vec::new();
    for device in devices.iter().filter(|device| device.origin == Origin::Link && !device.is_iwarp()) {
        let small = |route: &&RouteMtu| {
            route.ifindex == device.ifindex && PathMtu::largest_fitting(route.mtu) < device.path_mtu()
        };
        found.extend(host.routes.iter().filter(small).map(|RouteMtu { destination, bits, mtu, told, .. }| {
            let (name, size, fits) =
                (&device.name, device.path_mtu().bytes(), PathMtu::largest_fitting(*mtu).bytes());
            let who = if *told { ", as a router told" } else { "" };
            let sentence = format!(
                "{name} sends {size} octets in a packet, and the route to {destination}/{bits} carries packets of {mtu} with all \
                 headers{who}: larger ones are lost"
            );
            Finding::new("path mtu", Severity::Warning, sentence).cure(format!(
                "ferroce link set {name} mtu {fits}, or let the program choose path_mtu {fits} for this peer"
            ))
        }));
    }
    found
}

/// A line for each device whose packets are to take another way than UDP sockets.
fn datapaths(host: &Host) -> Vec<Finding> {
    let Broker::Runs { devices, .. } = &host.broker else { return Vec::new() };
    let mut found = Vec::new();
    for device in
        devices.iter().filter(|device| device.settings.datapath == Datapath::Xdp && !device.is_iwarp())
    {
        let (name, netdev, state) = (&device.name, &device.netdev, device.datapath);
        if state.is_xdp() {
            let ports = host.xdp_ports.get(name).map(|ports| {
                let why = ports.why();
                let reasons = if why.is_empty() { why } else { format!("; programs got pairs: {why}") };
                format!("; ports of programs: {ports}{reasons}")
            });
            let ports = ports.unwrap_or_default();
            found.push(Finding::ok("datapath", format!("{name} on {netdev}: {state}{ports}")));
            continue;
        }
        let back = format!("ferroce link set {name} datapath udp");
        let (missing, cure) = match state {
            DatapathState::NoPermission => {
                let missing = missing_capabilities(host);
                (missing, grant(host))
            }
            DatapathState::NoSupport => (
                None,
                format!(
                    "use a kernel with CONFIG_XDP_SOCKETS, CONFIG_BPF_SYSCALL and CONFIG_VETH (zgrep XDP_SOCKETS /proc/config.gz), \
                     or {back}"
                ),
            ),
            DatapathState::WrongInterface => (
                None,
                format!("add the link to the Ethernet interface itself, not to lo or a VLAN, or {back}"),
            ),
            DatapathState::Busy => (
                None,
                format!(
                    "see `ip -d link show dev {netdev}`, and remove the other program: ip link set dev {netdev} xdp off"
                ),
            ),
            DatapathState::Udp
            | DatapathState::Failed
            | DatapathState::Dpdk
            | DatapathState::XdpNative
            | DatapathState::XdpGeneric => {
                (None, format!("see the log of ferroced (ferroced.log, or journalctl), or {back}"))
            }
        };
        let missing = missing.map(|names| format!("; it lacks {names}")).unwrap_or_default();
        let sentence = format!("{name} on {netdev} is to use xdp, and uses {state}{missing}");
        found.push(Finding::new("datapath", Severity::Warning, sentence).cure(cure));
    }
    found
}

/// The capabilities for AF_XDP that the broker lacks, if they are visible.
fn missing_capabilities(host: &Host) -> Option<String> {
    let set = host.broker_capabilities?;
    let has = |number: u32| set >> number & 1 == 1;
    let needed = [
        ("CAP_NET_ADMIN", has(CAP_NET_ADMIN)),
        ("CAP_NET_RAW", has(CAP_NET_RAW)),
        // Linux before 5.8 had no CAP_BPF, and still accepts CAP_SYS_ADMIN.
        ("CAP_BPF", has(CAP_BPF) || has(CAP_SYS_ADMIN)),
    ];
    let missing: Vec<&str> = needed.into_iter().filter(|(_, has)| !has).map(|(name, _)| name).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// How to start a broker with the capabilities. The broker may run inside another program, which should not
/// get them.
fn grant(host: &Host) -> String {
    let ferroced = host.broker_program.as_ref().filter(|path| path.ends_with("ferroced"));
    let ferroced = ferroced.map_or_else(|| "PATH/ferroced".to_owned(), |path| path.display().to_string());
    format!(
        "ferroce stop, then start ferroced as root, or: setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep {ferroced}"
    )
}

fn cards(host: &Host) -> Vec<Finding> {
    let used = |netdev: &str| match &host.broker {
        Broker::Runs { devices, .. } => {
            devices.iter().any(|device| device.netdev == netdev && !device.is_iwarp())
        }
        _ => environment::variable("FERROCE_NETDEV").is_some_and(|asked| asked == netdev),
    };
    let cards = host.kernel_devices.iter().filter(|device| !device.rxe);
    let judged = cards.map(|KernelDevice { name, netdev, .. }| {
        let found = format!("{name} is a card with RoCE in hardware: it takes the packets to port {ROCE_UDP_PORT} on {netdev}");
        let state = if used(netdev) { Severity::Error } else { Severity::Note };
        Finding::new("card", state, found).cure(
            "use the card's own RoCE (without ferroce), another netdev, or switch it off: \
             devlink dev param set DEV name enable_roce value false cmode driverinit && devlink dev reload DEV",
        )
    });
    judged.collect()
}

fn buffers(host: &Host) -> Finding {
    let named = ["net.core.rmem_max", "net.core.wmem_max"];
    let small: Vec<(&str, u64)> = named
        .into_iter()
        .zip(host.buffers)
        .filter_map(|(name, size)| size.filter(|size| *size < SMALL).map(|size| (name, size)))
        .collect();
    if host.buffers.iter().all(Option::is_none) {
        return Finding::new(
            "buffers",
            Severity::Note,
            "the limits cannot be seen here; those of the host apply",
        );
    }
    if small.is_empty() {
        return Finding::ok("buffers", format!("socket buffers: {} MiB granted", SMALL >> 20));
    }
    let found: Vec<String> = small.iter().map(|(name, size)| format!("{name} is {size}")).collect();
    let cure: Vec<String> = small.iter().map(|(name, _)| format!("{name}={BUFFER}")).collect();
    let found = format!("{}: slow, and losses under load", found.join(", "));
    Finding::new("buffers", Severity::Warning, found)
        .cure(format!("on the host: sysctl -w {}", cure.join(" ")))
}

fn files(host: &Host) -> Finding {
    match host.files {
        Some((_, hard)) if hard < FEWEST => Finding::new(
            "files",
            Severity::Error,
            format!("a process may open {hard} files, and ferroced needs {FEWEST}"),
        )
        .cure("ulimit -Hn 65536, or the container's `--ulimit nofile=65536`"),
        Some((_, hard)) if hard < FILES => Finding::new(
            "files",
            Severity::Warning,
            format!("a process may open {hard} files: few programs and addresses"),
        )
        .cure("ulimit -Hn 65536, or the container's `--ulimit nofile=65536`"),
        Some((soft, hard)) if hard == u64::MAX => {
            Finding::ok("files", format!("open files: limit {soft} (no hard limit)"))
        }
        Some((soft, hard)) => Finding::ok("files", format!("open files: limit {soft} (hard limit {hard})")),
        None => Finding::new("files", Severity::Note, "the limit is unknown: is /proc mounted?"),
    }
}

/// A broker parks its sockets in flight, and the kernel counts those of a user over all brokers.
fn in_flight(host: &Host) -> Option<Finding> {
    let (count, (_, hard)) = host.in_flight.zip(host.files)?;
    (count.saturating_add(FEWEST) > hard).then(|| {
        let found = format!(
            "this user has {count} descriptors in flight, in all network namespaces, of {hard}: another broker is refused soon"
        );
        Finding::new("files", Severity::Warning, found)
            .cure("raise `ulimit -Hn`, or stop other brokers of this user: `ferroce stop` in their network namespaces")
    })
}

/// Reports the kernel's setting that keeps programs of one user from copying to each other's memory.
fn direct_copies(host: &Host) -> Option<Finding> {
    match host.ptrace_scope {
        Some(scope @ 1..) => {
            let found = format!(
                "direct copies between programs are off, because kernel.yama.ptrace_scope is {scope}"
            );
            let cure = "sysctl -w kernel.yama.ptrace_scope=0, if large messages on this host shall be faster";
            Some(Finding::new("copies", Severity::Note, found).cure(cure))
        }
        _ if host.seccomp => {
            let found = "a seccomp filter is set: if it forbids process_vm_readv, programs exchange all data by pipes";
            Some(Finding::new("copies", Severity::Note, found))
        }
        _ => None,
    }
}

fn namespaces(host: &Host) -> Finding {
    match &host.no_namespace {
        None => Finding::ok("namespaces", "can be made, for `ferroce run --private-net`"),
        Some(why) => Finding::new("namespaces", Severity::Warning, why.clone())
            .cure("only `ferroce run --private-net` and `--sysfs` need them: to use these, allow namespaces to this user"),
    }
}

/// The ICRC covers the addresses, so receivers drop packets after address translation.
fn nat(host: &Host) -> Finding {
    const CURE: &str = "give both ends addresses that reach each other unchanged: the host's network, macvlan or ipvlan, \
                        or routes instead of NAT";
    // slirp4netns and similar programs give every container this address, and translate it.
    let user_mode: Option<IpAddr> = "10.0.2.100".parse().ok();
    let translated = host.netdevs.iter().find(|(_, n)| n.addresses.iter().any(|a| Some(*a) == user_mode));
    if let Some((netdev, _)) = translated {
        let found = format!("{netdev} is behind NAT in user mode (slirp4netns): RoCE does not cross it");
        return Finding::new("nat", Severity::Error, found).cure(CURE);
    }
    let own = host.netdevs.iter().filter(|(_, netdev)| netdev.up && !netdev.loopback);
    let private =
        own.flat_map(|(name, n)| n.addresses.iter().map(move |a| (name, a))).find(|(_, a)| is_private(**a));
    match (private, &host.container) {
        (Some((netdev, address)), Some(sign)) => {
            let found = format!(
                "{netdev} has the private address {address}, in a container ({sign}): behind NAT, as by docker's and podman's \
                 bridges, RoCE reaches only the same bridge"
            );
            Finding::new("nat", Severity::Warning, found).cure(CURE)
        }
        _ if host.nat_rules => {
            let found = format!(
                "there are rules that translate addresses, which RoCE does not permit (UDP port {ROCE_UDP_PORT})"
            );
            Finding::new("nat", Severity::Note, found).cure(format!(
                "exclude the port: iptables -t nat -I POSTROUTING -p udp --dport {ROCE_UDP_PORT} -j ACCEPT"
            ))
        }
        _ => Finding::ok("nat", "no sign of NAT; peers must reach our addresses unchanged"),
    }
}

/// A chain that drops what no rule accepts matters only to packets of other hosts, which arrive at links.
fn firewall(host: &Host) -> Vec<Finding> {
    let obstacles = match &host.firewall {
        Firewall::Unknown(why) => {
            let cure = "as root: ferroce doctor, or nft list ruleset";
            return vec![Finding::new("firewall", Severity::Note, why.clone()).cure(cure)];
        }
        Firewall::Known(obstacles) if obstacles.is_empty() => {
            return vec![Finding::ok(
                "firewall",
                format!("no rule of this host drops UDP port {ROCE_UDP_PORT}"),
            )];
        }
        Firewall::Known(obstacles) => obstacles,
    };
    let linked = matches!(&host.broker, Broker::Runs { devices, .. }
        if devices.iter().any(|device| device.origin == Origin::Link && !device.is_iwarp()));
    let finding = |Obstacle { chain, by_name, shown_by }: &Obstacle| {
        let (state, found) = match by_name {
            true => (
                Severity::Warning,
                format!("a rule of the packet filter drops packets to UDP port {ROCE_UDP_PORT}: {chain}"),
            ),
            false => (
                if linked { Severity::Warning } else { Severity::Note },
                format!(
                    "the packet filter drops what no rule accepts, and none accepts UDP port {ROCE_UDP_PORT}: {chain}"
                ),
            ),
        };
        Finding::new("firewall", state, found)
            .cure(format!("see {shown_by}, and accept UDP port {ROCE_UDP_PORT} from the peers"))
    };
    obstacles.iter().map(finding).collect()
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

#[cfg(test)]
mod tests;
