//! The command line. `cargo xtask dist` compiles this file too, for man pages and completions, so it stands
//! on clap alone.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// RDMA over Converged Ethernet (RoCEv2) in user space: run programs on it, see and steer its devices.
#[derive(Parser, Debug)]
#[command(name = "ferroce", version, infer_subcommands = true)]
pub struct Args {
    /// What to see or do; may be abbreviated as long as it is unambiguous.
    #[command(subcommand)]
    pub object: Object,
}

/// The objects of the grammar.
#[derive(Subcommand, Debug)]
pub enum Object {
    /// Runs a program with ferroce's libibverbs, librdmacm and libibumad.
    ///
    /// The program's own exit status is returned; 127 when it was not found, 126 when it could not be
    /// started.
    #[command(after_help = "Example:\n  ferroce run -- ibv_devinfo")]
    Run(RunArgs),
}

/// Arguments of `ferroce run`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Shows the program one device, on this network device.
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,
    /// Gives the program a network namespace of its own with nothing but a loopback device in it.
    ///
    /// For a job that must not share UDP port 4791 with another user's. Needs unprivileged user
    /// namespaces, or root.
    #[arg(long)]
    pub private_net: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
