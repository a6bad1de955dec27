//! Registered memory that changes all the time, and registered memory that goes away.

use std::time::Duration;

use anyhow::Result;

use super::Bed;
use ferroce_harness::cc;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::report::Checks;

/// `tests/programs/memory.c` says what each line does.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let program = cc::ours("memory", &bed.dist, &bed.programs)?.display().to_string();
    let reads = if bed.all { 100_000 } else { 20_000 };
    for flags in ["-m 4096", "-m 256 -g 1"] {
        let ends = exchange(bed, &program, &format!("{flags} hot {reads}")).run(&bed.logs, checks)?;
        if let Some((client, server)) = ends {
            checks.note(format!("hot {flags}: {}, {}", client.output.trim(), server.output.trim()));
        }
    }
    let mut handlers = ["none", "before", "after"].iter().cycle();
    for gone in ["unmap", "protect", "truncate"] {
        for role in ["write", "read", "send", "response", "receive"] {
            for _ in 0..if bed.all { 3 } else { 1 } {
                let handler = handlers.next().copied().unwrap_or_default();
                exchange(bed, &program, &format!("{gone} {role} {handler}")).run(&bed.logs, checks)?;
            }
        }
        handlers.next(); // so that the roles meet other handlers the next time
    }
    Ok(())
}

fn exchange(bed: &Bed, program: &str, text: &str) -> Exchange<'static> {
    let port = bed.port();
    let end = |host: Option<&str>| {
        let mut command = bed.ours(program);
        command.args(["-d", "fr0", "-t", &port.to_string()]).args(text.split_whitespace()).args(host);
        command
    };
    Exchange {
        name: format!("memory {text}"),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: Duration::from_secs(90),
    }
}
