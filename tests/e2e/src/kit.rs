//! The recipes for CI and clusters, run as their readers would run them: each one's own text, by nobody.
//!
//! The tarball is one of the distribution under test. No container engine is needed: a pod's containers are a chroot
//! and a user of their own.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use yaml_rust2::{Yaml, YamlLoader};

use super::Bed;
use super::cli::ip;
use super::pyverbs::{NOBODY, has_nobody};
use crate::book::{Block, Kind, pages};
use crate::recipes::PAGE;
use ferroce_harness::dist::Dist;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;
use ferroce_harness::{netns, tree};

const LIMIT: Duration = Duration::from_secs(60);
/// A step that a workflow would have behind a recipe's own.
const STEP: &str = "ferroce run -- ibv_devices";
/// A line of its output.
const FOUND: &str = "fr0";

/// All recipes.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let kit = Kit::new(bed)?;
    checks.check("action.yml", kit.action(""));
    let sum = kit.checksum()?;
    checks.check("action.yml with a checksum", kit.action(&sum));
    checks.check("action.yml with a wrong checksum", kit.wrong_checksum(&sum));
    checks.check("install.sh refuses", kit.refusals());
    if bed.programs.find("curl").is_some() {
        checks.check("kit/gitlab.yml", kit.gitlab());
    } else {
        checks.skip("kit/gitlab.yml", "curl is not installed");
    }
    checks.check("the runner of .cargo/config.toml", kit.runner());
    if has_nobody() {
        checks.check("kit/kubernetes/deployment.yaml", kit.pods());
    } else {
        checks.skip("kit/kubernetes/deployment.yaml", "only root can run a container's user");
    }
    std::fs::remove_dir_all(&kit.folder)?;
    Ok(())
}

struct Kit<'a> {
    bed: &'a Bed,
    /// All of it, readable by anybody: the tarball, the action's files, and a folder of nobody's.
    folder: PathBuf,
    archive: PathBuf,
    home: PathBuf,
}

impl<'a> Kit<'a> {
    fn new(bed: &'a Bed) -> Result<Self> {
        netns::end_broker();
        let Dist { root: folder } = bed.dist.public_copy("ferroce-kit")?;
        let kit = Self { bed, archive: folder.join("ferroce.tar.gz"), home: folder.join("home"), folder };
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(&kit.archive).arg("-C").arg(&bed.dist.root);
        tar.args(["--transform", "s,^\\.,ferroce-0-x86_64-linux-gnu,", "."]);
        kit.run(tar, "tar")?;
        std::fs::create_dir(kit.folder.join("kit"))?;
        std::fs::copy(tree::root().join("kit/install.sh"), kit.folder.join("kit/install.sh"))?;
        std::fs::create_dir(&kit.home)?;
        if has_nobody() {
            chown(&kit.home, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(kit)
    }

    /// A shell of nobody's with a folder to work in, as a runner of jobs starts it: with `set -e` and a bare environment.
    fn shell(&self, script: &str, work: &Path, path: &[PathBuf]) -> Result<Command> {
        let mut command = Command::new(self.bed.programs.find("setpriv").context("setpriv is missing")?);
        command.arg("--no-new-privs");
        if has_nobody() {
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]).arg("--clear-groups");
        }
        let mut all = path.to_vec();
        for name in ["ibv_devices", "sh"] {
            all.extend(self.bed.programs.find(name).and_then(|program| Some(program.parent()?.to_owned())));
        }
        all.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        command.arg("--").args(["sh", "-euc", script]).current_dir(work).env_clear();
        command.env("PATH", std::env::join_paths(all)?).env("HOME", &self.home).env("LC_ALL", "C.UTF-8");
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        Ok(command)
    }

    fn run(&self, command: Command, name: &str) -> Result<Ended> {
        job::run(command, &self.bed.logs.path(&format!("kit {name}")), LIMIT)
    }

    fn good(&self, command: Command, name: &str) -> Result<String> {
        let ended = self.run(command, name)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// An empty folder of nobody's.
    fn work(&self, name: &str) -> Result<PathBuf> {
        let folder = self.home.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder)?;
        if has_nobody() {
            chown(&folder, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(folder)
    }

    fn checksum(&self) -> Result<String> {
        let mut command = Command::new("sha256sum");
        command.arg(&self.archive);
        let sum = self.good(command, "sha256sum")?;
        Ok(sum.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
    }

    /// The action's steps as a runner takes them, and a step that uses it.
    fn action(&self, sha256: &str) -> Result<()> {
        let work = self.work("action")?;
        let (path, outputs) = self.steps(&work, sha256)?;
        let folder = outputs.get("folder").context("no output `folder`")?;
        ensure!(Path::new(folder).join("bin/ferroce").is_file(), "{folder} has no bin/ferroce");
        let found = self.good(self.shell(STEP, &work, &path)?, "step behind the action")?;
        ensure!(found.contains(FOUND), "{found}");
        Ok(())
    }

    /// Runs the steps; the folders that they add to `PATH`, and the outputs.
    fn steps(&self, work: &Path, sha256: &str) -> Result<(Vec<PathBuf>, BTreeMap<String, String>)> {
        let action = load(&tree::root().join("action.yml"))?;
        let steps = action["runs"]["steps"].as_vec().context("no steps")?;
        let [outputs, added] = ["outputs", "path"].map(|name| work.join(name));
        let mut path = Vec::new();
        for step in steps {
            let script = step["run"].as_str().context("a step without `run`")?;
            ensure!(step["shell"].as_str() == Some("sh"), "a step for another shell");
            let mut shell = self.shell(script, work, &path)?;
            for (name, value) in step["env"].as_hash().into_iter().flatten() {
                let (name, value) = (text(name)?, text(value)?);
                shell.env(name, self.expression(&action, value, sha256)?);
            }
            shell.env("GITHUB_ACTION_PATH", &self.folder).env("RUNNER_TEMP", work);
            shell.env("GITHUB_OUTPUT", &outputs).env("GITHUB_PATH", &added);
            self.good(shell, "action")?;
            let lines = std::fs::read_to_string(&added).unwrap_or_default();
            path = lines.lines().map(PathBuf::from).collect();
        }
        let outputs = std::fs::read_to_string(outputs)?;
        let outputs = outputs.lines().filter_map(|line| line.split_once('='));
        Ok((path, outputs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }

    /// `${{ inputs.archive }}` and its like.
    fn expression(&self, action: &Yaml, value: &str, sha256: &str) -> Result<String> {
        let name = value.strip_prefix("${{ ").and_then(|rest| rest.strip_suffix(" }}"));
        Ok(match name.with_context(|| format!("{value} is no expression"))? {
            "inputs.archive" => self.archive.display().to_string(),
            "inputs.sha256" if sha256.is_empty() => text(&action["inputs"]["sha256"]["default"])?.to_owned(),
            "inputs.sha256" => sha256.to_owned(),
            "github.action_repository" => "example/ferroce".to_owned(),
            "github.action_ref" => "v0".to_owned(),
            other => bail!("the context has no {other}"),
        })
    }

    fn wrong_checksum(&self, sum: &str) -> Result<()> {
        let wrong = sum.chars().rev().collect::<String>();
        let error = self.steps(&self.work("wrong")?, &wrong).err().context("it was installed")?;
        ensure!(format!("{error:#}").contains(&format!("is {sum}, not")), "{error:#}");
        Ok(())
    }

    /// Arguments that install.sh cannot use, with a word of its message.
    fn refusals(&self) -> Result<()> {
        let work = self.work("refusals")?;
        std::fs::write(self.folder.join("no-archive"), "nothing of the kind")?;
        let script = self.folder.join("kit/install.sh").display().to_string();
        let (archive, folder) = (self.archive.display(), self.folder.display());
        for (args, word) in [
            (String::new(), "usage"),
            ("/nonexistent".to_owned(), "is no file"),
            (format!("{archive} ."), "exists already"),
            (format!("{folder}/no-archive there"), "cannot be unpacked"),
            ("file:///nonexistent.tar.gz there".to_owned(), "fetch"),
            ("http://127.0.0.1:9/ferroce.tar.gz there".to_owned(), "set SHA256"),
        ] {
            let ended = self.run(self.shell(&format!("{script} {args}"), &work, &[])?, "install.sh")?;
            let code = ended.status.and_then(|status| status.code());
            ensure!(code == Some(1) && ended.output.contains(word), "{}", ended.describe());
            ensure!(!work.join("there").exists(), "{args} left a folder behind");
        }
        Ok(())
    }

    fn gitlab(&self) -> Result<()> {
        let template = load(&tree::root().join("kit/gitlab.yml"))?;
        let lines = template[".ferroce"]["before_script"].as_vec().context("no before_script")?;
        let mut script = lines.iter().map(text).collect::<Result<Vec<_>>>()?;
        script.push(STEP);
        let mut shell = self.shell(&script.join("\n"), &self.work("gitlab")?, &[])?;
        shell.env("RDMA_TARBALL", format!("file://{}", self.archive.display()));
        let found = self.good(shell, "gitlab")?;
        ensure!(found.contains(FOUND), "{found}");
        Ok(())
    }

    /// A crate whose `.cargo/config.toml` is the book's. Cargo is the user's own, so this one does not run by nobody.
    fn runner(&self) -> Result<()> {
        const TEST: &str = "#[test] fn runs() {
            let output = std::process::Command::new(\"ibv_devices\").output().unwrap();
            assert!(String::from_utf8(output.stdout).unwrap().contains(\"fr0\"));
        }";
        let page = pages()?.into_iter().find(|page| page.path == PAGE).context("the page is gone")?;
        let toml = Kind::Other("toml".to_owned());
        let is_runner =
            |block: &Block| block.kind == toml && block.text.iter().any(|line| line.contains("runner"));
        let block = Block::all(&page.text).into_iter().find(is_runner).context("the page has no runner")?;
        let work = self.work("runner")?;
        for folder in ["src", ".cargo"] {
            std::fs::create_dir(work.join(folder))?;
        }
        std::fs::write(work.join(".cargo/config.toml"), block.text.join("\n"))?;
        std::fs::write(work.join("src/lib.rs"), TEST)?;
        let manifest = "[package]\nname = \"tried\"\nedition = \"2021\"\n[workspace]\n";
        std::fs::write(work.join("Cargo.toml"), manifest)?;
        let mut path = vec![self.folder.join("bin")];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut cargo = tree::cargo();
        cargo.args(["test", "--offline", "--quiet", "--lib"]).current_dir(&work);
        cargo.env("PATH", std::env::join_paths(path)?).env("CARGO_TARGET_DIR", work.join("target"));
        let said = self.good(cargo, "runner")?;
        netns::end_broker();
        ensure!(said.contains("1 passed"), "{said}");
        Ok(())
    }

    /// Two pods of the deployment on one wire: the init container of each, the program in one, a client in the other.
    fn pods(&self) -> Result<()> {
        let deployment = load(&tree::root().join("kit/kubernetes/deployment.yaml"))?;
        let pod = &deployment["spec"]["template"]["spec"];
        let uid = pod["securityContext"]["runAsUser"].as_i64().context("no user")?;
        let (init, server) = (&pod["initContainers"][0], &pod["containers"][0]);
        let mut environment = Vec::new();
        for variable in server["env"].as_vec().context("no variables")? {
            environment.push(format!("{}={}", text(&variable["name"])?, text(&variable["value"])?));
        }
        let root = self.folder.join("root");
        std::fs::create_dir(&root)?;
        let script = std::fs::read_to_string(tree::root().join("tests/e2e/src/kit/pods.sh"))?;
        let mut shell = Command::new("unshare");
        shell
            .args(["-m", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-euc", &script, "sh"])
            .arg(&root)
            .arg(&self.folder);
        shell.env("INIT", words(&init["command"])?).env("SERVER", words(&server["command"])?);
        shell.env("VARIABLES", environment.join(" ")).env("RUN_AS", uid.to_string());
        ip(self.bed, "link add pod0 type veth peer name pod1").context("no veth here")?;
        let said = self.good(shell, "pods");
        ip(self.bed, "link del pod0").ok();
        let said = said?;
        let pings = said.lines().filter(|line| line.starts_with("ping data")).count();
        ensure!(pings == 5, "{said}");
        Ok(())
    }
}

fn load(path: &Path) -> Result<Yaml> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let documents = YamlLoader::load_from_str(&text).with_context(|| path.display().to_string())?;
    documents.into_iter().next().with_context(|| format!("{} is empty", path.display()))
}

fn text(yaml: &Yaml) -> Result<&str> {
    yaml.as_str().with_context(|| format!("{yaml:?} is no text"))
}

/// A command as one line for a shell. No word of the recipes needs quotes.
fn words(command: &Yaml) -> Result<String> {
    let words = command.as_vec().context("no command")?.iter().map(text).collect::<Result<Vec<_>>>()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.-_".contains(c);
    ensure!(words.iter().all(|word| word.chars().all(plain)), "{words:?} need quotes");
    Ok(words.join(" "))
}
