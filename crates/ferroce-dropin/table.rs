// The export tables as data: the same files that src/lib.rs turns into trampolines. Included by path from the tests
// here and from xtask, since nothing can depend on a cdylib.

/// One exported symbol.
pub struct Export {
    /// `default` or `compat`.
    pub kind: &'static str,
    /// The symbol without its version.
    pub name: &'static str,
    /// The version node.
    pub node: &'static str,
    /// The module of `ferroce-capi` behind it; `refused` if it only refuses.
    pub module: &'static str,
    /// Why it refuses; `None` if it does what its man page says.
    pub reason: Option<&'static str>,
}

macro_rules! exports {
    ($($kind:ident $name:literal $node:literal = $module:ident :: $function:ident $(, $reason:literal)? ;)*) => {
        pub const TABLE: &[super::Export] = &[$(super::Export {
            kind: stringify!($kind),
            name: $name,
            node: $node,
            module: stringify!($module),
            reason: [$(Some($reason),)? None][0],
        },)*];
    };
}

mod verbs {
    include!("src/exports/verbs.rs");
}
mod provider {
    include!("src/exports/provider.rs");
}
mod rdmacm {
    include!("src/exports/rdmacm.rs");
}
mod umad {
    include!("src/exports/umad.rs");
}

/// Every export of the three libraries.
pub fn exports() -> impl Iterator<Item = &'static Export> {
    [verbs::TABLE, provider::TABLE, rdmacm::TABLE, umad::TABLE].into_iter().flatten()
}

/// The table of verbs done and refused, for the book: one line a public function (the provider interface is one).
pub fn markdown() -> String {
    let mut lines: Vec<(&str, &str, &str, &str)> = Vec::new();
    for (library, table) in
        [("libibverbs", verbs::TABLE), ("librdmacm", rdmacm::TABLE), ("libibumad", umad::TABLE)]
    {
        for export in table.iter().filter(|export| export.kind == "default") {
            lines.push((library, export.name, export.node, export.reason.unwrap_or("done")));
        }
    }
    let done = lines.iter().filter(|line| line.3 == "done").count();
    let mut text = format!("{done} of {} public functions are implemented.\n\n", lines.len());
    text.push_str("| library | function | version | state |\n| --- | --- | --- | --- |\n");
    for (library, name, node, state) in lines {
        text.push_str(&format!("| {library} | `{name}` | {node} | {state} |\n"));
    }
    text
}
