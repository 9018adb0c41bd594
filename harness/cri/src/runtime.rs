//! What all RPCs share: the tables, the disk, the init, the events.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use podlab_clock::{Clock, Rng};
use podlab_timeline::{Lane, PodKey, Recorder};
use tokio::sync::{broadcast, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cgroup::Cgroups,
    config::BridgeConfig,
    error::Error,
    images::{Puller, Store},
    init::{Exit, InitClient},
    journal::{Journal, Kind},
    network::NetworkPlugin,
    state::{Container, Sandbox},
    streaming::Tokens,
    v1::{ContainerEventResponse, PodSandboxMetadata},
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The runtime behind both services.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) config: BridgeConfig,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) recorder: Recorder,
    pub(crate) cgroups: Cgroups,
    pub(crate) init: InitClient,
    pub(crate) images: Arc<Store>,
    pub(crate) puller: Puller,
    pub(crate) network: Arc<dyn NetworkPlugin>,
    pub(crate) sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    pub(crate) containers: Mutex<BTreeMap<String, Arc<Container>>>,
    /// Names in use → id.
    pub(crate) names: Mutex<BTreeMap<String, String>>,
    pub(crate) journal: Journal,
    pub(crate) events: broadcast::Sender<ContainerEventResponse>,
    /// Who waits for the end of an exec, by key.
    pub(crate) execs: Mutex<BTreeMap<String, oneshot::Sender<Exit>>>,
    pub(crate) tokens: Tokens,
    pub(crate) tasks: TaskTracker,
    pub(crate) bounding: crate::sys::caps::Caps,
    pub(crate) in_user_namespace: bool,
    pub(crate) pause: PathBuf,
    /// Ends the tasks that move output; what they have not moved stays where init keeps it.
    pub(crate) outputs_end: CancellationToken,
}

/// What the composition root gives a bridge.
#[derive(Debug, Clone)]
pub struct BridgeDeps {
    /// Time.
    pub clock: Clock,
    /// Ids.
    pub rng: Rng,
    /// Run log.
    pub recorder: Recorder,
    /// Pod network.
    pub network: Arc<dyn NetworkPlugin>,
}

impl Runtime {
    /// Opens the state below the configured directories. Nothing is adopted yet.
    ///
    /// # Errors
    /// Directories that cannot be made, an init that does not answer or is not our parent.
    pub fn open(config: BridgeConfig, deps: BridgeDeps) -> Result<Arc<Self>> {
        let BridgeDeps { clock, rng, recorder, network } = deps;
        for dir in [
            config.root.clone(),
            config.run.join("mnt"),
            config.run.join("img"),
            config.run.join("rw"),
            config.netns_dir.clone(),
        ] {
            fs::create_dir_all(&dir).map_err(Error::io(format!("make {}", dir.display())))?;
        }
        let init = InitClient::connect(&config.init_socket)?;
        if nix::unistd::getppid().as_raw() != init.pid() {
            return Err(Error::Invalid(format!("the bridge must be a child of its init (pid {})", init.pid())));
        }
        ensure_tmpfs(&config)?;
        for dir in ["pods", "containers", "io"] {
            let dir = config.run.join("rw").join(dir);
            fs::create_dir_all(&dir).map_err(Error::io(format!("make {}", dir.display())))?;
        }
        let pause = config.run.join("pause");
        write_pause(&pause).map_err(Error::io("write the pause program"))?;
        let cgroups = Cgroups::detect(config.cgroup_base.as_deref()).map_err(Error::io("find cgroups"))?;
        let images = Store::open(
            &config.root.join("images"),
            &config.content,
            config.shared_content,
            clock,
            rng.fork("images"),
        )?;
        let images = Arc::new(images);
        let recorder = if config.node_name.is_empty() { recorder } else { recorder.on_node(&config.node_name) };
        Ok(Arc::new(Self {
            puller: Puller::new(Arc::clone(&images), config.registries.clone(), clock),
            journal: Journal::open(&config.root.join("state.jsonl")).map_err(Error::io("open the runtime's state"))?,
            bounding: crate::sys::caps::Caps::bounding().map_err(Error::io("read the capability bounding set"))?,
            in_user_namespace: crate::sys::proc::in_user_namespace(),
            recorder: recorder.lane(Lane::Cri),
            tokens: Tokens::new(clock, rng.fork("tokens")),
            events: broadcast::Sender::new(4096),
            sandboxes: Mutex::default(),
            containers: Mutex::default(),
            names: Mutex::default(),
            execs: Mutex::default(),
            tasks: TaskTracker::new(),
            config,
            clock,
            rng,
            cgroups,
            init,
            images,
            network,
            pause,
            outputs_end: CancellationToken::new(),
        }))
    }

    /// Runs something that blocks where blocking is fine.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = Arc::clone(self);
        match self.tasks.spawn_blocking(move || f(&this)).await {
            Ok(result) => result,
            Err(e) => Err(Error::State(format!("internal error: {e}"))),
        }
    }

    /// Runs something in the background, to be waited for when the bridge ends.
    pub(crate) fn background(self: &Arc<Self>, f: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let this = Arc::clone(self);
        self.tasks.spawn_blocking(move || f(&this));
    }

    pub(crate) fn now_ns(&self) -> i64 {
        i64::try_from(self.clock.wall().as_nanosecond()).unwrap_or(0)
    }

    /// A fresh id.
    pub(crate) fn new_id(&self) -> String {
        (0..4).map(|_| format!("{:016x}", self.rng.next_u64())).collect()
    }

    /// A sandbox by id or unique prefix.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        find(&self.sandboxes.lock(), id)
            .ok_or_else(|| Error::NotFound(format!("an error occurred when try to find sandbox {id:?}: not found")))
    }

    /// A container by id or unique prefix.
    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>> {
        find(&self.containers.lock(), id)
            .ok_or_else(|| Error::NotFound(format!("an error occurred when try to find container {id:?}: not found")))
    }

    /// All containers of a sandbox.
    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        // Never a record's lock under the map's: one slow record would stop everybody.
        let all: Vec<_> = self.containers.lock().values().cloned().collect();
        all.into_iter().filter(|c| c.record.lock().sandbox_id == sandbox).collect()
    }

    /// Takes a name, or says who has it.
    pub(crate) fn reserve(&self, what: &str, name: &str, id: &str) -> Result<()> {
        let mut names = self.names.lock();
        if let Some(owner) = names.get(name).filter(|o| *o != id) {
            return Err(Error::State(format!(
                "failed to reserve {what} name {name:?}: name {name:?} is reserved for {owner:?}"
            )));
        }
        names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }

    /// Frees the names of an id.
    pub(crate) fn release(&self, id: &str) {
        self.names.lock().retain(|_, owner| owner != id);
    }

    pub(crate) fn save_sandbox(&self, sandbox: &Sandbox) -> Result<()> {
        let _saving = sandbox.saving.lock();
        let record = sandbox.record.lock().clone();
        self.journal.write(Kind::Sandbox, &record.id, &record).map_err(Error::io("write sandbox state"))
    }

    pub(crate) fn save_container(&self, container: &Container) -> Result<()> {
        let _saving = container.saving.lock();
        let record = container.record.lock().clone();
        self.journal.write(Kind::Container, &record.id, &record).map_err(Error::io("write container state"))
    }

    /// Tells init, in the background, that an exit was taken note of.
    pub(crate) fn acknowledge(self: &Arc<Self>, pid: i32, start: u64) {
        self.background(move |this| drop(this.init.acknowledge(pid, start)));
    }
}

/// The Pod a sandbox is for, as the run log names it.
pub(crate) fn pod_key(metadata: Option<&PodSandboxMetadata>) -> Option<PodKey> {
    metadata.map(|m| PodKey { namespace: m.namespace.clone(), name: m.name.clone(), uid: m.uid.clone() })
}

fn find<T>(all: &BTreeMap<String, Arc<T>>, id: &str) -> Option<Arc<T>> {
    if id.is_empty() {
        return None;
    }
    if let Some(exact) = all.get(id) {
        return Some(Arc::clone(exact));
    }
    let mut matching = all.range(id.to_owned()..).take_while(|(k, _)| k.starts_with(id));
    match (matching.next(), matching.next()) {
        (Some((_, one)), None) => Some(Arc::clone(one)),
        _ => None,
    }
}

/// Writable layers, spools and shared memory belong on a tmpfs.
fn ensure_tmpfs(config: &BridgeConfig) -> Result<()> {
    let rw = config.run.join("rw");
    let is_tmpfs =
        |p: &Path| nix::sys::statfs::statfs(p).is_ok_and(|s| s.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
    if !config.upper_on_tmpfs || is_tmpfs(&rw) {
        return Ok(());
    }
    crate::sys::mount::mount_fs("tmpfs", "podlab-rw", &rw, libc::MS_NOSUID | libc::MS_NODEV, "mode=0711")
        .map_err(Error::io("mount a tmpfs for writable layers"))
}

/// A static program that waits for ever. Its children are reaped by the kernel: SIGCHLD is ignored from before its exec.
fn write_pause(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    // pause(); again
    #[cfg(target_arch = "x86_64")]
    const CODE: &[u8] = &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    // ppoll(NULL, 0, NULL, NULL, 0); again
    #[cfg(target_arch = "aarch64")]
    const CODE: &[u8] = &[
        0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x80, 0xd2, 0x02, 0x00, 0x80, 0xd2, 0x03, 0x00, 0x80, 0xd2, 0x04, 0x00,
        0x80, 0xd2, 0x28, 0x09, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4, 0xf9, 0xff, 0xff, 0x17,
    ];
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let size = HEADERS + CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for (value, bytes) in [
        (2, 2),
        (u64::from(machine), 2),
        (1, 4),
        (BASE + HEADERS, 8),
        (64, 8),
        (0, 8),
        (0, 4),
        (64, 2),
        (56, 2),
        (1, 2),
        (64, 2),
        (0, 2),
        (0, 2),
    ] {
        elf.extend_from_slice(&value.to_le_bytes()[..bytes]);
    }
    // One segment: readable and executable, the whole file.
    for (value, bytes) in [(1, 4), (5, 4), (0, 8), (BASE, 8), (BASE, 8), (size, 8), (size, 8), (0x1000, 8)] {
        elf.extend_from_slice(&u64::to_le_bytes(value)[..bytes]);
    }
    elf.extend_from_slice(CODE);
    // By rename: a running pause keeps its old file.
    let temporary = path.with_extension("tmp");
    let _ = fs::remove_file(&temporary);
    let mut file = fs::File::options().create_new(true).write(true).mode(0o755).open(&temporary)?;
    io::Write::write_all(&mut file, &elf)?;
    drop(file);
    fs::rename(temporary, path)
}
