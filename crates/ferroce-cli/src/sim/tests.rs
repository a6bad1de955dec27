use clap::CommandFactory;

use super::*;
use crate::args::Args;

const FILE: &str = "end = \"1s\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[link]]\nends = [\"a\", \"b\"]\nrate = \"10gbit\"\n\
                    loss = \"1%\"\n[[flow]]\nname = \"w\"\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nsize = \"8k\"\nmessages = 50\n";

fn scenario() -> Scenario {
    FILE.parse().unwrap()
}

#[test]
fn the_command_line_names_each_example() {
    let command = Args::command();
    let sim = command.find_subcommand("sim").unwrap();
    let option = sim.get_arguments().find(|argument| argument.get_id() == "print_example").unwrap();
    let names: Vec<String> =
        option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    assert_eq!(names, EXAMPLES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn seeds_come_in_order_and_each_as_it_is_alone() {
    let scenario = scenario();
    let mut outcomes = Vec::new();
    seeds(&scenario, 5, 12, |outcome| {
        outcomes.push(outcome);
        Ok(())
    })
    .unwrap();
    assert_eq!(outcomes.iter().map(|outcome| outcome.seed).collect::<Vec<_>>(), (5..17).collect::<Vec<_>>());
    assert_eq!(outcomes[3], scenario.run(8).unwrap());
    assert!(outcomes.windows(2).all(|pair| pair[0].digest != pair[1].digest));
}

#[test]
fn the_text_has_a_row_for_each_flow_link_and_rule() {
    let file =
        format!("{FILE}[[fault]]\nname = \"twice\"\ndo = \"dup\"\nif = {{ op = \"write\", nth = 3 }}\n");
    let outcome = file.parse::<Scenario>().unwrap().run(7).unwrap();
    let text = print::whole(&outcome, true);
    for words in [
        "seed 7 hash",
        " ok: 50 messages",
        "w         write",
        "  a to b",
        "a to b  10.0Gbit/s",
        "b to a",
        "network: twice",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains(&format!("{:016x}", outcome.digest)), "{text}");
}

#[test]
fn json_keys_are_stable() {
    let outcome = scenario().run(7).unwrap();
    let style = Style { json: true, pretty: false, details: true };
    let text = json::array(std::slice::from_ref(&outcome), style).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys = |at: &str| {
        let object = value.pointer(at).and_then(serde_json::Value::as_object);
        object.unwrap_or_else(|| panic!("{at}: {text}")).keys().cloned().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys("/0"), "flows goodput hash hosts jain links ok packets rules seed simulated stopped");
    assert_eq!(
        keys("/0/flows/0"),
        "cnps errors failures goodput jain latency messages name op pairs queue_pairs resent rnr timeouts"
    );
    assert_eq!(keys("/0/flows/0/latency"), "longest p50 p90 p99");
    assert_eq!(
        keys("/0/links/0"),
        "from longest_queue lost marked mean_queue octets overflowed packets rate to used"
    );
    assert_eq!(value.pointer("/0/hash").unwrap(), &format!("{:016x}", outcome.digest));
}

/// The trace and the capture have each packet, and the run is the same.
#[test]
fn a_run_is_traced_and_captured() {
    let folder = std::env::temp_dir().join(format!("ferroce-sim-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (trace, pcap) = (folder.join("trace"), folder.join("pcap"));
    let args = SimArgs {
        file: None,
        seed: None,
        seeds: None,
        trace: Some(trace.clone()),
        pcap: Some(pcap.clone()),
        print_example: None,
    };
    let outcome = watched(&scenario(), 7, &args).unwrap();
    assert_eq!(outcome, scenario().run(7).unwrap());
    let lines = fs::read_to_string(trace).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains(" sends ")).count() as u64, outcome.packets);
    // Each frame has 16 octets in front, and at least IPv4, UDP, BTH and ICRC.
    assert!(fs::metadata(pcap).unwrap().len() > 100 + outcome.packets * (32 + 20 + 8 + 12 + 4));
    let full = SimArgs { trace: Some("/dev/full".into()), ..args };
    assert!(watched(&scenario(), 7, &full).is_err());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_error_of_the_file_is_shown_with_its_line() {
    let path = std::env::temp_dir().join(format!("ferroce-sim-{}.toml", std::process::id()));
    fs::write(&path, FILE.replace("10gbit", "10g")).unwrap();
    let message = read(&path).unwrap_err();
    fs::remove_file(&path).unwrap();
    let rest = message.strip_prefix(&path.display().to_string()).unwrap();
    assert!(rest.starts_with(":8:8: a rate is a number with bit, kbit, mbit or gbit"), "{rest}");
    assert!(rest.ends_with("\n  rate = \"10g\"\n         ^"), "{rest}");
    assert!(read(&path).unwrap_err().contains("No such file"));
}

#[test]
fn failures_are_told_and_long_lists_are_cut() {
    let file =
        FILE.replace("loss = \"1%\"", "down = [\"0s..\"]").replace("messages", "queue_pairs = 9\nmessages");
    let outcome = file.parse::<Scenario>().unwrap().run(1).unwrap();
    let lines = print::failures(&outcome);
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[0].starts_with("flow w, a to b: ") && lines[5] == "and 4 more", "{lines:?}");
    assert!(!repeat(&outcome, Path::new("x")));
    assert!(print::summary(&outcome).contains(" FAILED: 0 messages"));
}
