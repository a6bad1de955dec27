//! Errors of scenario files.

use std::fmt;
use std::ops::Range;

/// A scenario cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ScenarioError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The text of the line.
    pub source_line: String,
    /// The error, and what would be right.
    pub message: String,
}

impl ScenarioError {
    /// At these octets of the text.
    pub(super) fn at(text: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let source_line = text[begin..].lines().next().unwrap_or_default().chars().take(200).collect();
        let line = before.matches('\n').count() + 1;
        let column = text[begin..start].chars().count() + 1;
        Self { line, column, source_line, message: message.into() }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message, .. } = self;
        write!(f, "line {line}, character {column}: {message}")
    }
}
