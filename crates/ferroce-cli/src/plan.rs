//! Plans of faults from the command line, for `ferroce run` and `ferroce fault`.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use ferroce_fault::Plan;
use ferroce_host::environment;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::usage::Usage;

/// Programs take their plan from it.
pub const VARIABLE: &str = "FERROCE_FAULT";

/// The text of the plan that a file and rules make together; `None` if there are neither. Its log begins
/// empty.
pub fn text(file: Option<&Path>, rules: &[String]) -> Result<Option<String>> {
    let mut texts = Vec::new();
    if let Some(path) = file {
        texts.push(read(path).with_context(|| path.display().to_string())?);
    }
    texts.extend(rules.iter().cloned());
    if texts.is_empty() {
        return Ok(None);
    }
    let mut text = match texts.as_slice() {
        // The older form stays as it is.
        [one] => one.clone(),
        all => all.join("\n"),
    };
    let plan: Plan = text.parse().map_err(|error| Usage(format!("the rules of faults: {error}")))?;
    if plan.marks() && environment::text("FERROCE_CONGESTION").as_deref() != Some("ecn") {
        let needs = "`ce` and `mark` act only on programs with FERROCE_CONGESTION=ecn, at both ends";
        eprintln!("ferroce: warning: {needs}");
    }
    if let Some(log) = &plan.log {
        // The program may go to another folder, and what another run wrote is no hit of this one.
        let path = std::path::absolute(log).with_context(|| format!("log={log}"))?;
        if !log.contains("%p") {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
            match options.open(&path) {
                // A pipe without a reader has nothing to lose.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {}
                opened => drop(opened.with_context(|| format!("log={}", path.display()))?),
            }
        }
        text.push_str(&format!("\nlog={}", path.display()));
    }
    Ok(Some(text))
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)?;
    match path.extension().is_some_and(|extension| extension == "toml") {
        true => Ok(ferroce_fault::plan_text(&text)?),
        false => Ok(text),
    }
}
