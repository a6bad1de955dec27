//! The text format of OpenMetrics 1.0.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Counter,
    Gauge,
    Info,
}

/// Families of metrics by their names, each with its samples.
#[derive(Default)]
pub struct Metrics(BTreeMap<String, Family>);

struct Family {
    kind: Kind,
    help: String,
    /// Values by their labels as text.
    samples: BTreeMap<String, f64>,
}

/// The units of our metrics, which end their names.
const UNITS: [&str; 2] = ["bytes", "seconds"];

impl Metrics {
    /// Adds a sample. Values of the same name and labels are summed: a device that was removed and added
    /// again counts as one.
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], value: f64) {
        let family = self.0.entry(name.to_owned()).or_insert_with(|| Family {
            kind,
            help: help.to_owned(),
            samples: BTreeMap::new(),
        });
        let words: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        *family.samples.entry(words.join(",")).or_default() += value;
    }

    #[cfg(test)]
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, family)| format!("{name}{}", family.kind.suffix())).collect()
    }
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
        }
    }

    /// The end of the names of samples.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, Family { kind, help, samples }) in &self.0 {
            writeln!(f, "# HELP {name} {}", escaped(help))?;
            writeln!(f, "# TYPE {name} {}", kind.name())?;
            if let Some(unit) = UNITS.iter().find(|unit| name.ends_with(&format!("_{unit}"))) {
                writeln!(f, "# UNIT {name} {unit}")?;
            }
            for (labels, value) in samples {
                let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                writeln!(f, "{name}{}{labels} {value}", kind.suffix())?;
            }
        }
        writeln!(f, "# EOF")
    }
}

/// Text between quotes; a program chooses its own name.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_contiguous_and_labels_are_escaped() {
        let mut metrics = Metrics::default();
        metrics.add("b_bytes", Kind::Counter, "Octets.", &[("comm", "a\"\\\n")], 5.0);
        metrics.add("a", Kind::Gauge, "A \"gauge\".", &[], 0.25);
        metrics.add(
            "b_bytes",
            Kind::Counter,
            "Octets.",
            &[("comm", "b")],
            18_446_744_073_709_551_615_u64 as f64,
        );
        metrics.add("b_bytes", Kind::Counter, "Octets.", &[("comm", "a\"\\\n")], 2.0);
        metrics.add("c", Kind::Info, "Words.", &[("build", "0.1.0")], 1.0);
        let want = "# HELP a A \\\"gauge\\\".\n# TYPE a gauge\na 0.25\n\
                    # HELP b_bytes Octets.\n# TYPE b_bytes counter\n# UNIT b_bytes bytes\n\
                    b_bytes_total{comm=\"a\\\"\\\\\\n\"} 7\nb_bytes_total{comm=\"b\"} 18446744073709552000\n\
                    # HELP c Words.\n# TYPE c info\nc_info{build=\"0.1.0\"} 1\n# EOF\n";
        assert_eq!(metrics.to_string(), want);
    }
}
