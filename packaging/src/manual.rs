//! Man pages and shell completions: those of commands are made from the command lines themselves, what they
//! say of the environment and of files from the pages of the book.

use std::path::Path;
use std::process::Command as Process;

use anyhow::{Context, Result, ensure};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use ferroce_harness::tree;

/// `ferroce`'s own definition, compiled here as well.
#[path = "../../crates/ferroce-cli/src/args.rs"]
pub mod ferroce;

const MANUAL: &str = "ferroce";

/// Writes `share/man` (sections 1, 7 and 8) and completions for bash, zsh and fish.
pub fn write(share: &Path) -> Result<()> {
    let section = |number: u8| -> Result<std::path::PathBuf> {
        let folder = share.join(format!("man/man{number}"));
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    };
    let (man1, date) = (section(1)?, date());
    for command in [ferroce::Args::command(), ferroce::ShowGids::command(), ferroce::IbDev2NetDev::command()]
    {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        pages(command, &man1, &date)?;
    }
    for (number, name) in [(7, "ferroce.7"), (7, "ferroce-faults.7"), (8, "ferroced.8")] {
        let text = filled(&format!("docs/man/{name}"), &date)?;
        std::fs::write(section(number)?.join(name), ascii(&text))?;
    }
    for (shell, dir) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        complete(&mut ferroce::Args::command(), shell, &share.join(dir))?;
    }
    Ok(())
}

/// The page of a command and those of its commands.
fn pages(command: Command, folder: &Path, date: &str) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let file = folder.join(format!("{name}.1"));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned() {
        pages(inner, folder, date)?;
    }
    std::fs::write(file, ascii(&String::from_utf8(page(command, &name, date)?)?))?;
    Ok(())
}

fn page(mut command: Command, name: &str, date: &str) -> Result<Vec<u8>> {
    let (after, nested) = (command.get_after_help().map(ToString::to_string), command.has_subcommands());
    if matches!(name, "ferroce-run" | "ferroce-stop") {
        // Such commands print no objects.
        for output in ["json", "pretty", "details"] {
            if name == "ferroce-run" || output == "details" {
                command = command.mut_arg(output, |argument| argument.hide(true));
            }
        }
    }
    let synopsis = command.get_overridden_usage().is_none().then(|| synopsis(&command));
    let man = Man::new(command).title(name.to_uppercase()).date(date).source(source()).manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    match synopsis {
        Some(synopsis) => text.extend(synopsis.bytes()),
        None => man.render_synopsis_section(&mut text)?,
    }
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if nested {
        man.render_subcommands_section(&mut text)?;
    }
    let after = after.unwrap_or_default();
    text.extend(after_help(&after).bytes());
    if !after.contains("Exit status:") {
        text.extend_from_slice(b".SH \"EXIT STATUS\"\n0 done, 1 failed, 2 wrong usage.\n");
    }
    text.extend(environment_of(name).bytes());
    text.extend_from_slice(b".SH FILES\n.BR ferroce (7)\nlists them.\n.SH \"SEE ALSO\"\n");
    if name != "ferroce" {
        text.extend_from_slice(b".BR ferroce (1),\n");
    }
    text.extend_from_slice(b".BR ferroce (7),\n.BR ferroced (8),\n.BR rdma (8)\n");
    Ok(text)
}

/// The options with the names of their values, and `--` before a program: what follows it is the program's.
fn synopsis(command: &Command) -> String {
    let values = |argument: &Arg| {
        let names = argument.get_value_names().unwrap_or_default();
        let takes = argument.get_action().takes_values();
        let names = names.iter().filter(|_| takes).map(|name| format!("\\fI{}\\fR", escaped(name)));
        names.collect::<Vec<_>>().join(" ")
    };
    let mut words = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let short = argument.get_short().map(|name| format!("-{name}"));
        let long = argument.get_long().map(|name| format!("--{name}"));
        let named = short.into_iter().chain(long).map(|name| format!("\\fB{}\\fR", escaped(&name)));
        let mut word = named.collect::<Vec<_>>().join("|");
        if !word.is_empty() && argument.get_action().takes_values() {
            word.push(' ');
        }
        word += &values(argument);
        if argument.is_trailing_var_arg_set() {
            word = format!("[\\fB{}\\fR] {word} ...", escaped("--"));
        } else if !argument.is_required_set() {
            word = format!("[{word}]");
        }
        words.push((argument.is_positional(), word));
    }
    // Positional words stand last.
    words.sort_by_key(|(positional, _)| *positional);
    if command.has_subcommands() {
        let word = if command.is_subcommand_required_set() { "\\fICOMMAND\\fR" } else { "[\\fICOMMAND\\fR]" };
        words.push((true, word.to_owned()));
    }
    let name = escaped(command.get_bin_name().unwrap_or_else(|| command.get_name()));
    let words: String = words.into_iter().map(|(_, word)| format!(" {word}")).collect();
    format!(".SH SYNOPSIS\n\\fB{name}\\fR{words}\n")
}

/// A command's further help as sections: a line that ends in a colon is the heading of what follows it.
fn after_help(text: &str) -> String {
    let mut page = String::new();
    for part in text.split("\n\n").filter(|part| !part.is_empty()) {
        let (first, rest) = part.split_once('\n').unwrap_or(("", part));
        let (heading, body) = match first.strip_suffix(':') {
            Some("Example" | "Examples") => ("EXAMPLES".to_owned(), rest),
            Some(heading) => (heading.to_uppercase(), rest),
            None => ("NOTES".to_owned(), part),
        };
        let lines: Vec<String> = body.lines().map(|line| escaped(line.trim_start())).collect();
        let verbatim = first.ends_with(':') && heading != "EXIT STATUS";
        let body = lines.join("\n");
        page += &match verbatim {
            true => format!(".SH \"{heading}\"\n.EX\n{body}\n.EE\n"),
            false => format!(".SH \"{heading}\"\n{body}\n"),
        };
    }
    page
}

fn environment_of(name: &str) -> String {
    let own = match name {
        "ferroce-run" => {
            ".B FERROCE_NETDEV\nand\n.B FERROCE_LOOPBACK\nare set for the program by\n.B \\-\\-netdev\nand\n.BR \\-\\-loopback ;\n\
             .B FERROCE_FAULT\nby\n.B \\-\\-fault\nand\n.BR \\-\\-fault\\-file ;\n\
             .BR LD_AUDIT ,\n.BR LD_LIBRARY_PATH ,\n.B GLIBC_TUNABLES\nand\n.B VALGRIND_OPTS\nare extended.\n"
        }
        _ => "",
    };
    format!(
        ".SH ENVIRONMENT\n{own}.BR ferroce (7)\nlists the variables of programs,\n.BR ferroced (8)\nthose of the broker.\n"
    )
}

/// A page of our own, with its header and the parts that the book has.
fn filled(path: &str, date: &str) -> Result<String> {
    let text = std::fs::read_to_string(tree::root().join(path)).with_context(|| path.to_owned())?;
    let mut page = String::new();
    for line in text.lines() {
        let place = line.strip_prefix('@').and_then(|line| line.strip_suffix('@'));
        page += &match place {
            None => {
                line.replace("@DATE@", date).replace("@SOURCE@", &source()).replace("@MANUAL@", MANUAL) + "\n"
            }
            Some("FILES") => rows("files.md", "# Files and ports", 0, 2)?,
            Some("FAULTS acts") => rows("faults.md", "## The rules", 0, 2)?,
            Some("FAULTS values") => rows("faults.md", "## The rules", 1, 2)?,
            Some("FAULTS terms") => rows("faults.md", "## The rules", 2, 2)?,
            Some("FAULTS groups") => rows("faults.md", "## The rules", 3, 2)?,
            Some("FAULTS mads") => rows("faults.md", "## Connection management", 0, 2)?,
            Some("FAULTS iwarp") => rows("faults.md", "## iWARP", 0, 2)?,
            Some("FAULTS examples") => rows("faults.md", "## Examples", 0, 2)?,
            Some(place) => {
                let heading = place.strip_prefix("ENVIRONMENT ").context("an unknown place in a man page")?;
                rows("environment.md", &format!("## {heading}"), 0, 3)?
            }
        };
    }
    Ok(page)
}

/// A table below a heading of a page of the book, the first one for 0, as tagged paragraphs.
fn rows(page: &str, heading: &str, number: usize, columns: usize) -> Result<String> {
    let text = std::fs::read_to_string(tree::root().join("docs/book/src").join(page))?;
    let (_, below) =
        text.split_once(&format!("{heading}\n")).with_context(|| format!("{page} has no {heading}"))?;
    let lines: Vec<&str> = below.lines().collect();
    let mut tables = lines.split(|line| !line.starts_with('|')).filter(|table| !table.is_empty());
    let table = tables.nth(number).with_context(|| format!("{page} has too few tables below {heading}"))?;
    let mut found = String::new();
    for line in table.iter().skip(2) {
        let cells = cells(line);
        ensure!(cells.len() == columns, "{page}: {line}");
        found += &format!(".TP\n{}\n{}\n", marked(&cells[0], 'B'), marked(&cells[1], 'I'));
        if let Some(default) = cells.get(2).filter(|default| **default != "–") {
            found += &format!("Default: {}.\n", marked(default, 'I'));
        }
    }
    ensure!(!found.is_empty(), "{page} has an empty table below {heading}");
    Ok(found)
}

/// The cells of a row of Markdown, in which `\|` is no border.
fn cells(row: &str) -> Vec<String> {
    let row = row.replace("\\|", "\0");
    row.trim_matches('|').split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// Code of Markdown in another font, the rest escaped; links are their text.
fn marked(text: &str, font: char) -> String {
    let text = without_links(text);
    let parts = text.split('`').enumerate();
    parts
        .map(|(n, part)| if n % 2 == 1 { format!("\\f{font}{}\\fR", escaped(part)) } else { escaped(part) })
        .collect()
}

fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        let (Some((front, label)), Some((_, after))) = (before.rsplit_once('['), link.split_once(')')) else {
            break;
        };
        plain += front;
        plain += label;
        rest = after;
    }
    plain + rest
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// groff reads other characters by their numbers alone.
fn ascii(text: &str) -> String {
    let one = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) };
    text.chars().map(one).collect()
}

fn source() -> String {
    format!("ferroce {}", env!("CARGO_PKG_VERSION"))
}

/// The day of the last commit; none where the sources are no repository.
fn date() -> String {
    let log = Process::new("git").args(["log", "-1", "--format=%cs"]).current_dir(tree::root()).output();
    let day = log
        .ok()
        .filter(|log| log.status.success())
        .map(|log| String::from_utf8_lossy(&log.stdout).into_owned());
    day.unwrap_or_default().trim().to_owned()
}

fn complete(command: &mut Command, shell: Shell, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_complete::generate_to(shell, command, "ferroce", dir)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_header_and_sections() {
        let share = std::env::temp_dir().join(format!("ferroce-manual-{}", std::process::id()));
        write(&share).unwrap();
        let mut seen = 0;
        for section in ["man1", "man7", "man8"] {
            for entry in std::fs::read_dir(share.join("man").join(section)).unwrap() {
                let path = entry.unwrap().path();
                let text = std::fs::read_to_string(&path).unwrap();
                seen += 1;
                let title = text.lines().find(|line| line.starts_with(".TH")).unwrap();
                assert!(title.contains("ferroce 0."), "{title}");
                for heading in ["NAME", "ENVIRONMENT", "FILES", "\"SEE ALSO\""] {
                    assert!(
                        text.contains(&format!(".SH {heading}\n")),
                        "{} has no {heading}",
                        path.display()
                    );
                }
                assert!(
                    !text.contains('@') || !text.lines().any(|line| line.starts_with('@')),
                    "{}",
                    path.display()
                );
                assert!(!text.contains(".SH EXTRA"), "{}", path.display());
                // Not every machine has groff.
                if let Ok(formatted) = Process::new("groff").args(["-man", "-ww", "-z"]).arg(&path).output() {
                    let said = String::from_utf8_lossy(&formatted.stderr);
                    assert!(said.is_empty(), "{}: {said}", path.display());
                }
            }
        }
        std::fs::remove_dir_all(&share).unwrap();
        assert!(seen > 30, "{seen} pages");
    }

    #[test]
    fn variables_of_the_book_are_in_the_pages() {
        let page = filled("docs/man/ferroce.7", "2026-01-01").unwrap();
        for part in [
            ".TH FERROCE 7 \"2026-01-01\" \"ferroce ",
            "\\fBFERROCE_NETDEV\\fR",
            "\\fBVERBS_LOG_FILE\\fR",
            "links.json",
        ] {
            assert!(page.contains(part), "no {part} in\n{page}");
        }
        assert!(filled("docs/man/ferroced.8", "").unwrap().contains("\\fBFERROCE_IDLE\\fR"));
    }

    #[test]
    fn tables_of_the_book_are_in_the_page_of_faults() {
        let page = filled("docs/man/ferroce-faults.7", "2026-01-01").unwrap();
        for part in [
            "\\fBdrop [P]\\fR",
            "ERRNO\n",
            "\\fBdir=rx|tx\\fR",
            "\\fBnth=N\\fR, \\fBcount=N\\fR",
            "or management datagrams: ",
        ] {
            assert!(page.contains(part), "no {part} in\n{page}");
        }
        assert!(!page.contains("]("), "{page}");
        assert_eq!(without_links("a [b](c.md) d[0] [e](f#g)."), "a b d[0] e.");
    }

    #[test]
    fn the_synopsis_names_values_and_the_end_of_options() {
        let mut command = ferroce::Args::command().disable_help_subcommand(true);
        command.build();
        let of = |name: &str| synopsis(command.find_subcommand(name).unwrap());
        let run = of("run");
        assert!(run.starts_with(".SH SYNOPSIS\n\\fBferroce run\\fR ["), "{run}");
        for part in ["[\\fB\\-\\-netdev\\fR \\fIIF\\fR]", "[\\fB\\-q\\fR|\\fB\\-\\-quiet\\fR]"] {
            assert!(run.contains(part), "no {part} in {run}");
        }
        assert!(run.ends_with(" [\\fB\\-\\-\\fR] \\fICMD\\fR ...\n"), "{run}");
        assert!(
            of("doctor").ends_with(" [\\fIPROGRAM | HOST\\fR]\n")
                && of("link").ends_with(" [\\fICOMMAND\\fR]\n")
        );
        let page = String::from_utf8(page(command, "ferroce", "").unwrap()).unwrap();
        assert!(!page.contains(".BR ferroce (1)"), "a page does not refer to itself");
    }

    #[test]
    fn sentences_of_pages_stand_without_their_links() {
        let (programs, broker) = (filled("docs/man/ferroce.7", ""), filled("docs/man/ferroced.8", ""));
        let text = programs.unwrap() + &broker.unwrap();
        for remains in
            ["See Lost packets", "See Congestion", "Rules of Faults on purpose", "see the next rows"]
        {
            assert!(!text.contains(remains), "{remains}");
        }
    }

    #[test]
    fn help_becomes_sections() {
        let text = after_help("Settings:\n  a-b  c\n\nExit status:\n  0 done\n\nA note.");
        assert_eq!(
            text,
            ".SH \"SETTINGS\"\n.EX\na\\-b  c\n.EE\n.SH \"EXIT STATUS\"\n0 done\n.SH \"NOTES\"\nA note.\n"
        );
    }
}
