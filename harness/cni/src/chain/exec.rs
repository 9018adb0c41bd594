//! The exec protocol seen from the runtime.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command as Process, Stdio},
};

use crate::{
    plugins,
    types::{CniError, CniResult, Command, Invocation},
};

/// Finds a plugin in `CNI_PATH`.
pub(super) fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf, CniError> {
    if kind.is_empty() || kind.contains('/') {
        return Err(CniError::new(CniError::CONFIG, format!("invalid plugin name: {kind:?}")));
    }
    let found = path.iter().map(|dir| dir.join(kind)).find(|p| p.is_file());
    found.ok_or_else(|| {
        let dirs = path.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ");
        CniError::other(format!("failed to find plugin \"{kind}\" in path [{dirs}]"))
    })
}

/// Whether a program is this very binary under the name of a bundled plugin.
pub(super) fn is_bundled(kind: &str, program: &Path) -> bool {
    let same = || {
        use std::os::unix::fs::MetadataExt;
        let (a, b) = (std::fs::metadata(program).ok()?, std::fs::metadata("/proc/self/exe").ok()?);
        Some(a.dev() == b.dev() && a.ino() == b.ino())
    };
    plugins::NAMES.contains(&kind) && same() == Some(true)
}

/// Runs a plugin executable. Blocking; the plugin's own time limit is the caller's business.
pub(super) fn run(program: &Path, i: &Invocation) -> Result<Option<CniResult>, CniError> {
    let io = |what: &str, e: std::io::Error| CniError::new(CniError::IO, format!("{what} {}: {e}", program.display()));
    let path = i.path.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(":");
    let mut child = Process::new(program)
        .env("CNI_COMMAND", i.command.as_str())
        .env("CNI_CONTAINERID", &i.container_id)
        .env("CNI_NETNS", i.netns.as_deref().unwrap_or_else(|| Path::new("")))
        .env("CNI_IFNAME", &i.ifname)
        .env("CNI_ARGS", &i.args)
        .env("CNI_PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io("run", e))?;
    let config = serde_json::to_vec(&i.config).map_err(|e| CniError::new(CniError::DECODE, e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin may answer without reading its input; what it says then counts.
        let _ = stdin.write_all(&config);
    }
    let output = child.wait_with_output().map_err(|e| io("wait for", e))?;
    if output.status.success() {
        if i.command != Command::Add {
            return Ok(None);
        }
        let result = serde_json::from_slice(&output.stdout);
        return result.map(Some).map_err(|e| CniError::new(CniError::DECODE, format!("unmarshal result: {e}")));
    }
    if let Ok(error) = serde_json::from_slice::<CniError>(&output.stdout) {
        return Err(error);
    }
    let said = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout })
        .trim()
        .to_owned();
    Err(CniError::other(match said.is_empty() {
        true => format!("netplugin failed with no error message: {}", output.status),
        false => format!("netplugin failed: {:?}", said.chars().take(1000).collect::<String>()),
    }))
}
