//! Reads the product code of a crate: its modules, which file uses which, and how long each file is.
//!
//! The reader works on tokens, so it also sees the paths inside macros. It leaves out tests (`#[cfg(test)]`,
//! `cfg(loom)`, the feature `fuzzing`). It follows re-exports: a use counts for the file that defines the
//! item, not for the file that passes it on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// How long a file is.
#[derive(Default)]
pub struct File {
    pub path: PathBuf,
    /// All lines: code, comments, inline tests.
    pub lines: usize,
    /// Lines with product code.
    pub code: usize,
    pub unsafe_blocks: usize,
}

/// A use of an item of another file of the same crate.
#[derive(Clone, Copy)]
pub struct Use {
    /// Index into `Sources::files`, and the line there.
    pub file: usize,
    pub line: usize,
    /// The modules on both sides, as indices into `Sources::modules`.
    pub user: usize,
    pub target: usize,
}

/// A module, in a file of its own or inline.
#[derive(Default)]
pub struct Module {
    /// Names from the crate's root, which has none.
    pub path: Vec<String>,
    /// Index into `Sources::files`.
    pub file: usize,
    parent: usize,
    children: BTreeMap<String, usize>,
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
}

/// The product code of one library or program.
#[derive(Default)]
pub struct Sources {
    pub files: Vec<File>,
    /// The first is the root.
    pub modules: Vec<Module>,
    pub uses: Vec<Use>,
    mentions: Vec<Mention>,
}

/// A path as it is written, before it is resolved.
struct Mention {
    module: usize,
    file: usize,
    path: Vec<String>,
    line: usize,
    public: bool,
}

enum Target {
    Module(usize),
    Item(usize),
}

impl Sources {
    /// Reads the crate whose root file is `file`; its files' paths are those from `workspace` on.
    pub fn read(workspace: &Path, file: &str) -> Result<Self> {
        let file = Path::new(file);
        let file = file.strip_prefix(workspace).unwrap_or(file);
        Self::read_by(file, &|path| Ok(std::fs::read_to_string(workspace.join(path))?))
    }

    fn read_by(root: &Path, read: Reader<'_>) -> Result<Self> {
        let mut sources = Self { modules: vec![Module::default()], ..Self::default() };
        sources.file(root, 0, root.parent().unwrap_or(Path::new("")), read)?;
        sources.resolve_all();
        Ok(sources)
    }

    /// Reads the file of `module`, whose child modules lie in `dir`.
    fn file(&mut self, path: &Path, module: usize, dir: &Path, read: Reader<'_>) -> Result<()> {
        let text = read(path).with_context(|| path.display().to_string())?;
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        let file = self.files.len();
        self.files.push(File { path: path.to_owned(), lines: text.lines().count(), ..File::default() });
        let mut walk = Walk { sources: self, file, path, read, code: BTreeSet::new() };
        walk.tokens(&tokens, &Scope { module, dir: dir.to_owned(), items: true })?;
        let code = walk.code.len();
        if let Some(file) = self.files.get_mut(file) {
            file.code = code;
        }
        Ok(())
    }

    fn resolve_all(&mut self) {
        let mut uses = Vec::new();
        for mention in &self.mentions {
            let Some(Target::Module(target) | Target::Item(target)) =
                self.resolve(mention.module, &mention.path, 0)
            else {
                continue;
            };
            let below = self.path(target).starts_with(self.path(mention.module));
            let same = self.file_of(target) == mention.file;
            if !(same || mention.public && below) {
                let Mention { module, file, line, .. } = *mention;
                uses.push(Use { file, line, user: module, target });
            }
        }
        self.uses = uses;
    }

    /// The module that a path written in `module` leads to, or that defines the item it leads to; None if it
    /// leaves the crate.
    fn resolve(&self, module: usize, path: &[String], depth: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut here = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules.get(module)?.parent,
            name => {
                let scope = self.modules.get(module)?;
                if !scope.children.contains_key(name) && !scope.imports.contains_key(name) {
                    return None;
                }
                rest = path;
                module
            }
        };
        while let Some((name, after)) = rest.split_first() {
            rest = after;
            let scope = self.modules.get(here)?;
            if name == "super" {
                here = scope.parent;
            } else if let Some(child) = scope.children.get(name) {
                here = *child;
            } else if let Some(import) = scope.imports.get(name).filter(|_| depth < 16) {
                match self.resolve(here, import, depth + 1)? {
                    Target::Module(module) => here = module,
                    item => return Some(item),
                }
            } else {
                return Some(Target::Item(self.through_globs(here, name, depth)));
            }
        }
        Some(Target::Module(here))
    }

    /// The module that defines `name`, if `module` passes it on by a glob; else `module`.
    fn through_globs(&self, module: usize, name: &str, depth: usize) -> usize {
        let Some(scope) = self.modules.get(module) else { return module };
        if scope.items.contains(name) || depth >= 16 {
            return module;
        }
        let globs = scope.globs.iter().filter_map(|glob| self.resolve(module, glob, depth + 1));
        let mut found = globs.filter_map(|target| match target {
            Target::Module(of) => Some(self.through_globs(of, name, depth + 1)),
            Target::Item(_) => None,
        });
        let defines = |of: &usize| self.modules.get(*of).is_some_and(|of| of.items.contains(name));
        found.find(defines).unwrap_or(module)
    }

    /// The names of a module from the root.
    pub fn path(&self, module: usize) -> &[String] {
        self.modules.get(module).map(|m| m.path.as_slice()).unwrap_or_default()
    }

    /// The top-level module that `module` belongs to; empty for the root.
    pub fn top(&self, module: usize) -> &str {
        self.path(module).first().map(String::as_str).unwrap_or_default()
    }

    /// The file that a module stands in, as an index.
    pub fn file_of(&self, module: usize) -> usize {
        self.modules.get(module).map(|m| m.file).unwrap_or_default()
    }

    /// `FILE:LINE` of each path that `is` accepts, as it is written there.
    pub fn mentioning(&self, is: impl Fn(&[String]) -> bool) -> Vec<String> {
        let found = self.mentions.iter().filter(|mention| is(&mention.path));
        found.map(|mention| self.at(mention.file, mention.line)).collect()
    }

    /// `FILE:LINE` of a use.
    pub fn place(&self, of: &Use) -> String {
        self.at(of.file, of.line)
    }

    fn at(&self, file: usize, line: usize) -> String {
        let file = self.files.get(file).map(|f| f.path.display().to_string());
        format!("{}:{line}", file.unwrap_or_default())
    }
}

type Reader<'a> = &'a dyn Fn(&Path) -> Result<String>;

/// Position of the reader: in which module, where that module's children lie, and whether items stand here.
struct Scope {
    module: usize,
    dir: PathBuf,
    items: bool,
}

/// Reads one file.
struct Walk<'a> {
    sources: &'a mut Sources,
    file: usize,
    path: &'a Path,
    read: Reader<'a>,
    code: BTreeSet<usize>,
}

impl Walk<'_> {
    fn tokens(&mut self, stream: &TokenStream, scope: &Scope) -> Result<()> {
        let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
        let mut rest = tokens.as_slice();
        let mut public = false;
        let mut given = Vec::new();
        let mut before_colons = false;
        while let Some((token, after)) = rest.split_first() {
            if let Some((attribute, inner, behind)) = attribute(rest) {
                rest = behind;
                match Attribute::of(attribute) {
                    Attribute::Test if inner => return Ok(()),
                    Attribute::Test => rest = without_item(rest),
                    Attribute::Doc => {}
                    Attribute::Path(path) => given.push(path),
                    Attribute::Other => self.lines(token, attribute),
                }
                continue;
            }
            let colons = std::mem::replace(&mut before_colons, false);
            rest = after;
            match token {
                TokenTree::Ident(name) => {
                    let line = name.span().start().line;
                    self.code.insert(line);
                    let name = name.to_string();
                    match (name.as_str(), after) {
                        ("pub", [TokenTree::Group(scope), behind @ ..])
                            if scope.delimiter() == Delimiter::Parenthesis =>
                        {
                            public = true;
                            rest = behind;
                            continue;
                        }
                        ("pub", _) => {
                            public = true;
                            continue;
                        }
                        ("use", _) => {
                            let end = after.iter().position(|t| is(t, ';')).unwrap_or(after.len());
                            let (tree, behind) = after.split_at(end);
                            self.span_lines(tree);
                            self.import(tree, &[], scope, public);
                            rest = behind;
                        }
                        ("mod", [TokenTree::Ident(child), TokenTree::Group(body), behind @ ..])
                            if body.delimiter() == Delimiter::Brace =>
                        {
                            let module = self.child(scope, &child.to_string(), self.file);
                            let dir = scope.dir.join(child.to_string());
                            self.edges(body);
                            self.tokens(&body.stream(), &Scope { module, dir, items: true })?;
                            rest = behind;
                        }
                        ("mod", [TokenTree::Ident(child), end, behind @ ..]) if is(end, ';') => {
                            self.load(scope, &child.to_string(), std::mem::take(&mut given))?;
                            rest = behind;
                        }
                        ("unsafe", [TokenTree::Group(body), ..]) if body.delimiter() == Delimiter::Brace => {
                            if let Some(file) = self.sources.files.get_mut(self.file) {
                                file.unsafe_blocks += 1;
                            }
                        }
                        ("include", [mark, TokenTree::Group(argument), ..]) if is(mark, '!') => {
                            self.include(argument, scope)?;
                        }
                        ("macro_rules", [mark, TokenTree::Ident(name), ..]) if is(mark, '!') => {
                            self.item(scope, &name.to_string());
                        }
                        (
                            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static",
                            [TokenTree::Ident(name), ..],
                        ) => self.item(scope, &name.to_string()),
                        _ => {
                            let (path, behind) = path_from(name, after);
                            let single = path.len() < 2;
                            if !single && !colons {
                                self.mention(scope, path, Some(line), false);
                            }
                            let used = after.len() - behind.len();
                            self.span_lines(after.get(..used).unwrap_or_default());
                            rest = behind;
                        }
                    }
                }
                TokenTree::Group(group) => {
                    self.edges(group);
                    let inside = Scope { module: scope.module, dir: scope.dir.clone(), items: false };
                    self.tokens(&group.stream(), &inside)?;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.span_lines(std::slice::from_ref(token));
                    before_colons = is(token, ':');
                }
            }
            public = false;
        }
        Ok(())
    }

    /// A module of this name, which stands in `file`.
    fn child(&mut self, scope: &Scope, name: &str, file: usize) -> usize {
        let id = self.sources.modules.len();
        let path = [self.sources.path(scope.module), &[name.to_owned()]].concat();
        let module = Module { path, file, parent: scope.module, ..Module::default() };
        self.sources.modules.push(module);
        if let Some(parent) = self.sources.modules.get_mut(scope.module) {
            parent.children.insert(name.to_owned(), id);
        }
        id
    }

    /// Reads the file of `mod name;`, or those that its attributes give, one for each platform.
    fn load(&mut self, scope: &Scope, name: &str, given: Vec<String>) -> Result<()> {
        let beside = self.path.parent().unwrap_or(Path::new(""));
        let flat = scope.dir.join(format!("{name}.rs"));
        let paths: Vec<PathBuf> = match given.as_slice() {
            [] if (self.read)(&flat).is_ok() => vec![flat],
            [] => vec![scope.dir.join(name).join("mod.rs")],
            given => given.iter().map(|path| beside.join(path)).collect(),
        };
        for path in paths {
            let dir = if given.is_empty() { scope.dir.join(name) } else { beside.to_owned() };
            let file = self.sources.files.len();
            let module = self.child(scope, name, file);
            self.sources.file(&path, module, &dir, self.read)?;
        }
        Ok(())
    }

    /// Reads the file that `include!("…")` names as a part of this module.
    fn include(&mut self, argument: &Group, scope: &Scope) -> Result<()> {
        let tokens: Vec<TokenTree> = argument.stream().into_iter().collect();
        let [TokenTree::Literal(name)] = tokens.as_slice() else { return Ok(()) };
        let name = name.to_string();
        let path = self.path.parent().unwrap_or(Path::new("")).join(name.trim_matches('"'));
        self.sources.file(&path, scope.module, &scope.dir, self.read)
    }

    fn item(&mut self, scope: &Scope, name: &str) {
        if let Some(module) = self.sources.modules.get_mut(scope.module).filter(|_| scope.items) {
            module.items.insert(name.to_owned());
        }
    }

    /// Reads a `use`, or a branch of it.
    fn import(&mut self, tree: &[TokenTree], prefix: &[String], scope: &Scope, public: bool) {
        for branch in tree.split(|token| is(token, ',')) {
            let mut path = prefix.to_vec();
            let mut alias = None;
            let mut line = None;
            let mut tokens = branch.iter();
            // An absolute path leaves the crate.
            if branch.first().is_some_and(|token| is(token, ':')) {
                continue;
            }
            while let Some(token) = tokens.next() {
                line = line.or(Some(token.span().start().line));
                match token {
                    TokenTree::Ident(name) if *name == "as" => alias = tokens.next().map(ToString::to_string),
                    TokenTree::Ident(name) if *name == "self" && !path.is_empty() => {}
                    TokenTree::Ident(name) => path.push(name.to_string()),
                    TokenTree::Group(inner) => {
                        let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
                        self.import(&inner, &path, scope, public);
                        path.clear();
                    }
                    star if is(star, '*') => {
                        self.mention(scope, path.clone(), line, public);
                        if let Some(module) = self.sources.modules.get_mut(scope.module) {
                            module.globs.push(std::mem::take(&mut path));
                        }
                    }
                    _ => {}
                }
            }
            let Some(last) = path.last() else { continue };
            let name = alias.unwrap_or_else(|| last.clone());
            self.mention(scope, path.clone(), line, public);
            if let Some(module) = self.sources.modules.get_mut(scope.module)
                && path.first() != Some(&name)
            {
                module.imports.insert(name, path);
            }
        }
    }

    fn mention(&mut self, scope: &Scope, path: Vec<String>, line: Option<usize>, public: bool) {
        let line = line.unwrap_or_default();
        self.sources.mentions.push(Mention { module: scope.module, file: self.file, path, line, public });
    }

    /// Counts the lines of these tokens as code.
    fn span_lines(&mut self, tokens: &[TokenTree]) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    self.edges(group);
                    self.span_lines(&group.stream().into_iter().collect::<Vec<_>>());
                }
                token => {
                    let span = token.span();
                    self.code.extend(span.start().line..=span.end().line);
                }
            }
        }
    }

    fn edges(&mut self, group: &Group) {
        self.code.extend([group.span_open().start().line, group.span_close().end().line]);
    }

    fn lines(&mut self, hash: &TokenTree, attribute: &Group) {
        self.span_lines(&[hash.clone(), TokenTree::Group(attribute.clone())]);
    }
}

fn is(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// The attribute that `tokens` begin with, whether it is an inner one, and what follows.
fn attribute(tokens: &[TokenTree]) -> Option<(&Group, bool, &[TokenTree])> {
    match tokens {
        [hash, TokenTree::Group(group), rest @ ..] if is(hash, '#') => Some((group, false, rest)),
        [hash, mark, TokenTree::Group(group), rest @ ..] if is(hash, '#') && is(mark, '!') => {
            Some((group, true, rest))
        }
        _ => None,
    }
    .filter(|(group, ..)| group.delimiter() == Delimiter::Bracket)
}

enum Attribute {
    /// The item that follows is compiled for tests alone.
    Test,
    Doc,
    Path(String),
    Other,
}

impl Attribute {
    fn of(group: &Group) -> Self {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        match tokens.as_slice() {
            [TokenTree::Ident(name)] if *name == "test" => Self::Test,
            [TokenTree::Ident(name), TokenTree::Group(of)] if *name == "cfg" => {
                let of: Vec<TokenTree> = of.stream().into_iter().collect();
                if possible(&of) { Self::Other } else { Self::Test }
            }
            [TokenTree::Ident(name), TokenTree::Group(of)] if *name == "cfg_attr" => {
                let of: Vec<TokenTree> = of.stream().into_iter().collect();
                path_of(of.rsplit(|token| is(token, ',')).next().unwrap_or_default())
            }
            of @ [TokenTree::Ident(name), ..] if *name == "path" => path_of(of),
            [TokenTree::Ident(name), ..] if *name == "doc" => Self::Doc,
            _ => Self::Other,
        }
    }
}

/// `path = "…"`.
fn path_of(tokens: &[TokenTree]) -> Attribute {
    match tokens {
        [TokenTree::Ident(name), _, TokenTree::Literal(value)] if *name == "path" => {
            Attribute::Path(value.to_string().trim_matches('"').to_owned())
        }
        _ => Attribute::Other,
    }
}

/// Whether a `cfg` can hold in a build that is no test.
fn possible(of: &[TokenTree]) -> bool {
    match of {
        [TokenTree::Ident(name), TokenTree::Group(inner)] => {
            let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
            let mut parts = inner.split(|token| is(token, ',')).filter(|part| !part.is_empty());
            match name.to_string().as_str() {
                "all" => parts.all(possible),
                "any" => parts.any(possible),
                _ => true,
            }
        }
        [TokenTree::Ident(name)] => *name != "test" && *name != "loom",
        [TokenTree::Ident(name), _, value] => *name != "feature" || value.to_string() != "\"fuzzing\"",
        _ => true,
    }
}

/// The tokens behind the item, field or statement at the start of `tokens`.
fn without_item(mut tokens: &[TokenTree]) -> &[TokenTree] {
    while let Some((_, _, rest)) = attribute(tokens) {
        tokens = rest;
    }
    let word = |token: &TokenTree| match token {
        TokenTree::Ident(name) => name.to_string(),
        _ => String::new(),
    };
    let mut words = tokens.iter().filter(|token| !matches!(token, TokenTree::Group(_))).map(word);
    let first = words.by_ref().find(|word| word != "pub").unwrap_or_default();
    let import = first == "use";
    let item = import
        || matches!(
            first.as_str(),
            "fn" | "const"
                | "unsafe"
                | "extern"
                | "async"
                | "impl"
                | "mod"
                | "struct"
                | "enum"
                | "trait"
                | "type"
                | "static"
        );
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !import,
        token => is(token, ';') || (!item && is(token, ',')),
    };
    let end = tokens.iter().position(ends).map_or(tokens.len(), |at| at + 1);
    tokens.get(end..).unwrap_or_default()
}

/// The path that begins with `first`, and what follows it.
fn path_from(first: String, mut rest: &[TokenTree]) -> (Vec<String>, &[TokenTree]) {
    let mut path = vec![first];
    while let [one, two, TokenTree::Ident(name), behind @ ..] = rest {
        if !is(one, ':') || !is(two, ':') {
            break;
        }
        path.push(name.to_string());
        rest = behind;
    }
    (path, rest)
}

#[cfg(test)]
mod tests;
