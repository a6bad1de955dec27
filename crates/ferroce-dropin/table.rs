// The export tables as data, from the same files as the trampolines in src/lib.rs. The tests here and xtask include
// this file by path, since no crate can depend on a cdylib.

pub struct Export {
    /// `default` or `compat`.
    pub kind: &'static str,
    /// The symbol without its version.
    pub name: &'static str,
    pub node: &'static str,
    /// The module of `ferroce-capi` with its function; `refused` if the call always fails.
    pub module: &'static str,
    /// The reason of the refusal; `None` if the call is implemented.
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

pub fn exports() -> impl Iterator<Item = &'static Export> {
    [verbs::TABLE, provider::TABLE, rdmacm::TABLE, umad::TABLE].into_iter().flatten()
}

/// The table of implemented and refused verbs for the book: one line for each public function, and one for the provider
/// interface.
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
