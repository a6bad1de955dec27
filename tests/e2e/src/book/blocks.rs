//! Fenced code blocks of a page.

use std::path::Path;

/// The marker of a `console` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ```` ```console run ````: its commands are run and their output is compared.
    Run,
    /// ```` ```console skip="reason" ````
    Skip(String),
    /// ```` ```c NAME.c ````: a file that the commands of the page find.
    File(String),
    /// Any other block, by its language.
    Other(String),
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    pub kind: Kind,
    /// Its lines.
    pub text: Vec<String>,
}

/// A command of a `console` block, with the output that the page shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Behind the prompt, without a comment.
    pub command: String,
    /// Lines of output.
    pub output: Vec<String>,
}

impl Block {
    /// The blocks of a page.
    pub fn all(text: &str) -> Vec<Self> {
        let mut all = Vec::new();
        let mut open: Option<Self> = None;
        for (index, line) in text.lines().enumerate() {
            match (open.take(), line.strip_prefix("```")) {
                (None, None) => {}
                (None, Some(info)) => {
                    open = Some(Self { line: index + 1, kind: kind(info.trim()), text: Vec::new() });
                }
                (Some(block), Some(_)) => all.push(block),
                (Some(mut block), None) => {
                    block.text.push(line.to_owned());
                    open = Some(block);
                }
            }
        }
        all.extend(open);
        all
    }

    /// The commands of a `console` block: lines behind a prompt (`$`, `#`, `server$`), each with what follows it.
    pub fn commands(&self) -> Vec<Line> {
        let mut found: Vec<Line> = Vec::new();
        for line in &self.text {
            match (prompt(line), found.last_mut()) {
                (Some(command), _) => {
                    found.push(Line { command: without_comment(command).to_owned(), output: Vec::new() });
                }
                (None, Some(last)) => last.output.push(line.clone()),
                (None, None) => {}
            }
        }
        found
    }
}

fn kind(info: &str) -> Kind {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    let reason = rest.trim().strip_prefix("skip=\"").and_then(|reason| reason.strip_suffix('"'));
    match (language, rest.trim(), reason) {
        ("console", "run", _) => Kind::Run,
        ("c", name, _) if Path::new(name).extension().is_some_and(|end| end == "c") => {
            Kind::File(name.to_owned())
        }
        ("console", _, Some(reason)) if !reason.is_empty() => Kind::Skip(reason.to_owned()),
        _ => Kind::Other(info.to_owned()),
    }
}

fn prompt(line: &str) -> Option<&str> {
    let (front, command) = line.split_once(' ')?;
    let name = front.strip_suffix(['$', '#'])?;
    name.bytes().all(|c| c.is_ascii_lowercase()).then_some(command)
}

/// Comments begin two spaces behind the command.
fn without_comment(command: &str) -> &str {
    command.split_once("  #").map_or(command, |(front, _)| front).trim_end()
}

/// Whether what a command said is what the page shows. Numbers may differ; `…` stands for anything within a line, and alone
/// for any lines.
pub fn agree(shown: &[String], said: &[String]) -> bool {
    match (shown.split_first(), said.split_first()) {
        (None, None) => true,
        (Some((line, rest)), _) if line.trim() == "…" => {
            (0..=said.len()).any(|skipped| agree(rest, said.get(skipped..).unwrap_or_default()))
        }
        (Some((line, rest)), Some((real, others))) => fits(&plain(line), &plain(real)) && agree(rest, others),
        _ => false,
    }
}

/// With every number as `0` and white space as one space.
fn plain(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let mut text = String::new();
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let hex =
                rest.strip_prefix("0x").map(|tail| tail.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
            let tail = match hex {
                Some(tail) => tail,
                None if first.is_ascii_digit() => {
                    let tail = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                    // A fraction is part of its number; the dots of an address are not.
                    match tail.strip_prefix('.').filter(|more| more.starts_with(|c: char| c.is_ascii_digit()))
                    {
                        Some(more) if text.is_empty() && !more.contains('.') => {
                            more.trim_start_matches(|c: char| c.is_ascii_digit())
                        }
                        _ => tail,
                    }
                }
                None => {
                    text.push(first);
                    rest = rest.get(first.len_utf8()..).unwrap_or_default();
                    continue;
                }
            };
            text.push('0');
            rest = tail;
        }
        text
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether `line` is `pattern` with something in the place of each `…`.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            match rest.find(before) {
                Some(at) => rest = rest.get(at + before.len()..).unwrap_or_default(),
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_whether_they_are_run() {
        let page = "text\n```console run\n$ a b   # why\nout\n\n$ c\n```\n```console skip=\"no\"\n# d\n```\n```sh\ne\n```\n";
        let blocks = Block::all(page);
        assert_eq!(blocks[0].kind, Kind::Run);
        assert_eq!(blocks[1].kind, Kind::Skip("no".to_owned()));
        assert_eq!(blocks[2].kind, Kind::Other("sh".to_owned()));
        assert_eq!(blocks[1].line, 8);
        let [first, second] = blocks[0].commands().try_into().unwrap();
        assert_eq!((first.command.as_str(), first.output), ("a b", vec!["out".to_owned(), String::new()]));
        assert_eq!(second.command, "c");
        assert_eq!(blocks[1].commands()[0].command, "d");
    }

    #[test]
    fn numbers_may_differ_and_dots_stand_for_anything() {
        let agrees = |shown: &str, said: &str| {
            let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
            agree(&lines(shown), &lines(said))
        };
        assert!(agrees("1000 iters in 0.01 s = 8.00 us", "1000 iters in 12 s = 1234.5   us"));
        assert!(agrees("QPN 0x01ab", "QPN 0xffee"));
        assert!(agrees("a …", "a b c") && agrees("fe80::… x", "fe80::1:2 x") && !agrees("a … d", "a b c"));
        assert!(agrees("a\n…\nd", "a\nb\nc\nd") && agrees("a\n…", "a") && !agrees("a\n…\nd", "a\nb"));
        assert!(!agrees("10.1.2.3", "10.1.2") && agrees("10.1.2.3", "10.81.0.1"));
        assert!(!agrees("state ACTIVE", "state DOWN") && !agrees("", "a") && !agrees("a", ""));
    }
}
