//! `ferroce link tc`: traffic classes by addresses.

use std::fmt::{self, Display};

use anyhow::Result;
use ferroce_ipc::{LinkSettings, Prefix, Setting, TcRule};
use serde::Serialize;

use crate::args::Style;
use crate::{broker, rows, settings, usage::Usage};

#[derive(Serialize, Debug, PartialEq, Eq)]
struct Row {
    ifname: String,
    port: u8,
    tclass: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<String>,
}

/// Executes the command; without words it shows the rules.
pub fn run(device: &str, words: &[String], transient: bool, style: Style) -> Result<()> {
    let (verb, rest) = words.split_first().map_or(("show", words), |(verb, rest)| (verb.as_str(), rest));
    let setting = match verb {
        "" => return Err(Usage("expected: show, add or delete".to_owned()).into()),
        _ if "show".starts_with(verb) && rest.is_empty() => {
            let devices = broker::devices()?;
            let found = rows::find(&devices, Some(device))?;
            let rows: Vec<Row> = found.iter().flat_map(|(_, d)| rows_of(&d.name, &d.settings)).collect();
            return rows::print(&rows, style);
        }
        _ if "add".starts_with(verb) => change(rest, false)?,
        _ if "delete".starts_with(verb) => change(rest, true)?,
        other => return Err(Usage(format!("'{other}' is unexpected; expected: show, add or delete")).into()),
    };
    broker::set(device, vec![setting], transient, false)
}

/// The class of all packets first, then the rules in order of precedence.
fn rows_of(name: &str, settings: &LinkSettings) -> Vec<Row> {
    let row = |tclass, src, dst| Row { ifname: name.to_owned(), port: 1, tclass, src, dst };
    let all = settings.tclass.map(|tclass| row(tclass, None, None));
    let rule =
        |rule: &TcRule| row(rule.tclass, Some(rule.source.to_string()), Some(rule.destination.to_string()));
    all.into_iter().chain(settings.rules.iter().map(rule)).collect()
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifname, port, tclass, src, dst } = self;
        write!(f, "link {ifname}/{port} tclass={tclass}")?;
        src.as_ref().map_or(Ok(()), |src| write!(f, " src={src}"))?;
        dst.as_ref().map_or(Ok(()), |dst| write!(f, " dst={dst}"))
    }
}

/// Parses `[tclass=]TCLASS [src=PREFIX] [dst=PREFIX]`, separated by blanks or commas, as in the sysfs file of
/// a card's driver.
fn change(words: &[String], delete: bool) -> Result<Setting, Usage> {
    let (mut tclass, mut source, mut destination) = (None, None, None);
    for word in words.iter().flat_map(|word| word.split(',')).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap_or(("tclass", word));
        let prefix = || value.parse::<Prefix>().map_err(|e| Usage(format!("{key} is '{value}': {e}")));
        let twice = match key {
            "tclass" => {
                let number = settings::number(value, 0);
                let number = number
                    .ok_or_else(|| Usage(format!("tclass is 0 to 255, or -1 for none, not '{value}'")))?;
                tclass.replace(number).is_some()
            }
            "src" | "src_ip" => source.replace(prefix()?).is_some(),
            "dst" | "dst_ip" => destination.replace(prefix()?).is_some(),
            _ => return Err(Usage(format!("'{key}' is unknown; there are tclass=, src= and dst="))),
        };
        if twice {
            return Err(Usage(format!("{key} is given twice")));
        }
    }
    let tclass = match (tclass, delete) {
        (Some(tclass), false) => tclass,
        (None | Some(_), true) => None,
        (None, false) => return Err(Usage("expected: tclass=TCLASS".to_owned())),
    };
    let both = source.is_some() || destination.is_some();
    let (source, destination) = (source.unwrap_or(Prefix::ANY), destination.unwrap_or(Prefix::ANY));
    Ok(match (both, tclass) {
        (false, tclass) => Setting::Tclass(tclass),
        (true, Some(tclass)) => Setting::Rule(TcRule { tclass, source, destination }),
        (true, None) => Setting::NoRule { source, destination },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, delete: bool) -> Result<Setting, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        change(&words, delete).map_err(|e| e.to_string())
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn rules_come_as_people_write_them() {
        let rule = Setting::Rule(TcRule {
            tclass: 16,
            source: prefix("1.1.1.2"),
            destination: prefix("1.1.1.0/24"),
        });
        let none = Setting::NoRule { source: prefix("1.1.1.2"), destination: prefix("1.1.1.0/24") };
        for (text, delete, want) in [
            ("tclass=16 src=1.1.1.2 dst=1.1.1.0/24", false, rule),
            ("dst=1.1.1.0/24 src=1.1.1.2 16", false, rule),
            ("tclass=0x10,src_ip=1.1.1.2,dst_ip=1.1.1.0/24", false, rule),
            ("16,src_ip=1.1.1.2,dst_ip=1.1.1.0/255.255.255.0", false, rule),
            ("tclass=-1 src=1.1.1.2 dst=1.1.1.0/24", false, none),
            ("-1,src_ip=1.1.1.2,dst_ip=1.1.1.0/24", false, none),
            ("src=1.1.1.2 dst=1.1.1.0/24", true, none),
            ("tclass=16 src=1.1.1.2 dst=1.1.1.0/24", true, none),
            ("96", false, Setting::Tclass(Some(96))),
            ("tclass=-1", false, Setting::Tclass(None)),
            ("", true, Setting::Tclass(None)),
            (
                "tclass=8 dst=any",
                false,
                Setting::Rule(TcRule { tclass: 8, source: Prefix::ANY, destination: Prefix::ANY }),
            ),
        ] {
            assert_eq!(words(text, delete), Ok(want), "{text}");
        }
        for (bad, sentence) in [
            ("", "expected: tclass=TCLASS"),
            ("src=1.1.1.1", "expected: tclass=TCLASS"),
            ("tclass=256", "tclass is 0 to 255, or -1 for none, not '256'"),
            ("tclass=", "tclass is 0 to 255, or -1 for none, not ''"),
            ("16 src=1.1.1", "src is '1.1.1': not an address, nor one with a mask as 10.1.0.0/16"),
            ("16 dst=1.1.1.1/33", "dst is '1.1.1.1/33': not an address, nor one with a mask as 10.1.0.0/16"),
            ("16 17", "tclass is given twice"),
            ("16 prio=3", "'prio' is unknown; there are tclass=, src= and dst="),
        ] {
            assert_eq!(words(bad, false), Err(sentence.to_owned()), "{bad}");
        }
    }

    #[test]
    fn what_is_set_is_shown_in_its_order() {
        let rule = |tclass, source, destination| {
            Setting::Rule(TcRule { tclass, source: prefix(source), destination: prefix(destination) })
        };
        let settings =
            [rule(16, "1.1.1.2", "any"), rule(24, "any", "2001:db8::/32"), Setting::Tclass(Some(8))];
        let settings = settings.iter().fold(LinkSettings::default(), |all, one| all.with(one).unwrap());
        let rows = rows_of("fr1", &settings);
        let text: Vec<String> = rows.iter().map(Row::to_string).collect();
        assert_eq!(
            text,
            [
                "link fr1/1 tclass=8",
                "link fr1/1 tclass=24 src=any dst=2001:db8::/32",
                "link fr1/1 tclass=16 src=1.1.1.2/32 dst=any",
            ]
        );
        assert_eq!(
            serde_json::to_string(&rows[2]).unwrap(),
            "{\"ifname\":\"fr1\",\"port\":1,\"tclass\":16,\"src\":\"1.1.1.2/32\",\"dst\":\"any\"}"
        );
    }
}
