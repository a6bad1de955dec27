//! The command line. `cargo xtask dist` compiles this file too, for man pages and completions, so it stands
//! on clap alone.

#[path = "args/capture.rs"]
mod capture;
#[path = "args/fault.rs"]
mod fault;
#[path = "args/ping.rs"]
mod ping;
#[path = "args/scripts.rs"]
mod scripts;
#[path = "args/sim.rs"]
mod sim;
#[path = "args/sweep.rs"]
mod sweep;
#[path = "args/watch.rs"]
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

pub use capture::CaptureArgs;
pub use fault::FaultCommand;
pub use ping::{PING_PORT, PingArgs};
pub use scripts::*;
pub use sim::SimArgs;
pub use sweep::{Compare, SweepArgs};
use watch::seconds;
pub use watch::{MetricsArgs, TopArgs};

/// The commands by what one wants to do. Man pages and completions have them one by one.
const HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}

Run:
  run        Run a program with ferroce's libibverbs, librdmacm and libibumad
  fault      Inject faults into running programs: lose packets, fail calls; show how often
  sweep      Run a program again and again with one fault each, and report crashes, hangs and wrong results
  sim        Run hosts, links, flows and faults of a file in simulated time, and check every message

Diagnose:
  ping       Try every operation between two processes, or find why another host does not answer
  capture    Record the packets of running programs, also those in shared memory, for Wireshark
  explain    Show why work requests failed, with the packets before
  doctor     Diagnose why RoCE does not work on this host or for a program, and suggest fixes
  status     Show the broker and its programs (does not start it)
  statistic  Show the counters of devices or queue pairs
  top        Watch programs: their rates, resends and processor time; their queue pairs
  resource   Show the objects of all programs: queue pairs, memory regions, …
  gid        Show GID tables: which address has which index
  metrics    Print or serve all counters for Prometheus and other monitoring (OpenMetrics)

Administer:
  link       Add, delete, set and show links: devices on network interfaces
  dev        Rename devices, switch RoCE on and off
  system     Use ferroce for all programs of the host, or not; show what applies to all devices
  stop       Stop the broker of this network namespace

  help       Show the help of a command

Options:
{options}{after-help}";

/// RDMA over Converged Ethernet (RoCE v2) in user space: run programs on it, diagnose it, administer its
/// devices.
///
/// The grammar is that of rdma(8). Objects and commands can be abbreviated as long as they are unambiguous:
/// `ferroce l s` is `ferroce link show`. Data goes to standard output, everything else to standard error.
#[derive(Parser, Debug)]
#[command(
    name = "ferroce",
    version,
    infer_subcommands = true,
    help_template = HELP,
    after_help = "Examples:\n  ferroce run -- ibv_devinfo\n  ferroce link add fr1 type roce netdev eth0\n  \
                  ferroce doctor\n\n\
                  Exit status:\n  0 done, 1 failed, 2 wrong usage; `ferroce run` returns that of its command"
)]
pub struct Args {
    /// How to print.
    #[command(flatten)]
    pub style: Style,
    /// The object to show or change
    #[command(subcommand)]
    pub object: Object,
}

/// How data is printed.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Style {
    /// Print JSON: an array of objects; `status` prints one object.
    #[arg(short, long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Print JSON with line breaks and indentation.
    #[arg(short, long, global = true, help_heading = "Output")]
    pub pretty: bool,
    /// Print more of each object.
    #[arg(short, long, global = true, help_heading = "Output")]
    pub details: bool,
}

/// Keeps the files of `ferroce run` up to date until that program ends; started by it alone.
#[derive(Parser, Debug)]
#[command(name = "ferroce-sysfs", version)]
pub struct SysfsKeeper {
    /// The program.
    pub pid: i32,
    /// Leaves another one that does it, and ends.
    #[arg(long)]
    pub detach: bool,
    /// Only tries whether there can be such files, and ends.
    #[arg(long)]
    pub probe: bool,
}

/// The objects of the grammar.
#[derive(Subcommand, Debug)]
pub enum Object {
    /// Run a program with ferroce's libibverbs, librdmacm and libibumad.
    ///
    /// The program gets ferroce's libraries by whatever name or path it asks for them, also in place of
    /// bundled copies, and the files below /sys and /dev that some programs read. The broker is started if
    /// none runs. Programs that this one starts use ferroce as well.
    #[command(
        alias = "r",
        after_help = "Examples:\n  ferroce run -- ibv_devinfo\n  ferroce run --netdev eth0 -- ib_write_bw -x 1\n  \
                      ferroce run --fault 'seed=7; drop 1% if dir=rx; log=hits' -- ib_write_bw 192.0.2.1\n\n\
                      Exit status:\n  that of the program; 127 if it was not found, 126 if it could not be started"
    )]
    Run(RunArgs),
    /// Inject faults into the packets and calls of running programs, end them, and show how often each rule
    /// acted.
    ///
    /// Reaches the programs of this user that use the broker of this network namespace and have a device
    /// open. The rules are those of `ferroce run --fault`.
    #[command(infer_subcommands = true)]
    Fault {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<FaultCommand>,
    },
    /// Record the packets of running programs for Wireshark, also those in shared memory. Needs no privilege.
    ///
    /// Reaches the programs that `ferroce fault` reaches, and ends by Ctrl-C or with the last of them. The
    /// file has the packets of RoCE v1 and v2 in both directions, as they are on the wire: packets in shared
    /// memory have the headers and the ICRC that they would have there, and no program makes direct copies
    /// meanwhile. Each packet has a comment: the program, its queue pair, the direction, and the wr_id of the
    /// send work request. Not in the file: iWARP, which is a TCP stream, multicast packets that arrive, and
    /// management datagrams, which the broker sends. To record a program from its start, use
    /// `ferroce run --capture`.
    #[command(
        after_help = "Examples:\n  ferroce capture all.pcapng\n  ferroce capture --seconds 5 --filter 'qp=0,op=ack|nak' acks.pcapng 4711"
    )]
    Capture(CaptureArgs),
    /// Run a program again and again with one fault each, and report crashes, hangs, leaks and wrong results.
    ///
    /// CMD runs once without a fault, which gives the result that is expected, and once to find out which
    /// calls and packets it has. Then each call fails once, and each kind of packet is dropped, duplicated
    /// and corrupted once, in a run and a network namespace of its own. A rule acts once in each process of
    /// CMD. A program with two ends is a script that starts both, waits for both, and ends one if the other
    /// fails; `env -u FERROCE_FAULT` before an end leaves it without faults. A process of CMD that leaves the
    /// process group of its run, as setsid(1) does, is neither seen nor ended.
    ///
    /// Each run has one verdict. same: the expected result. refused: an exit status other than 0, and a
    /// message. silent: such a status without a message. And the problems. crash: ended by a signal. hang:
    /// not ended in time, or status 124, as timeout(1) has it. leak: a process of CMD was left. wrong: exit
    /// status 0 and another result.
    #[command(
        override_usage = "ferroce sweep [OPTIONS] -- <CMD>...",
        after_help = "Examples:\n  ferroce sweep -- ./selftest\n  ferroce sweep --budget 300 --compare status -- sh both-ends.sh\n\n\
                      Exit status:\n  0 if no run had a problem, 1 if one had or CMD fails without a fault"
    )]
    Sweep(SweepArgs),
    /// Run hosts, links, flows and faults of a file in simulated time, and check every message.
    ///
    /// Real queue pairs exchange messages over simulated links; nothing is sent, and no broker is needed.
    /// Each message is checked: its octets, and that it completes once and in order. The same file and seed
    /// give the same run on every machine, and the same hash.
    #[command(after_help = "Examples:\n  ferroce sim --print-example incast\n  ferroce sim incast.toml\n  \
                      ferroce sim replay.toml --seeds 100\n  ferroce sim replay.toml --seed 42 --trace lines --pcap frames.pcap\n\n\
                      Exit status:\n  0 if all messages of all seeds ended as promised, 1 if some did not, 2 for a file that cannot be read")]
    Sim(SimArgs),
    /// Add, delete, set and show links: devices on network interfaces.
    #[command(infer_subcommands = true)]
    Link {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<LinkCommand>,
    },
    /// Rename devices, switch RoCE on and off, and show devices.
    #[command(infer_subcommands = true, alias = "d")]
    Dev {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<DevCommand>,
    },
    /// Show the counters of devices, over all programs, or of each queue pair.
    #[command(
        infer_subcommands = true,
        alias = "stat",
        after_help = "Examples:\n  ferroce statistic show link fr0/1\n  ferroce statistic qp pid 30489 --watch 5"
    )]
    Statistic {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<StatisticCommand>,
        /// Print rates for each second instead, again and again until interrupted: those since the last look,
        /// SECONDS ago (1 by default). With --json each look is an array.
        #[arg(long, global = true, num_args = 0..=1, default_missing_value = "1", value_name = "SECONDS", value_parser = seconds)]
        watch: Option<Duration>,
    },
    /// Watch programs, the busiest first: queue pairs, rates, resends and processor time.
    ///
    /// The keys are: up and down select a program, Enter shows its queue pairs, Esc goes back, q ends.
    /// OUT and IN are the packets of the program on the wire and in shared memory; DIRECT is what direct
    /// copies moved, which have no packets. With --json each look is an array.
    #[command(
        after_help = "Examples:\n  ferroce top\n  ferroce top --batch -n 1\n  ferroce --json top -n 1 --every 5\n  ferroce top --html run.html run.pcapng"
    )]
    Top(TopArgs),
    /// Show the objects of all programs: protection domains, completion queues, queue pairs, memory regions.
    #[command(infer_subcommands = true)]
    Resource {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<ResourceCommand>,
    },
    /// Print or serve the counters of all devices and programs as OpenMetrics, the text that Prometheus
    /// reads.
    ///
    /// The counters are those of `ferroce -d statistic show`, with a name each: sent_pkts is
    /// `ferroce_device_sent_pkts_total` for a device and all its programs, also those that have exited, and
    /// `ferroce_program_sent_pkts_total` for a running program. Octets are bytes there.
    #[command(
        after_help = "Examples:\n  ferroce metrics\n  ferroce metrics --listen 9464\n  ferroce metrics --listen /run/ferroce-metrics.sock"
    )]
    Metrics(MetricsArgs),
    /// Show the broker of this network namespace and its programs (does not start it).
    #[command(alias = "s")]
    Status,
    /// Stop the broker of this network namespace.
    ///
    /// The next program that needs a broker starts another one, which has the saved links. Links that were
    /// added with --no-persist are gone. If programs use the broker, nothing happens.
    #[command(after_help = "Example:\n  ferroce stop\n\n\
                            Exit status:\n  0 if no broker runs now, 1 if programs use it")]
    Stop {
        /// Stop it even if programs use it. They start another one and go on.
        #[arg(long)]
        force: bool,
    },
    /// Show what applies to all devices of this network namespace, and switch ferroce on for all programs of
    /// the host.
    #[command(infer_subcommands = true)]
    System {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<SystemCommand>,
    },
    /// Try every operation between two processes, or find why another host does not answer.
    ///
    /// Without HOST, a second process is started, and each operation of a reliable connection is done once
    /// over a device: SEND and WRITE with and without immediate data, READ and both atomics. The data is
    /// checked, and latency and bandwidth are measured.
    ///
    /// With HOST, connection management asks that host, which any RoCE card, the kernel's rxe and ferroce
    /// answer. If no answer comes, UDP datagrams find the cause as far as errors of ICMP tell it. If
    /// `ferroce ping --serve` runs there, each operation is done as well.
    #[command(
        after_help = "Examples:\n  ferroce ping\n  ferroce ping --device fr1\n  ferroce ping 192.0.2.1\n  ferroce ping --serve\n\n\
                      Exit status:\n  0 if everything worked, 1 if something did not"
    )]
    Ping(PingArgs),
    /// Diagnose why RoCE does not work on this host or for a program, and suggest fixes.
    ///
    /// Changes nothing. With PROGRAM, shows which libraries the loader will find for it under `ferroce run`,
    /// and recognises static programs, those with more rights than their caller, DT_RPATH and private copies
    /// of libibverbs. With --pid, shows which of these libraries a running process has, whether they are
    /// ferroce's, and which devices it sees. With HOST, shows what is not in order here, and does what
    /// `ferroce ping HOST` does.
    #[command(
        after_help = "Examples:\n  ferroce doctor\n  ferroce doctor --strict\n  ferroce doctor /opt/app/bin/server\n  ferroce doctor --pid 4711\n  ferroce doctor 192.0.2.1\n\n\
                            Exit status:\n  0 if nothing is in the way, 1 if there is an error, or with --strict a warning"
    )]
    Doctor {
        /// Fail also if there is a warning: something that works badly, or may fail.
        #[arg(long)]
        strict: bool,
        /// Examine a running process, of this user or as root.
        #[arg(long, value_name = "PID", conflicts_with = "program", value_parser = clap::value_parser!(u32).range(1..))]
        pid: Option<u32>,
        /// A program, by its path or as it is found in PATH; a library or module works as well. Or another
        /// host, by its address, or by its name if no program has it.
        #[arg(value_name = "PROGRAM | HOST")]
        program: Option<PathBuf>,
    },
    /// Show why work requests failed: the packets before it, what the peer said, and what to do.
    ///
    /// Each program records the last 64 events of each queue pair: work requests, packets, timeouts, errors.
    /// ferroced keeps the recordings of the last 16 programs that ended, of 4 MiB at most, until it ends
    /// itself, a minute after the last program.
    #[command(after_help = "Examples:\n  ferroce explain\n  ferroce explain 4711\n  ferroce explain core")]
    Explain {
        /// Show queue pairs without a failure as well, and what they wait for.
        #[arg(long)]
        all: bool,
        /// Write the recording of the process to a new file, which `ferroce explain FILE` reads.
        #[arg(long, value_name = "FILE", requires = "of")]
        save: Option<PathBuf>,
        /// A program that runs or ended lately, or a core dump or another file with a recording. Without one:
        /// all programs.
        #[arg(value_name = "PID|FILE")]
        of: Option<String>,
    },
    /// Show GID tables: which address of which network interface has which index.
    #[command(infer_subcommands = true)]
    Gid {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<GidCommand>,
    },
}

/// Commands of `ferroce link`.
#[derive(Subcommand, Debug)]
pub enum LinkCommand {
    /// List links, or one.
    #[command(alias = "s")]
    Show {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: Option<String>,
    },
    /// Add a device on a network interface, which may have one of RoCE and one of iWARP.
    ///
    /// An iWARP device (`type siw`) looks like one of the kernel's siw. Its queue pairs are of type RC and
    /// connect by librdmacm, over TCP. It needs no privilege, no UDP port and no GID of an address.
    ///
    /// The link is saved: it is there again after a restart of the broker or the machine, as soon as the
    /// interface of that name and hardware address is.
    #[command(
        override_usage = "ferroce link add NAME type { roce | rxe | siw } netdev NETDEV [SETTING VALUE …] [--no-persist]",
        after_help = "Examples:\n  ferroce link add fr1 type roce netdev eth0\n  ferroce link add iw0 type siw netdev eth0\n  \
            ferroce link add fx0 type roce netdev eth1 datapath xdp"
    )]
    Add {
        /// Name of the new device.
        name: String,
        /// `type roce` (or `rxe`, as the kernel's command has it) or `type siw`, and `netdev NETDEV`.
        /// `netdev dpdk:DEVARGS` names a device of DPDK instead, such as a PCI address. Settings are those of
        /// `ferroce link set`; if one of them is refused, the link is not added.
        #[arg(required = true, value_name = "type TYPE netdev NETDEV", allow_negative_numbers = true)]
        words: Vec<String>,
        /// Do not save it.
        #[arg(long)]
        no_persist: bool,
    },
    /// Change how a device speaks RoCE: either all given settings take effect, or none. An iWARP device has
    /// only `crc`.
    ///
    /// Settings are saved with the link. Running programs follow at once: an event tells them of changed
    /// GIDs. Classes and limits apply to address handles and connections made from then on.
    #[command(
        override_usage = "ferroce link set DEV[/PORT] SETTING VALUE … [--no-persist] [--force]",
        after_help = "Settings:\n  \
            roce-mode { v1 | v2 | both }  which GIDs the device has\n  \
            cm-mode { v1 | v2 }           the RoCE version of connections, if the device has both\n  \
            cm-tos TOS                    type of service of connections whose program sets none: 0 to 255\n  \
            tclass TCLASS                 traffic class of all packets: 0 to 255; -1 leaves it to programs\n  \
            ttl TTL                       hop limit of all packets: 1 to 255; -1 leaves it to programs\n  \
            mtu MTU                       largest RoCE MTU: 256 to 4096 octets; -1 is what the interface carries\n  \
            crc { on | off }              whether the ICRC of received packets is checked (iWARP: ask for MPA's CRC)\n  \
            datapath { udp | xdp }        the way of packets: UDP sockets, or AF_XDP if the interface, the kernel and the\n  \
                                          rights of ferroced permit it (see `ferroce doctor`)\n  \
            congestion { on | off }       whether CNPs and queues slow queue pairs down\n  \
            xdp-ports { auto | direct | pairs }\n  \
                                          the AF_XDP sockets of programs that start later: at the interface itself with\n  \
                                          CAP_NET_RAW, and behind a check without (auto); at the interface for every\n  \
                                          program of root (direct); behind a check for all (pairs)\n\n\
            Example:\n  ferroce link set fr1 roce-mode both cm-tos 96"
    )]
    Set {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: String,
        /// Settings with their values.
        #[arg(required = true, value_name = "SETTING VALUE", allow_negative_numbers = true)]
        words: Vec<String>,
        /// Do not save them.
        #[arg(long)]
        no_persist: bool,
        /// Allow settings that are unsafe on real networks, such as `crc off`.
        #[arg(long)]
        force: bool,
    },
    /// Set traffic classes: one for all packets of a device, or rules by addresses.
    ///
    /// The class for all packets wins. Without it, among the rules that match the local address and the
    /// peer's, the one with the longest destination prefix wins, then the one with the longest source prefix.
    /// Without a rule the program's own class is used. Address handles and connections made from then on
    /// follow.
    #[command(
        override_usage = "ferroce link tc DEV[/PORT] [show]\n       \
            ferroce link tc DEV[/PORT] add [tclass=]TCLASS [src=PREFIX] [dst=PREFIX] [--no-persist]\n       \
            ferroce link tc DEV[/PORT] delete [src=PREFIX] [dst=PREFIX] [--no-persist]",
        after_help = "TCLASS is 0 to 255; a negative one deletes the rule. PREFIX is an address, an address with a mask such as \
            1.1.1.0/24, of either family, or any. Without prefixes the class is for all packets.\n\n\
            Examples:\n  ferroce link tc fr1 add tclass=16 src=1.1.1.2 dst=1.1.1.0/24\n  \
            ferroce link tc fr1 add tclass=-1 src=1.1.1.2 dst=1.1.1.0/24\n  ferroce link tc fr1 add 96"
    )]
    Tc {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: String,
        /// The rule to add or delete; without one: show.
        #[arg(value_name = "show | add … | delete …", allow_negative_numbers = true)]
        words: Vec<String>,
        /// Do not save it.
        #[arg(long)]
        no_persist: bool,
    },
    /// Delete a device that `link add` added.
    Delete {
        /// Name of the device.
        name: String,
        /// Keep the saved link: it is there again after the next restart.
        #[arg(long)]
        no_persist: bool,
    },
}

/// Commands of `ferroce dev`.
#[derive(Subcommand, Debug)]
pub enum DevCommand {
    /// List devices, or one.
    #[command(alias = "s")]
    Show {
        /// A device.
        #[arg(value_name = "DEV")]
        device: Option<String>,
    },
    /// Rename a device, or switch RoCE on and off: when it is off, the GID table is empty.
    #[command(override_usage = "ferroce dev set DEV { name NEWNAME | roce { on | off } } [--no-persist]")]
    Set {
        /// A device.
        #[arg(value_name = "DEV")]
        device: String,
        /// The setting and its value.
        #[arg(required = true, num_args = 2, value_names = ["name | roce", "VALUE"])]
        words: Vec<String>,
        /// Do not save it.
        #[arg(long)]
        no_persist: bool,
    },
}

/// Commands of `ferroce system`.
#[derive(Subcommand, Debug)]
pub enum SystemCommand {
    /// Show whether network namespaces share devices, and what a fork does to registered memory.
    #[command(alias = "s")]
    Show,
    /// Make all programs of this host load ferroce's libraries, also without `ferroce run`. Needs root.
    ///
    /// Writes /etc/ld.so.conf.d/00-ferroce.conf and runs ldconfig. The libraries of rdma-core stay installed.
    /// Programs that run already keep theirs.
    #[command(after_help = "Example:\n  ferroce system on")]
    On {
        /// Do it even if the host has RDMA devices. Programs no longer see them until `ferroce system off`.
        #[arg(long)]
        force: bool,
    },
    /// Make programs load the libraries of the system again. Needs root.
    ///
    /// Removes /etc/ld.so.conf.d/00-ferroce.conf and runs ldconfig.
    Off,
    /// Show which libraries programs load without `ferroce run`, by the cache of ldconfig.
    Status,
}

/// Commands of `ferroce statistic`.
#[derive(Subcommand, Debug)]
pub enum StatisticCommand {
    /// List the counters of all devices, or of one: those that the kernel's rxe has, with `-d` all.
    ///
    /// Counters also cover programs that have exited. They start from zero with the device and with the
    /// broker.
    #[command(override_usage = "ferroce statistic show [link DEV[/PORT]]")]
    Show {
        /// `link DEV[/PORT]`.
        #[arg(value_name = "link DEV[/PORT]")]
        words: Vec<String>,
    },
    /// List the counters of queue pairs.
    #[command(override_usage = "ferroce statistic qp [show] [link DEV[/PORT]] [FILTER VALUE]...")]
    Qp {
        /// `link DEV[/PORT]`, or the name of a number and its value.
        #[arg(value_name = "FILTER VALUE")]
        words: Vec<String>,
    },
}

/// Commands of `ferroce resource`.
#[derive(Subcommand, Debug)]
pub enum ResourceCommand {
    /// Count the objects of each device, or list those of one kind with their programs.
    ///
    /// A stopped program is listed as it was when it stopped.
    #[command(
        override_usage = "ferroce resource show [DEV]\n       \
                          ferroce resource show { pd | cq | qp | cm_id | mr | ctx | srq } [link DEV[/PORT]] [FILTER VALUE]...",
        after_help = "Examples:\n  ferroce resource show\n  ferroce resource show qp link fr0/1 type RC pid 30489"
    )]
    Show {
        /// A device; or a kind of objects, then filters.
        #[arg(value_name = "DEV | KIND [FILTER VALUE]")]
        words: Vec<String>,
    },
}

/// Commands of `ferroce gid`.
#[derive(Subcommand, Debug)]
pub enum GidCommand {
    /// List the entries in use of all GID tables, or of one.
    Show {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: Option<String>,
    },
}

/// Arguments of `ferroce run`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Show the program one device, on this network interface.
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,
    /// Show the program fr0 as well, beside links or the device of --netdev.
    ///
    /// As soon as there is a link, programs do not see fr0, because those that take every device would take
    /// it for a second path to other hosts. `--netdev lo` shows fr0 alone.
    #[arg(long)]
    pub loopback: bool,
    /// Give the program a network namespace of its own, with a loopback interface alone.
    ///
    /// For a job that must not share UDP port 4791 with another user's. Needs unprivileged user namespaces,
    /// or root.
    #[arg(long)]
    pub private_net: bool,
    /// Fail if the program cannot be given the files below /sys/class/infiniband and /dev/infiniband.
    ///
    /// By default the program gets them if possible: the tree of its devices, and character devices that do
    /// nothing, all read-only, in a private mount namespace. Counters there are at most a quarter of a second
    /// old. This needs unprivileged user namespaces, or root. In a user namespace the program keeps its user
    /// and group; set-user-ID programs that it starts (sudo) gain nothing, and files of other users seem to
    /// belong to nobody.
    #[arg(long, conflicts_with = "no_sysfs")]
    pub sysfs: bool,
    /// Run the program in the caller's namespaces, without these files.
    #[arg(long)]
    pub no_sysfs: bool,
    /// Inject faults into packets, calls and processes by these rules: loss, delay, corruption, errors,
    /// kills.
    ///
    /// Rules are separated by `;`, such as `seed=7; drop 1% if dir=rx; fail=ENOMEM if verb=reg_mr,nth=3`;
    /// several --fault are one list. With `log=FILE` each hit is written to FILE as a rule that repeats it.
    /// When a program ends, it says on standard error how often each rule acted. ferroce-faults(7) has all
    /// words.
    #[arg(long, value_name = "RULES")]
    pub fault: Vec<String>,
    /// As --fault, with the rules in a file: TOML if its name ends in `.toml`, otherwise the text of rules,
    /// such as a log.
    #[arg(long, value_name = "FILE")]
    pub fault_file: Option<PathBuf>,
    /// Record the packets of the program and of those that it starts to this file, for Wireshark.
    ///
    /// `ferroce run` then waits for all of them before it writes the file. The file is that of
    /// `ferroce capture`. Rules of --fault act as well: packets that they lose on their way out are not in
    /// the file, and those that they repeat, corrupt or delay are there once, as they were before.
    #[arg(long, value_name = "FILE", conflicts_with = "expect_traffic")]
    pub capture: Option<PathBuf>,
    /// Capture only packets for which these terms of a rule hold, such as `qp=0,dir=rx,op=ack|nak`.
    #[arg(long, value_name = "TERMS", requires = "capture")]
    pub capture_filter: Option<String>,
    /// Keep the last MIB mebibytes of each process; at least half of that is there.
    #[arg(long, value_name = "MIB", default_value_t = 256, requires = "capture", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub capture_ring: u32,
    /// Look for faults of the program that no call reports, and tell each once a place, with the frames that
    /// lead there.
    ///
    /// Among them are a completion queue that is too small, memory that changes before its completion was
    /// polled, keys after deregistration, a missing fence, and objects that are left at exit. With CARDS, a
    /// list of `mlx5` and `rxe`, also sizes that a ConnectX-6 or the kernel's rxe refuses. The last line has
    /// the number of findings; the exit status is that of CMD all the same.
    #[arg(long, value_name = "CARDS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "on", value_delimiter = ',', value_parser = ["on", "mlx5", "rxe"])]
    pub check: Vec<String>,
    /// Delay calls, packets and resends at random, as the specification permits, so that races of the program
    /// show.
    ///
    /// SEED decides which calls and packets are delayed, so that a run can be repeated. Without SEED, ferroce
    /// draws one and prints it. The rules are added to those of --fault. Some requests of RC are lost once
    /// and sent again, which a queue pair with retry_cnt 0 or timeout 0 does not survive.
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true)]
    pub explore: Option<Option<u64>>,
    /// Fail if ferroce carried nothing for the program and those that it started.
    ///
    /// For CI: MPI, UCX and others take TCP or shared memory without a word. `ferroce run` then waits for the
    /// program instead of replacing itself by it, and exits with status 1 if the program succeeded without a
    /// packet or a direct copy.
    #[arg(long)]
    pub expect_traffic: bool,
    /// Print no notes of ferroce's own, such as why there are no files below /sys. Errors are printed all the
    /// same.
    #[arg(short, long)]
    pub quiet: bool,
    /// Receive SIGINT, SIGTERM and SIGHUP, which `ferroce sweep` blocks.
    #[arg(long, hide = true)]
    pub unblock: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Args, HELP};

    #[test]
    fn the_grouped_help_has_every_command_and_no_other() {
        let mut listed: Vec<&str> = HELP
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter_map(|line| line.split(' ').next())
            .filter(|name| *name != "help")
            .collect();
        let command = Args::command();
        let mut there: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        listed.sort_unstable();
        there.sort_unstable();
        assert_eq!(listed, there);
    }
}
