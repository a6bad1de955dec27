//! How do I see and steer it? The program `ferroce`.
//!
//! The grammar is that of rdma(8), so that what an administrator knows works here too. Data goes to standard
//! output, everything else to standard error; exit status 0 done, 1 failed, 2 wrong usage. `ferroce run`
//! becomes the command it is given and so has that command's status.
#![forbid(unsafe_code)]

mod args;
mod run;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Object};

fn main() -> ExitCode {
    let args = Args::parse();
    match args.object {
        Object::Run(run) => run::run(&run),
    }
}
