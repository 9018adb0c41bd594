//! The runtime side: loading a configuration list and running its plugins in order, by exec or linked in.
//! Source: containernetworking/cni libcni/{api,conf}.go.

mod exec;
mod list;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
};

use serde_json::Value;

use crate::types::{CniError, CniResult, Command, Invocation, NetConf, VERSIONS};
pub use list::{ConfList, LoadError};

/// How plugins are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By the spec's exec protocol, always.
    Exec,
    /// A bundled plugin is called in process when `CNI_PATH` holds our own program under its name; a foreign program of
    /// that name is still exec'ed.
    Linked,
}

static PROCESS_MODE: AtomicU8 = AtomicU8::new(0);

impl Mode {
    /// The mode delegated (IPAM) calls of this process use: `Exec` unless [`Mode::set_for_process`] said otherwise.
    pub fn of_process() -> Self {
        if PROCESS_MODE.load(Ordering::Relaxed) == 1 { Self::Linked } else { Self::Exec }
    }

    /// Sets the mode of delegated calls; the composition root does so once, before anything runs.
    pub fn set_for_process(self) {
        PROCESS_MODE.store(u8::from(self == Self::Linked), Ordering::Relaxed);
    }
}

/// One attachment: which container, which interface, with which arguments.
#[derive(Debug, Clone, Default)]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`; `None` on DEL when it is gone.
    pub netns: Option<PathBuf>,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`, in order.
    pub args: Vec<(String, String)>,
    /// Capability arguments the runtime offers; each plugin gets those it declares.
    pub capabilities: serde_json::Map<String, Value>,
}

/// Runs configuration lists.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// Where results are cached between ADD and DEL (`/var/lib/cni/results` by convention).
    pub cache: PathBuf,
    /// Exec or linked.
    pub mode: Mode,
}

/// Runs one plugin by name on an invocation.
///
/// # Errors
/// The plugin's error, or one that says it could not be found or run.
pub fn invoke(kind: &str, invocation: &Invocation, mode: Mode) -> Result<Option<CniResult>, CniError> {
    let program = exec::find(kind, &invocation.path)?;
    if mode == Mode::Linked && exec::is_bundled(kind, &program) {
        return crate::skel::call(kind, invocation);
    }
    exec::run(&program, invocation)
}

impl Runtime {
    /// Attaches a container: plugins in order, each given the result of the one before. Blocking.
    ///
    /// # Errors
    /// The first plugin's error, as `plugin type="…" failed (add): …`. The caller must DEL.
    pub fn add(&self, list: &ConfList, attachment: &Attachment) -> Result<CniResult, CniError> {
        let mut previous = None;
        for plugin in &list.plugins {
            let invocation = self.invocation(Command::Add, list, plugin, attachment, previous.take());
            previous = self.run(plugin, &invocation, "add")?;
        }
        let result = previous.ok_or_else(|| CniError::new(CniError::CONFIG, "no plugin gave a result"))?;
        self.store(list, attachment, &result)?;
        Ok(result)
    }

    /// Detaches a container: plugins in reverse, each given the cached result. Blocking, idempotent.
    ///
    /// # Errors
    /// The first plugin's error; the rest is not run.
    pub fn del(&self, list: &ConfList, attachment: &Attachment) -> Result<(), CniError> {
        let (cached, merged) = self.cached(list, attachment);
        for plugin in list.plugins.iter().rev() {
            let invocation = self.invocation(Command::Del, list, plugin, &merged, cached.clone());
            self.run(plugin, &invocation, "delete")?;
        }
        let _ = fs::remove_file(self.cache_file(list, attachment));
        Ok(())
    }

    /// Verifies an attachment against its cached result. Blocking.
    ///
    /// # Errors
    /// What the first plugin found wrong.
    pub fn check(&self, list: &ConfList, attachment: &Attachment) -> Result<(), CniError> {
        if list.disable_check {
            return Ok(());
        }
        let (cached, merged) = self.cached(list, attachment);
        for plugin in &list.plugins {
            let invocation = self.invocation(Command::Check, list, plugin, &merged, cached.clone());
            self.run(plugin, &invocation, "check")?;
        }
        Ok(())
    }

    /// Asks whether the network is ready to serve ADD. Lists older than 1.1.0 are always ready. Blocking.
    ///
    /// # Errors
    /// The first plugin that is not ready.
    pub fn status(&self, list: &ConfList) -> Result<(), CniError> {
        self.all(Command::Status, list, None)
    }

    /// Releases whatever belongs to no attachment of `valid` (container id, interface). Blocking.
    ///
    /// # Errors
    /// The first plugin's error.
    pub fn gc(&self, list: &ConfList, valid: &[(String, String)]) -> Result<(), CniError> {
        if list.disable_gc {
            return Ok(());
        }
        let entry = |(id, ifname): &(String, String)| serde_json::json!({"containerID": id, "ifname": ifname});
        self.all(Command::Gc, list, Some(valid.iter().map(entry).collect()))
    }

    fn all(&self, command: Command, list: &ConfList, valid: Option<Value>) -> Result<(), CniError> {
        if VERSIONS.iter().position(|v| *v == list.version) < Some(6) {
            return Ok(());
        }
        for plugin in &list.plugins {
            let mut invocation = self.invocation(command, list, plugin, &Attachment::default(), None);
            if let Some(valid) = &valid {
                for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
                    invocation.config.rest.insert(key.to_owned(), valid.clone());
                }
            }
            self.run(plugin, &invocation, &command.as_str().to_lowercase())?;
        }
        Ok(())
    }

    fn run(&self, plugin: &NetConf, invocation: &Invocation, verb: &str) -> Result<Option<CniResult>, CniError> {
        invoke(&plugin.kind, invocation, self.mode).map_err(|mut e| {
            e.msg = format!("plugin type=\"{}\" failed ({verb}): {}", plugin.kind, e.msg);
            e
        })
    }

    fn invocation(
        &self,
        command: Command,
        list: &ConfList,
        plugin: &NetConf,
        attachment: &Attachment,
        previous: Option<CniResult>,
    ) -> Invocation {
        let mut config = plugin.clone();
        config.cni_version.clone_from(&list.version);
        config.name.clone_from(&list.name);
        config.prev_result = previous;
        let declared = config.rest.remove("capabilities");
        let declares = |key: &str| declared.as_ref().and_then(|d| d.get(key)).and_then(Value::as_bool) == Some(true);
        let offered = attachment.capabilities.iter().filter(|(key, _)| declares(key));
        config.runtime_config.extend(offered.map(|(k, v)| (k.clone(), v.clone())));
        let args: Vec<String> = attachment.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
        Invocation {
            command,
            container_id: attachment.container_id.clone(),
            netns: attachment.netns.clone(),
            ifname: attachment.ifname.clone(),
            args: args.join(";"),
            path: self.path.clone(),
            config,
        }
    }

    fn cache_file(&self, list: &ConfList, a: &Attachment) -> PathBuf {
        self.cache.join(format!("{}-{}-{}", list.name, a.container_id, a.ifname))
    }

    /// Keeps the result, and what DEL needs to be called the same way, in libcni's own format.
    fn store(&self, list: &ConfList, a: &Attachment, result: &CniResult) -> Result<(), CniError> {
        let record = serde_json::json!({
            "kind": "cniCacheV1", "containerId": a.container_id, "networkName": list.name, "ifName": a.ifname,
            "cniArgs": a.args, "capabilityArgs": a.capabilities, "result": result,
        });
        let write =
            fs::create_dir_all(&self.cache).and_then(|()| fs::write(self.cache_file(list, a), record.to_string()));
        write.map_err(|e| CniError::new(CniError::IO, format!("cache result: {e}")))
    }

    /// The cached result, and the attachment completed by what ADD was called with.
    fn cached(&self, list: &ConfList, a: &Attachment) -> (Option<CniResult>, Attachment) {
        let mut merged = a.clone();
        let read = |path: &Path| serde_json::from_str::<Value>(&fs::read_to_string(path).ok()?).ok();
        let Some(record) = read(&self.cache_file(list, a)) else { return (None, merged) };
        if let (true, Some(caps)) =
            (merged.capabilities.is_empty(), record.get("capabilityArgs").and_then(Value::as_object))
        {
            merged.capabilities = caps.clone();
        }
        if let (true, Some(args)) = (merged.args.is_empty(), record.get("cniArgs")) {
            merged.args = serde_json::from_value(args.clone()).unwrap_or_default();
        }
        let result = record.get("result").and_then(|r| serde_json::from_value(r.clone()).ok());
        (result, merged)
    }
}
