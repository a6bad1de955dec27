//! A table as one SVG page of bars: ferroce and its rivals row by row, with the ratio and the limit.

use std::fmt::Write;

use super::table::{Line, short};

/// Sizes in pixels.
const WIDTH: usize = 1190;
const LABEL: usize = 430;
const BAR: usize = 400;
const HEIGHT: usize = 16;
const GAP: usize = 14;

const STYLE: &str = "text{font:13px sans-serif;fill:#222}.h{font-weight:bold;font-size:17px}.s{fill:#666}\
                     .o{fill:#c2571a}.r{fill:#8aa5bd}.bad{fill:#b00020;font-weight:bold}.good{fill:#1a7f37}\
                     .e{stroke:#222;stroke-width:1}";

/// Text as it may stand in XML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// The page.
pub fn page(title: &str, subtitle: &str, lines: &[Line]) -> String {
    let mut body = String::new();
    let mut y = 64;
    for line in lines {
        y = row(&mut body, line, y) + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\">\n\
         <style>{STYLE}</style>\n<rect width=\"{WIDTH}\" height=\"{y}\" fill=\"#fff\"/>\n\
         <text class=\"h\" x=\"10\" y=\"24\">{}</text>\n<text class=\"s\" x=\"10\" y=\"44\">{}</text>\n{body}</svg>\n",
        escaped(title),
        escaped(subtitle)
    )
}

/// Draws a row from `y` on; where it ends.
fn row(body: &mut String, line: &Line, y: usize) -> usize {
    let cells: Vec<_> = std::iter::once(&line.ours).chain(&line.rivals).collect();
    let most = cells.iter().filter_map(|cell| cell.samples.last()).copied().fold(0.0, f64::max);
    let width = |value: f64| if most > 0.0 { value / most * BAR as f64 } else { 0.0 };
    let name = escaped(&format!("{}: {}", line.path, line.measure));
    let base = HEIGHT - 3;
    let _ = writeln!(body, "<text x=\"10\" y=\"{}\">{name}</text>", y + base);
    let unit = line.unit.name();
    let better = if line.unit.is_more_better() { "more is better" } else { "less is better" };
    let _ = writeln!(body, "<text class=\"s\" x=\"10\" y=\"{}\">{unit}, {better}</text>", y + HEIGHT + base);
    if let Some(ratio) = line.ratio {
        let class = match line.reached() {
            Some(true) => "good",
            Some(false) => "bad",
            None => "s",
        };
        let at = (WIDTH - 90, y + base);
        let _ =
            writeln!(body, "<text class=\"{class}\" x=\"{}\" y=\"{}\">{} ×</text>", at.0, at.1, short(ratio));
    }
    let mut y = y;
    for (number, cell) in cells.iter().enumerate() {
        let class = if number == 0 { "o" } else { "r" };
        let long = width(cell.median.unwrap_or(0.0));
        let _ = writeln!(
            body,
            "<rect class=\"{class}\" x=\"{LABEL}\" y=\"{}\" width=\"{long:.1}\" height=\"{}\"/>",
            y + 1,
            HEIGHT - 2
        );
        if let (Some(least), Some(most)) = (cell.samples.first(), cell.samples.last()) {
            let (from, to) = (LABEL as f64 + width(*least), LABEL as f64 + width(*most));
            let middle = y + HEIGHT / 2;
            let _ = writeln!(
                body,
                "<line class=\"e\" x1=\"{from:.1}\" y1=\"{middle}\" x2=\"{to:.1}\" y2=\"{middle}\"/>"
            );
        }
        let text = match cell.median {
            Some(median) => format!("{} {}", cell.name, short(median)),
            None => format!("{}: {}", cell.name, cell.text()),
        };
        let at = LABEL + BAR + 8;
        let _ = writeln!(body, "<text x=\"{at}\" y=\"{}\">{}</text>", y + base, escaped(&text));
        y += HEIGHT;
    }
    y.max(y + (2 * HEIGHT).saturating_sub(cells.len() * HEIGHT))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::table::tests::sample;

    /// Reads a document of elements, attributes and text strictly; the names of all elements in order.
    pub fn parsed(document: &str) -> Vec<String> {
        let (mut names, mut open, mut rest) = (Vec::new(), Vec::new(), document.trim());
        while let Some(at) = rest.find('<') {
            let (text, from) = rest.split_at(at);
            assert!(is_text(text), "text: {text}");
            assert!(!open.is_empty() || text.trim().is_empty(), "text outside of the root: {text}");
            let end = from.find('>').expect("a tag without an end");
            let tag = &from[1..end];
            rest = &from[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "name: {name}");
            let mut parts = attributes.split('"');
            while let Some(key) = parts.next() {
                let Some(value) = parts.next() else {
                    assert!(key.trim().is_empty(), "attribute: {key}");
                    break;
                };
                let key = key.trim().strip_suffix('=').expect("an attribute without a value");
                assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "key: {key}");
                assert!(is_text(value), "value: {value}");
            }
            assert!(names.is_empty() || !open.is_empty(), "two roots");
            names.push(name.to_owned());
            if !closed {
                open.push(name.to_owned());
            }
        }
        assert!(open.is_empty() && rest.is_empty(), "left open: {open:?} {rest}");
        names
    }

    /// No markup, and `&` only in front of a known entity.
    fn is_text(text: &str) -> bool {
        let entities = ["amp;", "lt;", "gt;", "quot;"];
        !text.contains(['<', '>'])
            && text.split('&').skip(1).all(|part| entities.iter().any(|e| part.starts_with(e)))
    }

    #[test]
    fn the_page_is_one_well_formed_document() {
        let lines = sample();
        let page = page("a <title> & \"more\"", "of today", &lines);
        let names = parsed(&page);
        let bars: usize = lines.iter().map(|line| 1 + line.rivals.len()).sum();
        assert_eq!(names.first().map(String::as_str), Some("svg"));
        assert_eq!(names.iter().filter(|name| *name == "rect").count(), 1 + bars);
        assert!(page.contains("a &lt;title&gt; &amp; &quot;more&quot;") && page.contains(">2.00 ×<"));
        assert!(!page.contains("NaN") && !page.contains("http://www.w3.org/1999"));
    }

    #[test]
    fn the_reader_is_strict() {
        for bad in ["<a><b></a></b>", "<a", "<a b=c/>", "<a>&</a>", "<a/><b/>"] {
            assert!(std::panic::catch_unwind(|| parsed(bad)).is_err(), "{bad}");
        }
    }
}
