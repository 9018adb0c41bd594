//! From files to scenarios, with errors that point at line and column.

use std::{
    fs,
    path::{Path, PathBuf},
};

use podlab_fault::{At, Effect, Fault};

use crate::{Capability, Scenario, Step, Worlds};

/// Larger files are refused unread.
const MAX_BYTES: u64 = 256 << 10;

/// Why a scenario could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than any scenario.
    #[error("{0}: larger than 256 KiB; a scenario is one behaviour")]
    TooLarge(PathBuf),
    /// It is not a scenario. The text has line, column and the lines around.
    #[error("{path}: {text}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What is wrong and where.
        text: String,
    },
}

/// Reads one file.
///
/// # Errors
/// [`LoadError`].
pub fn load(path: &Path) -> Result<Scenario, LoadError> {
    let read = |source| LoadError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(read)?.len() > MAX_BYTES {
        return Err(LoadError::TooLarge(path.to_owned()));
    }
    parse(&fs::read_to_string(path).map_err(read)?, path)
}

/// Reads a scenario from text; `path` is for messages and for files it refers to.
///
/// # Errors
/// [`LoadError::Invalid`].
pub fn parse(text: &str, path: &Path) -> Result<Scenario, LoadError> {
    let invalid = |text: String| LoadError::Invalid { path: path.to_owned(), text };
    let scenario: Scenario = serde_saphyr::from_str(text).map_err(|e| invalid(e.to_string()))?;
    check(&scenario, path).map_err(invalid)?;
    Ok(scenario)
}

/// What the types cannot say.
fn check(scenario: &Scenario, path: &Path) -> Result<(), String> {
    if scenario.intent.trim().is_empty() {
        return Err("intent must say in one sentence what holds when the scenario passes".into());
    }
    if scenario.then.is_empty() {
        return Err("then must demand something; a scenario without an assertion cannot fail".into());
    }
    if !(1..=10).contains(&scenario.cluster.nodes) {
        return Err("cluster.nodes must be between 1 and 10".into());
    }
    scenario.faults.iter().try_for_each(|f| fault(f, scenario))?;
    if scenario.clock != Worlds::Virtual
        && let Some(f) = scenario.faults.iter().find(|f| only_virtual(f))
    {
        return Err(format!("fault {} needs `clock: virtual`: only there is a tap at that seam", f.id));
    }
    for (part, n, step) in scenario.steps() {
        let wrong = |text: &str| Err(format!("{part}[{n}]: {text}"));
        match step {
            Step::Apply(crate::Apply::File(file)) => {
                let full = path.parent().unwrap_or_else(|| Path::new(".")).join(file);
                if file.contains("..") || !full.is_file() {
                    return wrong(&format!("apply.file {file:?} is not a file beside the scenario"));
                }
            }
            Step::Delete(d) if d.pod.is_some() == d.claim.is_some() => {
                return wrong("delete needs exactly one of pod and claim");
            }
            Step::Logs(l) if l.contains.is_none() && l.equals.is_none() => {
                return wrong("logs needs contains or equals");
            }
            Step::Eventually(e) if is_empty(&e.what) => {
                return wrong("eventually.match demands nothing but the Pod's name");
            }
            Step::Holds(h) if is_empty(&h.what) => return wrong("holds.match demands nothing but the Pod's name"),
            Step::Elapsed(_) if scenario.clock != Worlds::Virtual => {
                return wrong("elapsed needs `clock: virtual`; on the real clock a duration says more of the machine");
            }
            Step::Elapsed(e) if e.is.is_none() && e.at_least.is_none() && e.at_most.is_none() => {
                return wrong("elapsed needs is, atLeast or atMost");
            }
            Step::Elapsed(e) if !is_one_thing(&e.from) || !is_one_thing(&e.to) => {
                return wrong("from and to of elapsed need exactly one of field, event, call and step");
            }
            Step::Events(e) => e.check().or_else(wrong)?,
            Step::Pause(p) if p.because.trim().is_empty() => return wrong("pause.because must give the reason"),
            _ => {}
        }
    }
    Ok(())
}

/// CNI verbs that go through a tap.
const CNI: [&str; 3] = ["ADD", "DEL", "STATUS"];
/// CRI methods that go through a tap: all that the node agent calls.
const CRI: [&str; 26] = [
    "Version",
    "Status",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "ContainerStatus",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ListContainerStats",
    "ListPodSandboxStats",
    "GetContainerEvents",
    "ImageStatus",
    "ListImages",
    "PullImage",
    "RemoveImage",
];
/// CSI methods that go through a tap: a driver's node service.
const CSI: [&str; 6] = [
    "NodeGetInfo",
    "NodeGetCapabilities",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
];

/// A fault that cannot fire, or of which nobody would notice that it did not, is an error.
fn fault(f: &Fault, scenario: &Scenario) -> Result<(), String> {
    let wrong = |text: String| Err(format!("faults.{}: {text}", f.id));
    if f.must.fired.is_none() {
        return wrong("must.fired has to say how often it fires; one that never does would go unnoticed".into());
    }
    if f.when.nth.contains(&0) {
        return wrong("when.nth counts from 1".into());
    }
    // The virtual world has taps at every call, and every capability.
    if scenario.clock == Worlds::Virtual {
        return Ok(());
    }
    let (seam, name, known, needs) = match &f.at {
        At::Cni(c) => ("cni", &c.command, &CNI[..], Capability::FaultCni),
        At::Cri(m) => ("cri", &m.method, &CRI[..], Capability::FaultCri),
        At::Csi(m) => ("csi", &m.method, &CSI[..], Capability::FaultCsi),
        At::Api(_) => return Ok(()),
    };
    if !known.contains(&name.as_str()) {
        return wrong(format!("at.{seam} has no {name:?}; it has {}", known.join(", ")));
    }
    if f.when.pod.is_some() && seam == "csi" {
        return wrong("a CSI call names a volume, not a Pod: leave when.pod out".into());
    }
    if !scenario.requires.contains(&needs) {
        return wrong(format!("requires must list fault.{seam}"));
    }
    Ok(())
}

/// Faults that have no tap among real processes.
fn only_virtual(f: &Fault) -> bool {
    matches!(f.at, At::Api(_)) || matches!(f.effect, Effect::CrashAt { .. })
}

fn is_one_thing(m: &crate::Moment) -> bool {
    [m.field.is_some(), m.event.is_some(), m.call.is_some(), m.step.is_some()].iter().filter(|b| **b).count() == 1
}

fn is_empty(m: &crate::Matcher) -> bool {
    *m == crate::Matcher { pod: m.pod.clone(), ..crate::Matcher::default() }
}

/// All scenario files below a folder with their names, sorted: `*.yaml`, without folders that begin with `_` or hold
/// schemas.
///
/// # Errors
/// [`LoadError::Read`] when the folder cannot be read.
pub fn discover(root: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let mut found = Vec::new();
    walk(root, root, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, PathBuf)>) -> Result<(), LoadError> {
    let read = |source| LoadError::Read { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('_') && name != "schema" {
                walk(root, &path, found)?;
            }
        } else if name.ends_with(".yaml")
            && let Ok(relative) = path.strip_prefix(root)
        {
            found.push((relative.with_extension("").display().to_string(), path));
        }
    }
    Ok(())
}
