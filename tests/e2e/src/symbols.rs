//! The export table of the drop-in library against that of the real ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// The libraries that our one file stands for.
const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"];
/// Private nodes of other rdma-core releases that we may export as well; not in the table.
const EXTRA_NODES: [&str; 3] = ["IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

/// The properties of one `name@VERSION`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Export {
    default: bool,
    kind: String,
}

type Exports = BTreeMap<String, Export>;

/// Checks names, versions, default flags and types.
pub fn check(checks: &mut Checks, library: &Path) -> Result<()> {
    let want = wanted(&std::fs::read_to_string(tree::reference("symbols.txt"))?);
    ensure!(want.len() > 300, "the table holds only {} symbols", want.len());
    let have = exported(library)?;
    let problems = compare(&want, &have);
    if problems.is_empty() {
        checks.note(format!("{} exports, each with its version and default flag", have.len()));
        checks.pass();
    } else {
        checks.fail("symbols", &problems.join("\n"));
    }
    Ok(())
}

fn wanted(table: &str) -> Exports {
    let mut exports = Exports::new();
    for line in table.lines().filter(|l| !l.starts_with('#')) {
        let mut columns = line.split('\t');
        let (Some(symbol), Some(library), Some(flag), Some(kind)) =
            (columns.next(), columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        if LIBRARIES.contains(&library) {
            let export = Export { default: flag == "default", kind: kind.to_owned() };
            exports.insert(symbol.to_owned(), export);
        }
    }
    // One name has one default version. The table tells each release's own: where both have private
    // nodes, the older (Debian 12's) stays the default.
    let both: Vec<String> = exports
        .keys()
        .filter_map(|s| s.strip_suffix("@IBVERBS_PRIVATE_34"))
        .map(|name| format!("{name}@IBVERBS_PRIVATE_65"))
        .collect();
    for symbol in both {
        // Its one private variable is listed as a function for release 65.
        let kind = exports[&symbol.replace("_65", "_34")].kind.clone();
        if let Some(export) = exports.get_mut(&symbol) {
            *export = Export { default: false, kind };
        }
    }
    exports
}

/// The defined dynamic symbols, by readelf; a symbol without a version has an empty one.
fn exported(library: &Path) -> Result<Exports> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(library)
        .env("LC_ALL", "C")
        .output()
        .context("readelf (Debian: binutils)")?;
    ensure!(output.status.success(), "readelf: {}", String::from_utf8_lossy(&output.stderr));
    Ok(parse_readelf(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_readelf(text: &str) -> Exports {
    let mut exports = Exports::new();
    for line in text.lines() {
        // Num: Value Size Type Bind Vis Ndx Name[@VERSION | @@VERSION]
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [number, _, _, kind, bind, _, section, name, ..] = columns.as_slice() else { continue };
        // The nodes themselves are absolute symbols (ABS); undefined ones are what we import.
        if !number.ends_with(':') || matches!(*section, "UND" | "ABS" | "Ndx") || *bind == "LOCAL" {
            continue;
        }
        let (name, version, default) = match name.split_once('@') {
            None => (*name, "", false),
            Some((name, version)) => match version.strip_prefix('@') {
                Some(version) => (name, version, true),
                None => (name, version, false),
            },
        };
        exports.insert(format!("{name}@{version}"), Export { default, kind: (*kind).to_owned() });
    }
    exports
}

fn compare(want: &Exports, have: &Exports) -> Vec<String> {
    let mut problems = Vec::new();
    for (symbol, export) in want {
        match have.get(symbol) {
            None => problems.push(format!("missing: {symbol}")),
            Some(got) if got != export => problems.push(format!("{symbol}: {got:?}, wanted {export:?}")),
            Some(_) => {}
        }
    }
    for symbol in have.keys().filter(|s| !want.contains_key(*s)) {
        match symbol.split_once('@') {
            Some((name, "")) => problems.push(format!("without a version: {name}")),
            Some((_, node)) if EXTRA_NODES.contains(&node) => {}
            _ => problems.push(format!("not in the real libraries: {symbol}")),
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# x\nibv_a@IBVERBS_1.1\tlibibverbs.so.1\tdefault\tFUNC\t44\tq\n\
        ibv_a@IBVERBS_1.0\tlibibverbs.so.1\tcompat\tFUNC\t44\t-\n\
        ibv_p@IBVERBS_PRIVATE_34\tlibibverbs.so.1\tdefault\tFUNC\t44\t-\n\
        ibv_p@IBVERBS_PRIVATE_65\tlibibverbs.so.1\tdefault\tFUNC\t65\t-\n\
        mlx5dv@MLX5_1.0\tlibmlx5.so.1\tdefault\tFUNC\t44\t-\n";
    const READELF: &str = "
Symbol table '.dynsym' contains 9 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND read@GLIBC_2.2.5 (3)
     2: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.0
     3: 0000000000001000     5 FUNC    GLOBAL DEFAULT   12 ibv_a@@IBVERBS_1.1
     4: 0000000000001010     5 FUNC    GLOBAL DEFAULT   12 ibv_a@IBVERBS_1.0
     5: 0000000000001020     5 FUNC    GLOBAL DEFAULT   12 ibv_p@@IBVERBS_PRIVATE_34
     6: 0000000000001020     5 FUNC    GLOBAL DEFAULT   12 ibv_p@IBVERBS_PRIVATE_65
";

    #[test]
    fn an_equal_table_has_no_problems() {
        let want = wanted(TABLE);
        assert_eq!(want.len(), 4);
        assert_eq!(compare(&want, &parse_readelf(READELF)), Vec::<String>::new());
    }

    #[test]
    fn missing_wrong_unversioned_and_foreign_exports_are_named() {
        let text =
            READELF.replace("ibv_a@@IBVERBS_1.1", "ibv_a").replace("ibv_a@IBVERBS_1.0", "ibv_a@@IBVERBS_1.0")
                + "     7: 0000000000001020     5 FUNC    GLOBAL DEFAULT   12 rust_eh@@IBVERBS_1.1\n"
                + "     8: 0000000000001020     5 FUNC    GLOBAL DEFAULT   12 ibv_p@IBVERBS_PRIVATE_59\n";
        let problems = compare(&wanted(TABLE), &parse_readelf(&text)).join("\n");
        for part in
            ["missing: ibv_a@IBVERBS_1.1", "ibv_a@IBVERBS_1.0: ", "without a version: ibv_a", "rust_eh"]
        {
            assert!(problems.contains(part), "{part} in {problems}");
        }
        assert!(!problems.contains("PRIVATE_59"));
    }
}
