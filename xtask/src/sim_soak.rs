//! `cargo xtask sim-soak`: messages of all kinds on many simulated networks, each from a seed.

use anyhow::{Context, Result};

use ferroce_harness::tree;

/// The options of `cargo xtask sim-soak`.
#[derive(clap::Args)]
pub struct SoakArgs {
    /// Networks, each from its seed.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Messages on each network.
    #[arg(long, default_value_t = 10_000)]
    messages: u32,
    /// Threads, 1 to 64. The results are the same.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Runs this seed alone, and prints its setting and its counts.
    #[arg(long, conflicts_with_all = ["seeds", "first", "jobs"])]
    seed: Option<u64>,
    /// Prints each packet and timer of the seed, a line each.
    #[arg(long, requires = "seed")]
    trace: bool,
}

/// Builds the program as a release and runs it. `false` if a seed failed.
pub fn run(args: &SoakArgs) -> Result<bool> {
    let mut command = tree::cargo();
    command.args(["run", "--quiet", "--release", "-p", "ferroce-sim", "--example", "soak", "--"]);
    let mut number = |name: &str, value: u64| {
        command.args([name, &value.to_string()]);
    };
    number("--messages", args.messages.into());
    match args.seed {
        Some(seed) => number("--seed", seed),
        None => {
            number("--seeds", args.seeds);
            number("--first", args.first);
            number("--jobs", args.jobs);
        }
    }
    if args.trace {
        command.arg("--trace");
    }
    Ok(command.status().context("cargo run")?.success())
}
