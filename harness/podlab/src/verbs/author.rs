//! `schema`, `new` and `explain`: for those who write scenarios.

use std::{io::Write, path::Path, process::ExitCode};

use anyhow::{Context, Result, bail};
use podlab_scenario::SCHEMA_FILE;

use super::e2e;
use crate::out::say;

/// What `new` writes after the line for editors. It passes as it is.
const TEMPLATE: &str = "apiVersion: podlab/v1
kind: Scenario
intent: A Pod that does nothing special becomes Ready and leaves nothing behind.
when:
- apply:
    yaml: |
      apiVersion: v1
      kind: Pod
      metadata: {name: a}
      spec:
        terminationGracePeriodSeconds: 1
        containers: [{name: c, image: \"registry.test/testimage:1\", command: [serve]}]
then:
- eventually: {match: {pod: a, condition: Ready}, within: 30s}
- delete: {pod: a}
- eventually: {match: {pod: a, gone: true}, within: 20s}
- leakFree: [ips, netns, sandboxes, links, cgroups]
";

pub(crate) fn schema(text: String) -> Result<ExitCode> {
    crate::out::whole(text.as_bytes()).context("print the schema")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn new(root: &Path, name: &str) -> Result<ExitCode> {
    let part = |p: &str| !p.is_empty() && p.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !name.contains('/') || !name.split('/').all(part) {
        bail!("{name:?} must be stage/name in a-z, 0-9 and '-', such as probes/slow-start");
    }
    let path = root.join(format!("{name}.yaml"));
    let dir = path.parent().unwrap_or(root);
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let up = "../".repeat(name.matches('/').count());
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("write {}", path.display()))?;
    file.write_all(format!("# yaml-language-server: $schema={up}{SCHEMA_FILE}\n{TEMPLATE}").as_bytes())?;
    let schema = root.join(SCHEMA_FILE);
    if !schema.exists() {
        // Without it the first line of the file completes nothing in an editor.
        std::fs::create_dir_all(schema.parent().unwrap_or(root))
            .and_then(|()| std::fs::write(&schema, podlab_scenario::schema()))
            .with_context(|| format!("write {}", schema.display()))?;
        say!("{}: for editors", schema.display());
    }
    say!("{}: play it with `podlab e2e {name}`", path.display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn explain(root: &Path, name: &str) -> Result<ExitCode> {
    let name = &e2e::name_of(root, name);
    let scenarios = e2e::read(root, name)?;
    if scenarios.is_empty() {
        bail!("no scenario in {} has {name:?} in its name", root.display());
    }
    let all: Vec<String> = scenarios.iter().map(|s| podlab_scenario::explain(&s.name, &s.scenario)).collect();
    crate::out::whole(all.join("\n").as_bytes()).context("print the explanation")?;
    Ok(ExitCode::SUCCESS)
}
