//! The rules of nftables, as `nft -j list ruleset` prints them (libnftables-json(5)).

use ferroce_wire::ROCE_UDP_PORT;
use serde_json::Value;

use super::{About, Chain, Verdict};

/// The names of iptables's tables.
const IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// The chains of a ruleset, but the tables of iptables in the families `elsewhere`. `None` for a text that
/// nft does not print.
pub fn chains(text: &str, elsewhere: &[&str]) -> Option<Vec<Chain>> {
    let ruleset: Value = serde_json::from_str(text).ok()?;
    let objects = ruleset.get("nftables")?.as_array()?;
    let field = |object: &Value, name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
    let of_kind = |kind: &'static str| objects.iter().filter_map(move |object| object.get(kind));
    let mut found = Vec::new();
    for chain in of_kind("chain") {
        let (family, table, name) = (field(chain, "family")?, field(chain, "table")?, field(chain, "name")?);
        let hook = field(chain, "hook");
        let arrives =
            hook.as_deref().is_none_or(|hook| matches!(hook, "input" | "output" | "prerouting" | "ingress"));
        if !arrives || (IPTABLES.contains(&&*table) && elsewhere.contains(&&*family)) {
            continue;
        }
        let place = |object: &Value| (field(object, "family"), field(object, "table"));
        let here = (Some(family.clone()), Some(table.clone()));
        let of_chain = |rule: &&Value| place(rule) == here && field(rule, "chain").as_deref() == Some(&name);
        let set = |set: &str| {
            let named =
                |object: &&Value| place(object) == here && field(object, "name").as_deref() == Some(set);
            of_kind("set").find(named)?.get("elem").cloned()
        };
        let statements = of_kind("rule").filter(of_chain).filter_map(|rule| rule.get("expr")?.as_array());
        found.push(Chain {
            name: format!("nftables, {family} {table} {name}"),
            shown_by: format!("nft list chain {family} {table} {name}"),
            base: hook.is_some(),
            policy: if field(chain, "policy").as_deref() == Some("drop") {
                Verdict::Drop
            } else {
                Verdict::Accept
            },
            rules: statements.flat_map(|statements| rule(statements, &set)).collect(),
        });
    }
    Some(found)
}

/// The verdicts of a rule's statements on UDP port 4791. A map of verdicts counts as several rules.
fn rule(statements: &[Value], set: &dyn Fn(&str) -> Option<Value>) -> Vec<(About, Verdict)> {
    let mut about = About::All;
    let mut verdicts = Vec::new();
    for statement in statements {
        let now = if let Some(map) = statement.get("vmap") {
            let of_port = map.get("key").is_some_and(is_port);
            let pairs = map.pointer("/data/set").and_then(Value::as_array);
            for pair in pairs.into_iter().flatten().filter_map(Value::as_array).filter(|_| of_port) {
                if let [key, to] = pair.as_slice()
                    && covers(key, set)
                {
                    verdicts.push((About::Port, verdict(to).unwrap_or(Verdict::Other)));
                }
            }
            About::All
        } else if let Some(test) = statement.get("match") {
            matched(test, set)
        } else if let Some(end) = verdict(statement) {
            verdicts.push((About::All, end));
            About::All
        } else if ["counter", "log", "comment"].iter().any(|name| statement.get(name).is_some()) {
            About::All
        } else {
            About::Some
        };
        about = about.max(now);
    }
    verdicts.into_iter().map(|(own, verdict)| (about.max(own), verdict)).collect()
}

fn verdict(statement: &Value) -> Option<Verdict> {
    let ends = [("accept", Verdict::Accept), ("drop", Verdict::Drop), ("reject", Verdict::Drop)];
    ends.into_iter().find(|(name, _)| statement.get(name).is_some()).map(|(_, verdict)| verdict)
}

fn is_port(left: &Value) -> bool {
    let of = |name: &str| left.pointer(&format!("/payload/{name}")).and_then(Value::as_str);
    of("field") == Some("dport") && matches!(of("protocol"), Some("udp" | "th"))
}

fn matched(test: &Value, set: &dyn Fn(&str) -> Option<Value>) -> About {
    let (Some(left), Some(right)) = (test.get("left"), test.get("right")) else { return About::Other };
    let not = test.get("op").and_then(Value::as_str) == Some("!=");
    if is_port(left) {
        return if covers(right, set) == not { About::Other } else { About::Port };
    }
    let text = |path: &str| left.pointer(path).and_then(Value::as_str);
    let udp = || any(right, &|value| value.as_str() == Some("udp") || value.as_u64() == Some(17));
    match (text("/meta/key"), text("/payload/protocol"), text("/payload/field")) {
        (Some("l4proto"), ..) | (_, _, Some("protocol" | "nexthdr")) => {
            if udp() == not {
                About::Other
            } else {
                About::All
            }
        }
        (_, None | Some("ip" | "ip6" | "ether" | "vlan" | "udp" | "th"), _) => About::Some,
        _ => About::Other,
    }
}

/// Whether a value, or an element of a set, passes a test.
fn any(value: &Value, test: &dyn Fn(&Value) -> bool) -> bool {
    let members = value.get("set").unwrap_or(value).as_array();
    // An element with a counter or a time stands below `elem`.
    let member = |value: &Value| value.pointer("/elem/val").map_or_else(|| test(value), test);
    members.map_or_else(|| member(value), |all| all.iter().any(member))
}

/// Whether a number, a range, or a set of them has the port.
fn covers(right: &Value, set: &dyn Fn(&str) -> Option<Value>) -> bool {
    if let Some(named) = right.as_str().and_then(|name| name.strip_prefix('@')).and_then(set) {
        return covers(&named, &|_| None);
    }
    let port = u64::from(ROCE_UDP_PORT);
    any(right, &|value| {
        let range = value.get("range").and_then(Value::as_array);
        let bound = |at: usize| range.and_then(|range| range.get(at)?.as_u64());
        value.as_u64() == Some(port)
            || bound(0).zip(bound(1)).is_some_and(|(from, to)| (from..=to).contains(&port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chain `inet t i` with one rule, as nft 1.0.6 prints it.
    fn with(expr: &str) -> Vec<(About, Verdict)> {
        let text = format!(
            r#"{{"nftables": [{{"metainfo": {{"version": "1.0.6"}}}}, {{"table": {{"family": "inet", "name": "t", "handle": 1}}}},
            {{"set": {{"family": "inet", "name": "s", "table": "t", "type": "inet_service", "elem": [53, 4791]}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "i", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "f", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}}},
            {{"rule": {{"family": "inet", "table": "t", "chain": "i", "handle": 3, "expr": [{expr}]}}}}]}}"#
        );
        let chains = chains(&text, &["ip"]).unwrap();
        assert_eq!(chains.len(), 1, "what is forwarded is not ours");
        assert!(chains[0].base && chains[0].policy == Verdict::Drop);
        assert_eq!(chains[0].shown_by, "nft list chain inet t i");
        chains[0].rules.clone()
    }

    fn udp_port(op: &str, right: &str) -> String {
        format!(
            r#"{{"match": {{"op": "{op}", "left": {{"payload": {{"protocol": "udp", "field": "dport"}}}}, "right": {right}}}}}"#
        )
    }

    #[test]
    fn the_port_is_found_in_numbers_ranges_and_sets() {
        let drop = |test: &str| {
            with(&format!(r#"{test}, {{"counter": {{"packets": 0, "bytes": 0}}}}, {{"drop": null}}"#))
        };
        for right in
            ["4791", r#"{"set": [53, {"range": [4000, 5000]}]}"#, r#"{"range": [1, 65535]}"#, r#""@s""#]
        {
            assert_eq!(drop(&udp_port("==", right)), [(About::Port, Verdict::Drop)], "{right}");
        }
        let from = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.0.0.1"}}"#;
        assert_eq!(drop(&format!("{from}, {}", udp_port("==", "4791"))), [(About::Port, Verdict::Drop)]);
        assert_eq!(drop(from), [(About::Some, Verdict::Drop)]);
        assert_eq!(drop(&udp_port("!=", "53")), [(About::Port, Verdict::Drop)]);
        for (op, right) in
            [("==", "53"), ("!=", "4791"), ("==", r#"{"range": [1, 4790]}"#), ("==", r#""@other""#)]
        {
            assert_eq!(drop(&udp_port(op, right)), [(About::Other, Verdict::Drop)], "{op} {right}");
        }
        let map = r#"{"vmap": {"key": {"payload": {"protocol": "udp", "field": "dport"}}, "data": {"set": [[53, {"accept": null}], [4791, {"drop": null}]]}}}"#;
        assert_eq!(with(map), [(About::Port, Verdict::Drop)]);
    }

    #[test]
    fn rules_for_other_packets_are_none() {
        let tcp = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 4791}}, {"drop": null}"#;
        assert_eq!(with(tcp), [(About::Other, Verdict::Drop)]);
        let lo = r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}, {"accept": null}"#;
        assert_eq!(with(lo), [(About::Some, Verdict::Accept)]);
        let udp = r#"{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}, {"accept": null}"#;
        assert_eq!(with(udp), [(About::All, Verdict::Accept)]);
        assert_eq!(
            with(r#"{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}"#),
            [(About::All, Verdict::Drop)]
        );
        assert_eq!(with(r#"{"jump": {"target": "x"}}"#), []);
    }

    #[test]
    fn tables_that_iptables_tells_are_left_to_it() {
        let text = r#"{"nftables": [{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}}]}"#;
        assert_eq!((chains(text, &["ip"]).unwrap().len(), chains(text, &[]).unwrap().len()), (0, 1));
        assert!(chains("no", &[]).is_none());
    }
}
