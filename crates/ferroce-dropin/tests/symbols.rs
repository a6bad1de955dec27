//! The exported symbols, their versions and default flags are exactly those of `symbols.txt`.

use std::collections::BTreeSet;

use object::elf;
use object::read::elf::{ElfFile64, Sym as _};

mod support;
#[path = "../table.rs"]
mod table;

/// The lines of `symbols.txt`: `symbol@version kind type`.
fn wanted() -> BTreeSet<String> {
    include_str!("../symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            format!("{} {} {}", fields[0], fields[2], fields[3])
        })
        .collect()
}

#[test]
fn the_library_exports_what_both_releases_export() {
    let bytes = std::fs::read(support::library()).expect("the library was built");
    let file: ElfFile64<'_> = ElfFile64::parse(&*bytes).expect("an ELF file");
    let endian = file.endian();
    let sections = file.elf_section_table();
    let versions = sections.versions(endian, &*bytes).expect("readable").expect("versions");
    let symbols = sections.symbols(endian, &*bytes, elf::SHT_DYNSYM).expect("dynamic symbols");

    let mut exported = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_bind() == elf::STB_LOCAL {
            continue;
        }
        let name = std::str::from_utf8(symbols.symbol_name(endian, symbol).expect("named")).expect("UTF-8");
        let number = versions.version_index(endian, index);
        let version = versions.version(number).ok().flatten();
        let version = version.unwrap_or_else(|| panic!("{name} is exported without a version"));
        let version = std::str::from_utf8(version.name()).expect("UTF-8");
        if symbol.st_shndx(endian) == elf::SHN_ABS {
            continue; // the node itself
        }
        let kind = if number.is_hidden() { "compat" } else { "default" };
        let class = if symbol.st_type() == elf::STT_OBJECT { "OBJECT" } else { "FUNC" };
        exported.insert(format!("{name}@{version} {kind} {class}"));
    }
    let wanted = wanted();
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let foreign: Vec<_> = exported.difference(&wanted).collect();
    assert!(
        missing.is_empty() && foreign.is_empty(),
        "missing {missing:#?}, not in symbols.txt {foreign:#?}"
    );
    assert!(exported.len() > 600);
}

#[test]
fn every_symbol_of_debian_12_and_of_release_65_is_listed() {
    let count = |release: &str| {
        include_str!("../symbols.txt")
            .lines()
            .filter(|line| {
                line.rsplit('\t').next().is_some_and(|releases| releases.split('+').any(|r| r == release))
            })
            .count()
    };
    assert_eq!(count("44"), 180 + 68 + 39);
    assert_eq!(count("65"), 220 + 74 + 42);
}

#[test]
fn a_refusal_gives_its_reason_and_nothing_else_does() {
    for export in table::exports() {
        let refuses = matches!(export.module, "refused" | "data");
        assert_eq!(export.reason.is_some(), refuses, "{}@{}", export.name, export.node);
    }
}

/// Exports that no rule can fail: calls that return nothing, a constant or a text, and what frees lists.
const CANNOT_FAIL: &[&str] = &[
    "ack_async_event",
    "ack_cq_events",
    "dofork_range",
    "dontfork_range",
    "event_type_str",
    "fork_init",
    "free_buf",
    "free_device_list",
    "get_device_guid",
    "get_device_index",
    "get_device_name",
    "get_sysfs_path",
    "is_fork_initialized",
    "node_type_str",
    "port_state_str",
    "qp_to_qp_ex",
    "query_qp_data_in_order",
    "rate_to_mbps",
    "rate_to_mult",
    "unimport_dm",
    "unimport_mr",
    "unimport_pd",
    "wc_status_str",
    "wr_opcode_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
    "destroy_ep",
    "destroy_event_channel",
    "destroy_qp",
    "destroy_srq",
    "event_str",
    "free_devices",
    "freeaddrinfo",
    "get_dst_port",
    "get_src_port",
];

/// Exports that share the word of another one.
const SHARED: &[(&str, &str)] = &[
    ("create_ah_from_wc", "create_ah"),
    ("query_gid_ex", "query_gid"),
    ("query_gid_type", "query_gid"),
    ("set_err_comp_cntr", "set_comp_cntr"),
    ("inc_err_comp_cntr", "inc_comp_cntr"),
    ("read_err_comp_cntr", "read_comp_cntr"),
    ("reg_buf_mr", "reg_mr"),
    ("reg_dmabuf_mr", "reg_mr"),
    ("reg_mr_ex", "reg_mr"),
    ("reg_mr_iova", "reg_mr"),
    ("reg_mr_iova2", "reg_mr"),
    ("create_qp_ex", "create_qp"),
    ("create_srq_ex", "create_srq"),
    ("join_multicast_ex", "join_multicast"),
    ("reject_ece", "reject"),
];

#[test]
fn a_rule_can_fail_each_exported_verb() {
    let page = include_str!("../../../docs/book/src/faults.md");
    let (_, list) = page.split_once("| `verb=WORD` | ").expect("the page lists the words");
    let list = list.lines().next().expect("a row");
    let words: Vec<&str> = list.split(['`', ',', ' ']).collect();
    for export in table::exports() {
        if matches!(export.module, "refused" | "data" | "rsocket" | "umad") {
            continue;
        }
        let name = export.name.trim_start_matches('_');
        let name = name.strip_prefix("ibv_").or_else(|| name.strip_prefix("rdma_")).unwrap_or(name);
        let word = SHARED.iter().find(|(shared, _)| *shared == name).map_or(name, |(_, word)| word);
        assert!(
            words.contains(&word) || CANNOT_FAIL.contains(&name),
            "no rule can fail {}: it needs a word",
            export.name
        );
    }
}

#[test]
fn the_table_of_verbs_in_the_book_is_current() {
    const BEGIN: &str = "<!-- made from the export tables -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/verbs.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let (front, table) = page.split_once(BEGIN).expect("the page has a place for the table");
    let fresh = table::markdown();
    if std::env::var_os("FERROCE_BLESS").is_some() {
        std::fs::write(path, format!("{front}{BEGIN}{fresh}")).expect("the source is writable");
        return;
    }
    assert!(table == fresh, "docs/book/src/verbs.md is stale: run this test once with FERROCE_BLESS=1");
}
