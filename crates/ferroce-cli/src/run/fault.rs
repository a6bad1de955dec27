//! The plan of faults of `ferroce run --fault`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ferroce_fault::Plan;

use crate::args::RunArgs;
use crate::usage::Usage;

/// Programs take their plan from it.
pub const VARIABLE: &str = "FERROCE_FAULT";

/// The text of the plan that the arguments ask for; `None` if they ask for none. Its log begins empty.
pub fn plan(args: &RunArgs) -> Result<Option<String>> {
    let mut texts = Vec::new();
    if let Some(path) = &args.fault_file {
        texts.push(read(path).with_context(|| format!("--fault-file {}", path.display()))?);
    }
    texts.extend(args.fault.iter().cloned());
    if texts.is_empty() {
        return Ok(None);
    }
    let mut text = match texts.as_slice() {
        // The older form stays as it is.
        [one] => one.clone(),
        all => all.join("\n"),
    };
    let plan: Plan = text.parse().map_err(|error| Usage(format!("the rules of faults: {error}")))?;
    if let Some(log) = &plan.log {
        // The program may go to another folder, and what another run wrote is no hit of this one.
        let path = std::path::absolute(log).with_context(|| format!("log={log}"))?;
        if !log.contains("%p") {
            fs::write(&path, "").with_context(|| format!("log={}", path.display()))?;
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
