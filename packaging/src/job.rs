//! Programs with a time limit.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// A program's end.
pub struct Ended {
    /// The command line.
    line: String,
    /// The exit status; 124 after the time limit.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub output: String,
}

impl Ended {
    /// Exit status 0 in time.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// The command, its exit status and the last lines that it printed.
    pub fn describe(&self) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        let last = lines.iter().skip(lines.len().saturating_sub(25));
        let shown: String = last.map(|line| format!("\n  | {line}")).collect();
        format!("$ {}\n  exit {:?}{shown}", self.line, self.code)
    }
}

/// Runs a command to its end, for `limit` seconds at most.
///
/// # Errors
/// The program does not start.
pub fn run(command: &Command, limit: u32) -> Result<Ended> {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=5", &limit.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut line: String = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // Scripts are long.
    line.truncate(line.char_indices().nth(300).map_or(line.len(), |(at, _)| at));
    let output = limited.output().context("timeout (Debian: coreutils)")?;
    let said = [output.stdout, output.stderr].concat();
    Ok(Ended { line, code: output.status.code(), output: String::from_utf8_lossy(&said).into_owned() })
}

/// A program in `PATH` or in the system's folders.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_its_own_status_or_that_of_the_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $WORD; exit 3"]).env("WORD", "said");
        let ended = run(&command, 10).unwrap();
        assert_eq!((ended.code, ended.output.as_str()), (Some(3), "said\n"));
        let mut command = Command::new("sleep");
        assert_eq!(run(command.arg("30"), 1).unwrap().code, Some(124));
    }
}
