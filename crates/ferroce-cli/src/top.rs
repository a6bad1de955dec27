//! `ferroce top`: the busiest programs, on a terminal or as plain tables.

mod page;
mod screen;
mod table;

use std::io::{IsTerminal, stdin, stdout};
use std::thread;

use anyhow::Result;

use crate::args::{Style, TopArgs};
use crate::look::{Look, Watch};
use crate::rows;

use table::{ProgramRow, Table};

pub fn run(args: &TopArgs, style: Style) -> Result<()> {
    if let (Some(page), Some(capture)) = (&args.html, &args.capture) {
        return page::write(capture, page);
    }
    let mut watch = Watch::default();
    let plain = args.batch || style.json || style.pretty || !stdin().is_terminal() || !stdout().is_terminal();
    if !plain {
        return screen::run(args, watch);
    }
    let mut before = watch.ask(Look::at)?;
    for turn in 0..args.count.unwrap_or(u64::MAX) {
        thread::sleep(args.every);
        let now = watch.ask(Look::at)?;
        let programs = table::programs(&before, &now);
        let text = match rows::json(&programs, style)? {
            Some(json) => json,
            None => plain_text(&programs, turn > 0),
        };
        if !rows::write_more(&text)? {
            break;
        }
        before = now;
    }
    Ok(())
}

/// A table with its header, behind an empty line if it is not the first.
fn plain_text(programs: &[ProgramRow], follows: bool) -> String {
    let lines = std::iter::once(ProgramRow::header()).chain(programs.iter().map(ProgramRow::cells));
    let mut text = if follows { "\n".to_owned() } else { String::new() };
    for cells in lines {
        let padded = ProgramRow::COLUMNS.iter().zip(&cells).map(|(column, cell)| column.padded(cell));
        text.push_str(padded.collect::<Vec<_>>().join(" ").trim_end());
        text.push('\n');
    }
    text
}
