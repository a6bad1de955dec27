//! The recipes for other people's CI and clusters, and the files of `.github`, held against the schemas that their readers publish.
//!
//! [`check`] needs the network, for two packages of PyPI that carry the schemas.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::book::{Block, Kind, pages};
use ferroce_harness::debian::{Program, Programs};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Each carries its schemas: those of GitHub, GitLab and Compose, and those of Kubernetes.
const PACKAGES: [&str; 2] = ["check-jsonschema==0.39.0", "kubernetes-validate==1.37.0"];
/// Debian has the module apart from Python, in a folder that is named after Python's version.
const PYTHON: &[Program] = &[
    Program { name: "python3", package: "python3" },
    Program { name: "/usr/lib/python3.11/ensurepip/__init__.py", package: "python3-venv" },
];
/// A file, and the name of its schema.
const JSON_SCHEMA: [(&str, &str); 9] = [
    (".github/workflows/ci.yml", "vendor.github-workflows"),
    (".github/workflows/daily.yml", "vendor.github-workflows"),
    (".github/dependabot.yml", "vendor.dependabot"),
    (".github/ISSUE_TEMPLATE/bug.yml", "vendor.github-issue-forms"),
    (".github/ISSUE_TEMPLATE/question.yml", "vendor.github-issue-forms"),
    (".github/ISSUE_TEMPLATE/config.yml", "vendor.github-issue-config"),
    ("action.yml", "vendor.github-actions"),
    ("kit/gitlab.yml", "vendor.gitlab-ci"),
    ("kit/container/compose.yaml", "vendor.compose-spec"),
];
const KUBERNETES: [&str; 2] = ["kit/kubernetes/deployment.yaml", "kit/kubernetes/rdma-requests.yaml"];
/// The page of the book with workflows, as whole files, that use the recipes.
pub const PAGE: &str = "docs/book/src/ci.md";

/// Validates every recipe and every workflow of the book.
pub fn check(checks: &mut Checks) -> Result<()> {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(why) => {
            checks.skip("schemas", &format!("{why:#}"));
            return Ok(());
        }
    };
    for (recipe, schema) in JSON_SCHEMA {
        checks.check(recipe, validate(&tools, schema, &tree::root().join(recipe)));
    }
    for recipe in KUBERNETES {
        let mut validator = Command::new(tools.join("kubernetes-validate"));
        validator.args(["--strict", "--quiet"]).arg(tree::root().join(recipe));
        checks.check(recipe, run(validator).map(|_| ()));
    }
    let workflows = workflows()?;
    ensure!(!workflows.is_empty(), "{PAGE} has no workflow");
    for (line, text) in workflows {
        let file = tree::target().join("xtask").join(format!("workflow-{line}.yml"));
        std::fs::write(&file, text)?;
        checks.check(&format!("{PAGE} line {line}"), validate(&tools, "vendor.github-workflows", &file));
    }
    Ok(())
}

fn validate(tools: &Path, schema: &str, file: &Path) -> Result<()> {
    let mut validator = Command::new(tools.join("check-jsonschema"));
    validator.args(["--builtin-schema", schema]).arg(file);
    run(validator).map(|_| ())
}

/// The whole workflows of GitHub in the book, each with its line.
fn workflows() -> Result<Vec<(usize, String)>> {
    let page = pages()?.into_iter().find(|page| page.path == PAGE).context("the page is gone")?;
    let blocks = Block::all(&page.text).into_iter();
    let yaml = blocks.filter(|block| block.kind == Kind::Other("yaml".to_owned()));
    let whole = yaml.filter(|block| block.text.iter().any(|line| line.starts_with("jobs:")));
    Ok(whole.map(|block| (block.line, block.text.join("\n") + "\n")).collect())
}

/// The folder of the validators' programs, installed once below `target`.
fn tools() -> Result<PathBuf> {
    let mut found = Command::new("python3");
    found.args(["-c", "import venv, ensurepip"]);
    if run(found).is_err() {
        Programs::ensure(&[PYTHON])?;
    }
    let home = tree::target().join("xtask/validators");
    let done = home.join("done");
    let wanted = PACKAGES.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(home.join("bin"));
    }
    if home.exists() {
        std::fs::remove_dir_all(&home)?;
    }
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(&home);
    run(venv).context("no virtual environment of Python can be made")?;
    let mut pip = Command::new(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(PACKAGES);
    run(pip).context("the validators are not to be had from PyPI")?;
    std::fs::write(done, wanted)?;
    Ok(home.join("bin"))
}

fn run(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim());
    Ok(said.into_owned())
}
