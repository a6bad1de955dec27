//! The command line of `ferroce fault`.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands of `ferroce fault`.
#[derive(Subcommand, Debug)]
pub enum FaultCommand {
    /// Apply rules to running programs; they replace earlier rules.
    ///
    /// Counts of packets (`psn`, `msg`, `nth`, `count`, `time`) begin anew. The rules stay in force until
    /// they are replaced or cleared, or the program ends.
    #[command(
        override_usage = "ferroce fault apply [RULES]... [--file FILE] [--pid PID]... [--seed NUMBER]",
        after_help = "Examples:\n  ferroce fault apply 'drop 1% if dir=rx'\n  ferroce fault apply --pid 4711 --seed 7 'delay=10ms if op=ack; log=hits'\n\n\
                      Exit status:\n  0 if every program obeyed, 1 if one did not, 2 for rules that cannot be read"
    )]
    Apply {
        /// Rules, separated by `;`; several arguments are one list. ferroce-faults(7) has all words.
        rules: Vec<String>,
        /// Rules in a file, before those of the command line: TOML if its name ends in `.toml`, otherwise the
        /// text of rules, such as a log.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// A program by its process id; may be given several times. Without it: all programs of this user.
        #[arg(long, value_name = "PID")]
        pid: Vec<u32>,
        /// The seed of random decisions, in place of that of the rules.
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
    },
    /// End all faults of programs, and print the last counts. Packets that a rule held go on.
    #[command(
        after_help = "Example:\n  ferroce fault clear\n\nExit status:\n  0 if every program obeyed, 1 if one did not"
    )]
    Clear {
        /// A program by its process id; may be given several times. Without it: all programs of this user.
        #[arg(long, value_name = "PID")]
        pid: Vec<u32>,
    },
    /// Print the rules of programs, and how often each matched and acted.
    #[command(
        after_help = "Example:\n  ferroce fault show --json\n\nExit status:\n  0 if every program answered, 1 if one did not"
    )]
    Show {
        /// A program by its process id; may be given several times. Without it: all programs of this user.
        #[arg(long, value_name = "PID")]
        pid: Vec<u32>,
    },
}

impl Default for FaultCommand {
    fn default() -> Self {
        Self::Show { pid: Vec::new() }
    }
}
