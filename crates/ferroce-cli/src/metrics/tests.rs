use super::*;
use crate::look::tests::look;

#[test]
fn devices_programs_and_connections_have_their_numbers() {
    let text = metrics(&look()).to_string();
    let program = "device=\"fr0\",port=\"1\",pid=\"18\",comm=\"ib_\\\"x\\\"\",slot=\"16\"";
    for line in [
        "ferroce_device_active{device=\"fr0\",port=\"1\",netdev=\"lo\",type=\"rxe\"} 1".to_owned(),
        "ferroce_device_sent_bytes_total{device=\"fr0\",port=\"1\"} 3".to_owned(),
        "# UNIT ferroce_device_sent_bytes bytes".to_owned(),
        format!("ferroce_program_rcvd_pkts_total{{{program}}} 14"),
        format!("ferroce_program_objects{{{program},kind=\"qp\"}} 3"),
        "ferroce_program_cpu_seconds_total{pid=\"18\",comm=\"ib_\\\"x\\\"\",slot=\"16\"} 1.25".to_owned(),
        "ferroce_broker_info{build=\"0.1.0\",pid=\"17\"} 1".to_owned(),
        "ferroce_programs 1".to_owned(),
        "ferroce_cm_tx_retries_total{message=\"req\"} 0".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}

/// Grafana shows nothing, and no error, where a query names a metric that does not exist.
#[test]
fn the_dashboard_names_only_metrics_that_exist() {
    let dashboard = include_str!("../../../../packaging/grafana.json");
    let json: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    assert!(json["panels"].as_array().is_some_and(|panels| panels.len() >= 4), "{json}");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named: Vec<&str> =
        dashboard.split(|c| !is_word(c)).filter(|word| word.starts_with("ferroce_")).collect();
    named.sort_unstable();
    named.dedup();
    let known = metrics(&look()).names();
    assert!(named.len() >= 6, "{named:?}");
    for name in named {
        assert!(known.iter().any(|known| known == name), "no metric is called {name}; there are {known:?}");
    }
}
