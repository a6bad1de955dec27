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
    ($(
        $kind:ident $name:literal $($node:literal)+ = $module:ident :: $function:ident $(, $reason:literal)? ;
    )*) => {
        pub const TABLE: &[super::Export] = &[$(super::Export {
            kind: stringify!($kind),
            name: $name,
            node: concat!($($node),+),
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

/// The public functions for the book: those that fail by reason, then those that work by library and version.
pub fn markdown() -> String {
    let mut failing: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut working: Vec<(&str, Vec<&str>)> = Vec::new();
    for export in
        [verbs::TABLE, rdmacm::TABLE, umad::TABLE].into_iter().flatten().filter(|e| e.kind == "default")
    {
        let (groups, key) = match export.reason {
            Some(reason) => (&mut failing, reason),
            None => (&mut working, export.node),
        };
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => names.push(export.name),
            None => groups.push((key, vec![export.name])),
        }
    }
    let count = |groups: &[(&str, Vec<&str>)]| groups.iter().map(|(_, names)| names.len()).sum::<usize>();
    let (done, all) = (count(&working), count(&working) + count(&failing));
    let mut text = format!("{done} of {all} public functions are implemented. These are not:\n\n");
    let mut rows = |head: &str, groups: &[(&str, Vec<&str>)]| {
        text.push_str(&format!("| {head} | functions |\n|---|---|\n"));
        for (key, names) in groups {
            text.push_str(&format!("| {key} | `{}` |\n", names.join(", ")));
        }
    };
    rows("why", &failing);
    working.sort_by_key(|(node, _)| {
        let (library, version) = node.rsplit_once('.').unwrap_or((node, ""));
        (library, version.parse::<u32>().unwrap_or(0))
    });
    rows("version", &working);
    text.replace("|\n| version |", "|\n\nThese are, by the version of their symbol:\n\n| version |")
}
