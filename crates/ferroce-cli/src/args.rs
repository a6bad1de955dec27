//! The command line. `cargo xtask dist` compiles this file too, for man pages and completions, so it stands
//! on clap alone.

#[path = "args/scripts.rs"]
mod scripts;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use scripts::*;

/// RDMA over Converged Ethernet (RoCEv2) in user space: run programs on it, see and steer its devices.
///
/// The grammar is that of rdma(8). Objects and commands may be abbreviated as long as they are unambiguous:
/// `ferroce l s` is `ferroce link show`.
#[derive(Parser, Debug)]
#[command(
    name = "ferroce",
    version,
    infer_subcommands = true,
    after_help = "Exit status: 0 done, 1 failed, 2 wrong usage; `ferroce run` has its command's own.\n\
                  Data goes to standard output, everything else to standard error."
)]
pub struct Args {
    /// How to print.
    #[command(flatten)]
    pub style: Style,
    /// What to see or steer.
    #[command(subcommand)]
    pub object: Object,
}

/// How data is printed.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Style {
    /// Prints JSON: an array of objects.
    #[arg(short, long, global = true)]
    pub json: bool,
    /// Prints JSON with line breaks and indentation.
    #[arg(short, long, global = true)]
    pub pretty: bool,
    /// Prints more of each object.
    #[arg(short, long, global = true)]
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
    /// Runs a program with ferroce's libibverbs, librdmacm and libibumad.
    ///
    /// The program's own exit status is returned; 127 when it was not found, 126 when it could not be
    /// started.
    #[command(alias = "r", after_help = "Example:\n  ferroce run -- ibv_devinfo")]
    Run(RunArgs),
    /// Ports: the link of a device to a network device.
    #[command(infer_subcommands = true)]
    Link {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<LinkCommand>,
    },
    /// RDMA devices.
    #[command(infer_subcommands = true, alias = "d")]
    Dev {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<DevCommand>,
    },
    /// What was counted: of devices, in all programs together, or of each queue pair.
    #[command(infer_subcommands = true, alias = "stat")]
    Statistic {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<StatisticCommand>,
    },
    /// What objects there are, in which program: protection domains, completion queues, queue pairs, memory regions.
    #[command(infer_subcommands = true)]
    Resource {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<ResourceCommand>,
    },
    /// What the broker of this network namespace does, and for which programs; it is not started for that.
    #[command(alias = "s")]
    Status,
    /// Ends the broker of this network namespace.
    ///
    /// The next program that needs a broker starts another one. Links are there again with that one, except those that
    /// were made with --no-persist. If programs use the broker, nothing happens and the exit status is 1; if no broker runs,
    /// the exit status is 0.
    #[command(after_help = "Example:\n  ferroce stop")]
    Stop {
        /// Ends it even if programs use it. They start another one and go on.
        #[arg(long)]
        force: bool,
    },
    /// What holds for all devices of this network namespace.
    #[command(infer_subcommands = true)]
    System {
        /// Without one: show.
        #[command(subcommand)]
        command: Option<SystemCommand>,
    },
    /// Links by the commands of rxe_cfg, the older tool.
    #[command(infer_subcommands = true)]
    RxeCfg(RxeCfg),
    /// What of this host or container keeps programs from RoCE, and what to do about it.
    ///
    /// Of a PROGRAM it says which libraries the loader will find for it under `ferroce run`, and why: a static program, one
    /// with more rights than its caller, DT_RPATH and private copies of libibverbs are told. Looks, and changes nothing.
    /// Exit status 1 if there is an error.
    #[command(after_help = "Examples:\n  ferroce doctor\n  ferroce doctor /opt/app/bin/server")]
    Doctor {
        /// A program, by its path or as it is found in PATH; a library or module works as well.
        program: Option<PathBuf>,
    },
    /// GID tables: which address of which network device has which index.
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
    /// Lists links, or one.
    #[command(alias = "s")]
    Show {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: Option<String>,
    },
    /// Makes a device on a network device.
    ///
    /// It is there again after a restart, of the broker or of the machine, as soon as the network device of that
    /// name and hardware address is.
    #[command(
        override_usage = "ferroce link add NAME type { roce | rxe } netdev NETDEV [--no-persist]",
        after_help = "Example:\n  ferroce link add fr1 type roce netdev eth0"
    )]
    Add {
        /// Name of the new device.
        name: String,
        /// `type roce` (or `rxe`, as the kernel's command has it) and `netdev NETDEV`.
        #[arg(required = true, value_name = "type TYPE netdev NETDEV")]
        words: Vec<String>,
        /// Does not keep it across restarts.
        #[arg(long)]
        no_persist: bool,
    },
    /// Sets how a device speaks RoCE: several settings at once, or none of them.
    ///
    /// What is set stays across restarts, as the link does. Running programs are told at once: of GIDs by an event;
    /// classes and limits count for address handles and connections made from then on.
    #[command(
        override_usage = "ferroce link set DEV[/PORT] SETTING VALUE … [--no-persist] [--force]",
        after_help = "Settings:\n  \
            roce-mode { v1 | v2 | both }  which GIDs it has\n  \
            cm-mode { v1 | v2 }           which of them connection management takes, where it has both\n  \
            cm-tos TOS                    type of service of connections whose program sets none: 0 to 255\n  \
            tclass TCLASS                 traffic class of all packets: 0 to 255, -1 as programs say\n  \
            ttl TTL                       hop limit of all packets: 1 to 255, -1 as programs say\n  \
            mtu MTU                       largest RoCE MTU: 256 to 4096 octets, -1 what its interface carries\n  \
            crc { on | off }              whether the ICRC of what arrives is checked\n\n\
            Example:\n  ferroce link set fr1 roce-mode both cm-tos 96"
    )]
    Set {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: String,
        /// Settings with their values.
        #[arg(required = true, value_name = "SETTING VALUE", allow_negative_numbers = true)]
        words: Vec<String>,
        /// Does not keep them across restarts.
        #[arg(long)]
        no_persist: bool,
        /// Even what is not advisable, as `crc off` on a real wire.
        #[arg(long)]
        force: bool,
    },
    /// Traffic classes: one for all packets of a device, or rules by addresses.
    ///
    /// The one for all wins. Without it, of the rules that match both the local address and the peer's, the one with
    /// the longest prefix of the destination counts, then that of the source, in whatever order they came; without any
    /// the program's own. Address handles and connections made from then on follow.
    #[command(
        override_usage = "ferroce link tc DEV[/PORT] [show]\n       \
            ferroce link tc DEV[/PORT] add [tclass=]TCLASS [src=PREFIX] [dst=PREFIX] [--no-persist]\n       \
            ferroce link tc DEV[/PORT] delete [src=PREFIX] [dst=PREFIX] [--no-persist]",
        after_help = "TCLASS is 0 to 255; a negative one deletes what it would be for. PREFIX is an address, one with a \
            mask as 1.1.1.0/24, of either family, or any. Without prefixes the class is for all packets.\n\n\
            Examples:\n  ferroce link tc fr1 add tclass=16 src=1.1.1.2 dst=1.1.1.0/24\n  \
            ferroce link tc fr1 add tclass=-1 src=1.1.1.2 dst=1.1.1.0/24\n  ferroce link tc fr1 add 96"
    )]
    Tc {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: String,
        /// What to do, and for whom.
        #[arg(value_name = "show | add … | delete …", allow_negative_numbers = true)]
        words: Vec<String>,
        /// Does not keep it across restarts.
        #[arg(long)]
        no_persist: bool,
    },
    /// Removes a device that `link add` made.
    Delete {
        /// Name of the device.
        name: String,
        /// Leaves one that outlives restarts to be there again after the next one.
        #[arg(long)]
        no_persist: bool,
    },
}

/// Commands of `ferroce dev`.
#[derive(Subcommand, Debug)]
pub enum DevCommand {
    /// Lists devices, or one.
    #[command(alias = "s")]
    Show {
        /// A device.
        #[arg(value_name = "DEV")]
        device: Option<String>,
    },
    /// Gives a device another name, or switches its RoCE on and off: without, its GID table is empty.
    #[command(override_usage = "ferroce dev set DEV { name NEWNAME | roce { on | off } } [--no-persist]")]
    Set {
        /// A device.
        #[arg(value_name = "DEV")]
        device: String,
        /// What, and how.
        #[arg(required = true, num_args = 2, value_names = ["name | roce", "VALUE"])]
        words: Vec<String>,
        /// Does not keep it across restarts.
        #[arg(long)]
        no_persist: bool,
    },
}

/// Commands of `ferroce system`.
#[derive(Subcommand, Debug)]
pub enum SystemCommand {
    /// Whether network namespaces share devices, and what a fork does to registered memory.
    #[command(alias = "s")]
    Show,
}

/// Commands of `ferroce statistic`.
#[derive(Subcommand, Debug)]
pub enum StatisticCommand {
    /// Lists the counters of all devices, or of one: those that the kernel's rxe has too, with `-d` all.
    ///
    /// Programs that ended are counted still; numbers begin with the device, or with the broker if that is newer.
    #[command(override_usage = "ferroce statistic show [link DEV[/PORT]]")]
    Show {
        /// `link DEV[/PORT]`.
        #[arg(value_name = "link DEV[/PORT]")]
        words: Vec<String>,
    },
    /// Lists the counters of queue pairs.
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
    /// Counts the objects of each device, or lists those of a kind with their program.
    ///
    /// A program that is stopped is listed as it was when it stopped; nothing waits for it.
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
    /// Lists the entries in use of all GID tables, or of one.
    Show {
        /// A device, or its port.
        #[arg(value_name = "DEV[/PORT]")]
        link: Option<String>,
    },
}

/// Arguments of `ferroce run`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Shows the program one device, on this network device.
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,
    /// Shows the program fr0 too, where it would see only links, or the device of --netdev.
    ///
    /// As soon as there is a link, fr0 is left out of the list of devices, because programs that take every device would
    /// take it for a second way to other hosts. `--netdev lo` shows fr0 alone.
    #[arg(long)]
    pub loopback: bool,
    /// Gives the program a network namespace of its own with nothing but a loopback device in it.
    ///
    /// For a job that must not share UDP port 4791 with another user's. Needs unprivileged user
    /// namespaces, or root.
    #[arg(long)]
    pub private_net: bool,
    /// Fails where the program cannot be given the files below /sys/class/infiniband and /dev/infiniband.
    ///
    /// By default the program is given them where that is possible: the tree of its devices, and character devices that do
    /// nothing, all read-only, in a mount namespace of its own. Counters there are a quarter of a second old at most. It
    /// takes unprivileged user namespaces, or root. In a user namespace the program keeps its user and group; set-user-ID
    /// programs that it starts (sudo) gain nothing, and files of other users look like nobody's.
    #[arg(long, conflicts_with = "no_sysfs")]
    pub sysfs: bool,
    /// Runs the program in the namespaces of the caller, without these files.
    #[arg(long)]
    pub no_sysfs: bool,
    /// Puts ferroce's library before every copy of libibverbs that the program brings along, by LD_PRELOAD.
    ///
    /// For programs with a DT_RPATH and for bundles that carry a libibverbs under another name, as wheels for Python do;
    /// `ferroce doctor PROGRAM` tells. Every program that this one starts loads the library as well.
    #[arg(long)]
    pub preload: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
