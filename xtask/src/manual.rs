//! Man pages and shell completions, made from the command lines themselves.

use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// `ferroce`'s own definition, compiled here as well.
#[path = "../../crates/ferroce-cli/src/args.rs"]
pub mod ferroce;

/// Writes `share/man/man1/ferroce*.1` and the scripts' pages beside it, `share/man/man8/ferroced.8` and completions for bash, zsh and fish.
pub fn write(share: &Path) -> Result<()> {
    let man1 = share.join("man/man1");
    std::fs::create_dir_all(&man1)?;
    for command in [
        ferroce::Args::command(),
        ferroce::ShowGids::command(),
        ferroce::IbDev2NetDev::command(),
        ferroce::CmaRoceMode::command(),
        ferroce::CmaRoceTos::command(),
        ferroce::CompatGidGen::command(),
        ferroce::RxeCfg::command(),
    ] {
        clap_mangen::generate_to(command, &man1)?;
    }
    let man8 = share.join("man/man8");
    std::fs::create_dir_all(&man8)?;
    std::fs::write(man8.join("ferroced.8"), include_str!("../../docs/ferroced.8"))?;
    for (shell, dir) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        complete(&mut ferroce::Args::command(), shell, &share.join(dir))?;
    }
    Ok(())
}

fn complete(command: &mut Command, shell: Shell, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_complete::generate_to(shell, command, "ferroce", dir)?;
    Ok(())
}
