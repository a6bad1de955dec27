//! Every command line of `ferroce` on a page must be one that `ferroce` takes.

use clap::Parser;
use clap::error::ErrorKind;

use super::blocks::{Block, Kind};
use super::page::Page;
use ferroce_harness::report::Checks;
use ferroce_packaging::manual::ferroce;

/// Checks blocks whole, and pieces of code within the text as far as they go.
pub fn check(pages: &[Page], checks: &mut Checks) {
    let mut seen = 0;
    for page in pages {
        let mut wrong = Vec::new();
        for block in Block::all(&page.text) {
            if let Kind::Other(info) = &block.kind
                && info.split(' ').next() == Some("console")
            {
                wrong.push(format!(
                    "line {}: a console block must say `run` or `skip=\"reason\"`",
                    block.line
                ));
            }
            for command in block.text.iter().flat_map(|line| commands(line)) {
                seen += 1;
                wrong.extend(judge(&command, true).map(|why| format!("line {}: {why}", block.line)));
            }
        }
        for span in spans(&page.text) {
            for command in commands(&span) {
                seen += 1;
                wrong.extend(judge(&command, false));
            }
        }
        match wrong.is_empty() {
            true => checks.pass(),
            false => checks.fail(&page.path, &wrong.join("\n")),
        }
    }
    match seen > 100 {
        true => checks.pass(),
        false => checks.fail("commands", &format!("only {seen} command lines of ferroce were found")),
    }
}

/// The words of each `ferroce …` in a line of shell, YAML or a Dockerfile.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.split_once("  #").map_or(line, |(front, _)| front);
    let separators: &[&str] = &["&&", "||", "|", ";", "$(", "`"];
    let line = without_quoted(line);
    let mut parts = vec![line.as_str()];
    for separator in separators {
        parts = parts.into_iter().flat_map(|part| part.split(separator)).collect();
    }
    parts.into_iter().filter_map(one).collect()
}

/// The line with one word in the place of each text between single quotes, which begin behind a space or `=`.
fn without_quoted(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find([' ', '=']) {
        let (front, behind) = rest.split_at(at + 1);
        out.push_str(front);
        rest = behind;
        if let Some((_, after)) = rest.strip_prefix('\'').and_then(|quoted| quoted.split_once('\'')) {
            out.push_str("quoted");
            rest = after;
        }
    }
    out + rest
}

fn one(part: &str) -> Option<Vec<String>> {
    let words: Vec<&str> = part.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "ferroce" || word.ends_with("/bin/ferroce"))?;
    // Before it: prompts, `- run:`, `RUN`, variables.
    let front = |word: &&str| {
        word.ends_with(['$', '#', ':']) || word.contains('=') || matches!(*word, "-" | "RUN" | "#" | "$")
    };
    if !words.get(..at)?.iter().all(front) {
        return None;
    }
    let rest =
        words.get(at + 1..)?.iter().take_while(|word| !matches!(**word, ">" | "2>&1" | "&" | "<" | "\\"));
    Some(rest.map(|word| (*word).to_owned()).collect())
}

/// The error in the words after `ferroce`, if any. Within a sentence a command may lack its arguments.
fn judge(words: &[String], whole: bool) -> Option<String> {
    // `DEV` and `…` stand for something; a command that is only named is none that can be parsed.
    let given: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !matches!(*word, "…" | "..." | "[…]")).collect();
    if given.is_empty() || given.first().is_some_and(|word| word.chars().all(|c| c.is_ascii_uppercase())) {
        return None;
    }
    let parsed = ferroce::Args::try_parse_from(std::iter::once("ferroce").chain(given.iter().copied()));
    let error = match parsed {
        Err(error) => error,
        // `run` takes an option that it does not know for the program.
        Ok(ferroce::Args { object: ferroce::Object::Run(run), .. }) => {
            let program = run.command.first()?.to_str()?;
            return program.starts_with('-').then(|| format!("ferroce run has no option {program}"));
        }
        Ok(_) => return None,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::TooFewValues
        | ErrorKind::InvalidValue
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if !whole =>
        {
            None
        }
        _ => Some(format!(
            "ferroce {}: {}",
            words.join(" "),
            error.to_string().lines().next().unwrap_or_default()
        )),
    }
}

/// Pieces of code within the text, outside of blocks.
fn spans(text: &str) -> Vec<String> {
    let mut outside = true;
    let mut plain = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            outside = !outside;
        } else if outside {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_defined() {
        ferroce::Args::command().debug_assert();
    }

    #[test]
    fn commands_are_found_behind_prompts_variables_and_keywords() {
        let found = |line: &str| commands(line).iter().map(|words| words.join(" ")).collect::<Vec<_>>();
        assert_eq!(found("$ ferroce run -- a b   # why"), ["run -- a b"]);
        assert_eq!(found("  - run: ferroce/bin/ferroce doctor || true"), ["doctor"]);
        assert_eq!(found("FERROCE_LOG=debug ferroce status; ferroce stop"), ["status", "stop"]);
        assert_eq!(found("server$ ferroce run -- x > y &"), ["run -- x"]);
        assert_eq!(
            found("$ ferroce run --fault 'seed=7; drop' -- ferroce's"),
            ["run --fault quoted -- ferroce's"]
        );
        assert!(found("the program ferroce runs").is_empty() && found("cargo add ferroce").is_empty());
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        let judged = |line: &str, whole| commands(line).first().and_then(|words| judge(words, whole));
        assert_eq!(judged("ferroce link add fr1 type roce netdev eth0", true), None);
        assert_eq!(judged("ferroce link set", false), None);
        assert!(judged("ferroce link set", true).is_some());
        assert!(judged("ferroce pong", false).is_some());
        assert!(judged("ferroce run --fualt x -- CMD", false).is_some());
    }
}
