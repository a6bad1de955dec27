//! Stacks as a flame graph: one SVG, whose boxes tell their share when they are pointed at.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::bars::escaped;

/// Sizes in pixels.
const WIDTH: f64 = 1180.0;
const MARGIN: f64 = 10.0;
const HEIGHT: f64 = 16.0;
/// The smallest share that is drawn.
const LEAST: f64 = 0.006;

/// A stack, outermost frame first, and how many samples had it.
pub type Stacks = BTreeMap<Vec<String>, u64>;

/// A frame with all that it called.
#[derive(Default)]
struct Frame {
    samples: u64,
    callees: BTreeMap<String, Frame>,
}

impl Frame {
    fn of(stacks: &Stacks) -> Self {
        let mut root = Self::default();
        for (stack, samples) in stacks {
            root.samples += samples;
            let mut frame = &mut root;
            for name in stack {
                frame = frame.callees.entry(name.clone()).or_default();
                frame.samples += samples;
            }
        }
        root
    }

    /// Frames on top of each other, without those that are too small to draw.
    fn depth(&self, least: u64) -> usize {
        let deep =
            self.callees.values().filter(|callee| callee.samples >= least).map(|callee| callee.depth(least));
        1 + deep.max().unwrap_or(0)
    }
}

/// One page of several graphs, each with its title.
pub fn page(title: &str, graphs: &[(String, Stacks)]) -> String {
    let mut body = String::new();
    let mut y = 40.0;
    for (name, stacks) in graphs {
        let root = Frame::of(stacks);
        let least = ((root.samples as f64 * LEAST) as u64).max(1);
        let height = root.depth(least) as f64 * HEIGHT;
        let _ =
            writeln!(body, "<text class=\"t\" x=\"{MARGIN}\" y=\"{:.0}\">{}</text>", y + 12.0, escaped(name));
        let bottom = y + 20.0 + height;
        let mut draw = Drawing { body: &mut body, total: root.samples.max(1) as f64, least };
        draw.frame("all", &root, MARGIN, bottom - HEIGHT);
        y = bottom + 16.0;
    }
    let wide = WIDTH + 2.0 * MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{y:.0}\" viewBox=\"0 0 {wide} {y:.0}\">\n\
         <style>text{{font:11px monospace;fill:#222}}.t{{font:bold 13px sans-serif}}rect{{stroke:#fff;stroke-width:.5}}\
         .k{{fill:#9db8d2}}.o{{fill:#e8955c}}.c{{fill:#d9c24f}}.p{{fill:#b9b9b9}}</style>\n\
         <rect width=\"{wide}\" height=\"{y:.0}\" fill=\"#fff\"/>\n\
         <text class=\"t\" x=\"{MARGIN}\" y=\"20\">{}</text>\n{body}</svg>\n",
        escaped(title)
    )
}

struct Drawing<'a> {
    body: &'a mut String,
    total: f64,
    least: u64,
}

impl Drawing<'_> {
    fn frame(&mut self, name: &str, frame: &Frame, x: f64, y: f64) {
        let width = frame.samples as f64 / self.total * WIDTH;
        let share = frame.samples as f64 / self.total * 100.0;
        let (name_safe, class) = (escaped(name), color(name));
        // A letter is about 6.6 pixels wide.
        let letters = ((width - 4.0) / 6.6).max(0.0) as usize;
        let shown: String = name.chars().take(letters).collect();
        let _ = writeln!(
            self.body,
            "<g><title>{name_safe}: {share:.1} %</title><rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" \
             height=\"{HEIGHT}\"/><text x=\"{:.1}\" y=\"{:.0}\">{}</text></g>",
            x + 2.0,
            y + 12.0,
            escaped(if letters < 3 { "" } else { &shown })
        );
        let mut x = x;
        for (name, callee) in &frame.callees {
            if callee.samples >= self.least {
                self.frame(name, callee, x, y - HEIGHT);
            }
            x += callee.samples as f64 / self.total * WIDTH;
        }
    }
}

/// The kernel's frames end in `_[k]`, ours name a crate.
fn color(name: &str) -> &'static str {
    match name {
        name if name.contains("icrc") || name.contains("crc32") => "c",
        name if name.ends_with("_[k]") => "k",
        name if name.contains("ferroce") => "o",
        _ => "p",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::tests::parsed;

    #[test]
    fn a_graph_is_one_well_formed_document() {
        let stack = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let stacks = Stacks::from([
            (stack(&["main", "<ferroce_wire::Icrc>::update"]), 600),
            (stack(&["main", "sendmsg", "copy_[k]"]), 399),
            (stack(&["main", "rare"]), 1),
        ]);
        let page = page("WRITE & READ", &[("target".to_owned(), stacks)]);
        let names = parsed(&page);
        // all, main, update, sendmsg, copy, and the background; rare is too small.
        assert_eq!(names.iter().filter(|name| *name == "rect").count(), 6);
        assert!(page.contains("&lt;ferroce_wire::Icrc&gt;::update: 60.0 %") && !page.contains("rare"));
    }
}
