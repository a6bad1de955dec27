//! The workspace's commands: `cargo xtask demo | test | dist | bench | compat`.
//!
//! `dist` builds what a user installs, `test` runs every check there is (`.ci/run` calls it), `demo` shows
//! Debian's own programs on it. Everything is written below `target/`; the end-to-end checks run in a
//! network namespace of their own, so that a broker of the machine's user is never in their way.
#![forbid(unsafe_code)]

mod arrows;
mod demo;
mod dist;
mod fuzz;
mod guards;
mod no_std;
mod package;
mod publish;
mod results;
mod rustflags;
mod source;
mod test;
#[cfg(test)]
mod workflows;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ferroce_harness::dist::Dist;
use ferroce_harness::{guest, tree};

/// ferroce's workspace commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the release and fills target/dist: lib/, bin/, man pages, completions.
    Dist {
        /// Links with an old C library, which is fetched, and fills target/portable/dist.
        #[arg(long)]
        portable: bool,
    },
    /// Makes packages of the release: tarball, .deb, wheel, bill of materials.
    Package(package::PackageArgs),
    /// Runs every check; ends with 'N passed, N failed, N skipped'.
    Test(test::TestArgs),
    /// Shows Debian's unmodified programs on ferroce, unprivileged.
    Demo(demo::DemoArgs),
    /// Measures ferroce against TCP and UDP on this machine.
    #[command(disable_help_flag = true)]
    Bench {
        /// The arguments of ferroce-bench.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Runs the programs that people use on ferroce, beside their own TCP transports.
    Compat(ferroce_e2e::compat::CompatArgs),
    /// Checks what may use what: crates, modules, files; and how long each may be.
    Arrows,
    /// Changes the functions that protect against bad input, one by one, and sees tests fail (cargo-mutants).
    Guards(guards::GuardsArgs),
    /// Runs the fuzz targets in turn, with corpora that are kept below target/fuzz.
    Fuzz(fuzz::FuzzArgs),
    /// Prints lines of code, files, the longest file and unsafe blocks of each crate.
    Size {
        /// As a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Builds the book, docs/book, into target/book.
    Book,
    /// Builds the guest of the stages peer and siw, with the kernel's rxe, out of Debian's packages. Needs
    /// root.
    Guest(guest::GuestArgs),
    /// Tries the harness of the stages peer and siw: the kernel's rxe, or its siw, against itself, in the
    /// guest.
    #[command(hide = true)]
    PeerHarness {
        /// The whole matrix.
        #[arg(long)]
        all: bool,
        /// The stage siw instead of peer.
        #[arg(long)]
        siw: bool,
        /// The stage siw with ferroce as well, of this distribution.
        #[arg(long, requires = "siw", value_name = "FOLDER")]
        dist: Option<PathBuf>,
    },
    /// The end-to-end stages, inside their network namespace.
    #[command(hide = true)]
    E2e(ferroce_e2e::E2eArgs),
}

fn dist_of(portable: bool) -> Result<Dist> {
    if portable { package::portable_dist() } else { dist::build() }
}

/// The benchmarks are a program of their own.
fn bench(args: &[OsString]) -> Result<bool> {
    let mut command = tree::cargo();
    command.args(["run", "--quiet", "--package", "ferroce-bench", "--"]).args(args);
    Ok(command.current_dir(std::env::current_dir()?).status()?.success())
}

fn main() -> std::process::ExitCode {
    let done: Result<bool> = match Args::parse().command {
        Command::Dist { portable } => dist_of(portable).map(|dist| {
            println!("{}", dist.root.display());
            true
        }),
        Command::Package(args) => package::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench { args } => bench(&args),
        Command::Compat(args) => ferroce_e2e::compat::command(&args),
        Command::Arrows => arrows::run(),
        Command::Guards(args) => guards::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Size { json } => arrows::sizes(json),
        Command::Book => ferroce_e2e::book::build(),
        Command::Guest(args) => guest::build(&args),
        Command::PeerHarness { all, siw: false, .. } => test::peer_harness(all),
        Command::PeerHarness { all, siw: true, dist } => test::siw_harness(all, dist.as_deref()),
        Command::E2e(args) => ferroce_e2e::run(&args),
    };
    match done {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
