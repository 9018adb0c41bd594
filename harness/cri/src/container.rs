//! Containers: create, start, stop, remove, and what happens when one ends.

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    error::Error,
    init::{Exit, dup_high, pipe},
    launch::{self, Job, LaunchError, Namespaces, PidMode, Setup, Stdio},
    log::{LogSpec, pump},
    runtime::Runtime,
    sandbox::{hostname_of, is_node, namespace_options},
    spec,
    journal::Kind,
    state::{Container, ContainerPhase, ContainerRecord, SandboxRecord, spool_dir, upper_dir},
    v1::{self, ContainerConfig, ContainerEventType, NamespaceMode},
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Exit code of a container that could not be started. Source: containerd internal/cri/server/container_start.go.
const START_ERROR: i32 = 128;
/// What a child exits with that never got the word to go on, and the file beside its writable layer that says it got it.
const NOT_RELEASED: i32 = 127;
const STARTED: &str = "started";
/// How long output may follow the end of a container whose children hold its pipes.
const DRAIN: Duration = Duration::from_secs(2);
/// How long the kernel may take to end what was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(60);

impl Runtime {
    /// Makes a container; nothing runs yet.
    pub(crate) async fn create_container(self: &Arc<Self>, sandbox_id: &str, config: ContainerConfig, sandbox_config: Option<v1::PodSandboxConfig>) -> Result<String> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::State(format!("sandbox container {:?} is not running", sandbox.id)));
        }
        let metadata = config.metadata.clone().ok_or_else(|| Error::Invalid("container config must include metadata".into()))?;
        let wanted = config.image.clone().unwrap_or_default();
        let missing = || Error::NotFound(format!("failed to resolve image {:?}: not found", wanted.image));
        let image = self.images.get(spec::image_key(&wanted)).or_else(|| self.images.get(&wanted.image)).ok_or_else(missing)?;
        let id = self.new_id();
        let record = {
            let pod = sandbox.record.lock();
            let from_pod = sandbox_config.unwrap_or_else(|| pod.config.clone());
            let of = pod.config.metadata.clone().unwrap_or_default();
            let name = format!("{}_{}_{}_{}_{}", metadata.name, of.name, of.namespace, of.uid, metadata.attempt);
            self.reserve("container", &name, &id)?;
            self.new_container(id.clone(), &pod, &from_pod, config, &image)
        };
        let record = record.inspect_err(|_| self.release(&id))?;
        let container = Container::new(record);
        let c = Arc::clone(&container);
        let saved = self.blocking(move |this| this.save_container(&c)).await;
        saved.inspect_err(|_| self.release(&id))?;
        self.containers.lock().insert(id.clone(), container);
        self.emit(ContainerEventType::ContainerCreatedEvent, &id, &sandbox.id);
        Ok(id)
    }

    fn new_container(
        &self,
        id: String,
        pod: &SandboxRecord,
        from_pod: &v1::PodSandboxConfig,
        config: ContainerConfig,
        image: &crate::images::ImageRecord,
    ) -> Result<ContainerRecord> {
        self.check_container(&config)?;
        let user = spec::user_string(&spec::security(&config), &image.config)?;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let own = config.envs.iter().map(|e| format!("{}={}", e.key, text(&e.value)));
        let log_directory = if from_pod.log_directory.is_empty() { &pod.config.log_directory } else { &from_pod.log_directory };
        let log_path = if log_directory.is_empty() || config.log_path.is_empty() {
            String::new()
        } else {
            std::path::Path::new(log_directory).join(&config.log_path).display().to_string()
        };
        let parent = pod.config.linux.as_ref().map(|l| l.cgroup_parent.as_str()).filter(|p| !p.is_empty()).unwrap_or(&self.config.default_cgroup_parent);
        let mut mounts = config.mounts.clone();
        for mount in &mut mounts {
            if let Some(spec) = &mut mount.image
                && let Some(found) = self.images.get(spec::image_key(spec))
            {
                spec.image_ref.clone_from(&found.id);
            }
        }
        let cwds = [config.working_dir.as_str(), image.config.working_dir.as_str()];
        let cwd = cwds.into_iter().find(|d| !d.is_empty()).unwrap_or("/").to_owned();
        Ok(ContainerRecord {
            cgroup: self.cgroups.group(parent).child(&id).path().to_owned(),
            sandbox_id: pod.id.clone(),
            image_id: image.id.clone(),
            image_ref: image.digests.first().cloned().unwrap_or_else(|| image.id.clone()),
            argv: spec::argv(&config, &image.config)?,
            env: image.config.env.iter().cloned().chain(own).collect(),
            cwd,
            user,
            stop_signal: spec::stop_signal(&config, &image.config),
            mounts,
            log_path,
            created_at: self.now_ns(),
            config,
            id,
            ..ContainerRecord::default()
        })
    }

    /// Starts a container. Its first process has been exec'ed when this returns.
    pub(crate) async fn start_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let container = self.container(id)?;
        let _op = container.op.lock().await;
        if container.removing.load(Ordering::Acquire) {
            return Err(Error::State(format!("container {:?} is being removed", container.id)));
        }
        match container.phase() {
            ContainerPhase::Created => {}
            ContainerPhase::Running => return Err(Error::State("container is in CONTAINER_RUNNING state".into())),
            ContainerPhase::Exited => return Err(Error::State("container is in CONTAINER_EXITED state".into())),
        }
        let c = Arc::clone(&container);
        let started = self.blocking(move |this| this.launch_container(&c)).await;
        let started = started.and_then(|io| self.watch_output(&container, io));
        if let Err(e) = started {
            self.start_failed(&container, &e).await;
            return Err(e);
        }
        let sandbox_id = container.record.lock().sandbox_id.clone();
        container.changed.send_replace(ContainerPhase::Running);
        self.emit(ContainerEventType::ContainerStartedEvent, &container.id, &sandbox_id);
        Ok(())
    }

    async fn start_failed(self: &Arc<Self>, container: &Arc<Container>, error: &Error) {
        {
            let mut record = container.record.lock();
            if let Some(process) = record.process {
                let _ = process.signal(libc::SIGKILL);
            }
            record.phase = ContainerPhase::Exited;
            record.started_at = 0;
            record.finished_at = self.now_ns();
            record.exit_code = START_ERROR;
            record.reason = "StartError".into();
            record.message = error.to_string();
        }
        let _ = self.save_container(container);
        let id = container.id.clone();
        let c = Arc::clone(container);
        self.background(move |this| {
            for key in [format!("c/{id}"), format!("i/{id}")] {
                let _ = this.init.drop_key(&key);
            }
            this.remove_cgroup(&c);
        });
        container.drained.send_replace(true);
        container.changed.send_replace(ContainerPhase::Exited);
    }

    /// The part of a start that blocks. Returns the read ends of its output.
    fn launch_container(self: &Arc<Self>, container: &Arc<Container>) -> Result<Vec<OwnedFd>> {
        let record = container.record.lock().clone();
        let sandbox = self.sandbox(&record.sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::State(format!("sandbox container {:?} is not running", sandbox.id)));
        }
        let pod = sandbox.record.lock().clone();
        let image = self.images.get(&record.image_id).ok_or_else(|| Error::NotFound(format!("image {:?} not found", record.image_id)))?;
        let resources = spec::resources(&record.config);
        let group = self.cgroups.group(&record.cgroup);
        // The root shows the group's directories, so they come first; what is written into them does not.
        group.create().map_err(Error::io("make the container's cgroup"))?;
        let upper = upper_dir(&self.config.run, &record.id);
        let made = fs::create_dir(&upper).or_else(|_| {
            // A start that was interrupted before it counted.
            fs::remove_dir_all(&upper).and_then(|()| fs::create_dir(&upper))
        });
        // So that whoever finds the directory alone finds the cgroup too.
        let noted = made.and_then(|()| std::os::unix::fs::symlink(&record.cgroup, upper.join("cgroup")));
        noted.map_err(Error::io("make the container's writable layer"))?;

        let mark = fs::File::create(upper.join(STARTED)).map_err(Error::io("make the container's start mark"))?;
        let fail = Error::io("make the container's streams");
        let streams = Streams::open(&record).map_err(fail)?;
        let (stdio, mut outputs, stdin) = (streams.stdio, streams.outputs, streams.stdin);
        if let Some(stdin) = &stdin {
            self.init.hold(&format!("i/{}", record.id), &[stdin.as_raw_fd()])?;
        }
        let job = Job {
            namespaces: self.namespaces_of(&record, &pod)?,
            setup: Setup::Container(Box::new(self.rootfs_of(&record, &pod, &image)?)),
            process: self.process_of(&record, hostname_of(&pod.config))?,
            entry: Box::new(move || {
                group.apply(&spec::limits_of(&resources)).map_err(LaunchError::setup("limit the container's resources"))?;
                group.entry().map_err(LaunchError::setup("open the container's cgroup"))
            }),
            stdio,
            mark: Some(mark.into()),
            new_cgroup_ns: self.cgroups.version() == crate::cgroup::Version::V2,
        };
        let spawned = launch::launch(job, |spawned| {
            {
                let mut record = container.record.lock();
                record.process = Some(spawned.process);
                record.identity = Some(spawned.identity.clone());
                record.started_at = self.now_ns();
                record.phase = ContainerPhase::Running;
            }
            // Registered first, written down last: a bridge that dies in between leaves a container that counts as
            // created, and the child, which exits without having run anything, has no record to spoil.
            let failed = |e: Error| LaunchError::Invalid(e.to_string());
            let held: Vec<_> = spawned.tty.iter().chain(&outputs).map(AsRawFd::as_raw_fd).collect();
            self.init.register(spawned.process, &format!("c/{}", record.id), &held).map_err(|e| failed(e.into()))?;
            self.save_container(container).map_err(failed)
        });
        let spawned = spawned.map_err(|e| Error::State(format!("failed to create containerd task: unable to start container process: {e}")))?;
        outputs.extend(spawned.tty);
        Ok(outputs)
    }

    /// Moves a container's output from here on.
    pub(crate) fn watch_output(self: &Arc<Self>, container: &Arc<Container>, sources: Vec<OwnedFd>) -> Result<()> {
        let (path, tty) = {
            let record = container.record.lock();
            ((!record.log_path.is_empty()).then(|| record.log_path.clone().into()), record.config.tty)
        };
        let spec = LogSpec { path, spool: spool_dir(&self.config.run, &container.id), sources, tty };
        let (handle, task) = pump(spec, self.clock).map_err(Error::io("open the container's log"))?;
        *container.log.lock() = Some(handle);
        let c = Arc::clone(container);
        c.drained.send_replace(false);
        let end = self.outputs_end.clone();
        self.tasks.spawn(async move {
            if end.run_until_cancelled(task).await.is_some() {
                c.drained.send_replace(true);
            }
        });
        Ok(())
    }

    fn namespaces_of(&self, record: &ContainerRecord, pod: &SandboxRecord) -> Result<Namespaces> {
        let options = namespace_options(&pod.config);
        let own = spec::security(&record.config).namespace_options.unwrap_or_else(|| options.clone());
        let pause = pod.process.ok_or_else(|| Error::State(format!("sandbox container {:?} is not running", pod.id)))?;
        let open = |name: &str| pause.namespace(name).map_err(Error::io(format!("open the sandbox's {name} namespace")));
        let pid = if own.pid == NamespaceMode::Pod as i32 {
            PidMode::Join(open("pid")?)
        } else if is_node(own.pid) {
            PidMode::Node
        } else if own.pid == NamespaceMode::Target as i32 {
            let target = self.container(&own.target_id)?;
            let process = target.record.lock().process.filter(|_| target.phase() == ContainerPhase::Running);
            let process = process.ok_or_else(|| Error::State(format!("target container {:?} is not running", own.target_id)))?;
            PidMode::Join(process.namespace("pid").map_err(Error::io("open the target's pid namespace"))?)
        } else {
            PidMode::New
        };
        let net = match &pod.netns {
            Some(path) => Some(fs::File::open(path).map_err(Error::io("open the sandbox's network namespace"))?.into()),
            None => None,
        };
        Ok(Namespaces {
            uts: net.is_some().then(|| open("uts")).transpose()?,
            net,
            ipc: (!is_node(options.ipc)).then(|| open("ipc")).transpose()?,
            mnt: None,
            cgroup: None,
            pid,
        })
    }

    /// Whether its processes die with the first one: only in a pid namespace of its own.
    fn owns_pid_namespace(&self, record: &ContainerRecord) -> bool {
        let pod = self.sandbox(&record.sandbox_id).ok().map(|s| namespace_options(&s.record.lock().config));
        let options = spec::security(&record.config).namespace_options.or(pod).unwrap_or_default();
        options.pid == NamespaceMode::Container as i32
    }

    /// Stops a container: its signal, so many seconds, SIGKILL. Not running is success.
    pub(crate) async fn stop_container(self: &Arc<Self>, container: &Arc<Container>, timeout: i64) -> Result<()> {
        if container.phase() == ContainerPhase::Created {
            let _op = container.op.lock().await;
            if container.phase() == ContainerPhase::Created {
                let mut record = container.record.lock();
                record.phase = ContainerPhase::Exited;
                record.finished_at = self.now_ns();
                drop(record);
                self.save_container(container)?;
                container.changed.send_replace(ContainerPhase::Exited);
                return Ok(());
            }
        }
        if container.phase() != ContainerPhase::Running {
            return Ok(());
        }
        let (process, signal) = {
            let record = container.record.lock();
            (record.process, spec::signal_number(&record.stop_signal).unwrap_or(libc::SIGTERM))
        };
        let Some(process) = process else { return Ok(()) };
        if timeout > 0 {
            // A second stop only waits anew: the process has heard it.
            if !container.stop_signalled.swap(true, Ordering::AcqRel) {
                process.signal(signal).map_err(Error::io(format!("signal container {}", container.id)))?;
            }
            let patience = Duration::from_secs(timeout.unsigned_abs());
            if self.clock.timeout(patience, container.exited()).await.is_some() {
                return Ok(());
            }
        }
        self.kill_container(container);
        if self.clock.timeout(KILL_PATIENCE, container.exited()).await.is_none() {
            return Err(Error::Deadline(format!("an error occurs during waiting for container {:?} to be killed", container.id)));
        }
        Ok(())
    }

    fn kill_container(&self, container: &Container) {
        let record = container.record.lock().clone();
        if let Some(process) = record.process {
            let _ = process.signal(libc::SIGKILL);
        }
        if !self.owns_pid_namespace(&record) {
            self.cgroups.group(&record.cgroup).kill();
        }
    }

    /// Init says that a container's first process has ended.
    pub(crate) async fn container_exited(self: &Arc<Self>, id: &str, exit: Exit) {
        let known = self.container(id).ok();
        if let Some(container) = &known {
            // A start that is still under way settles first.
            let _op = container.op.lock().await;
            let ours = container.record.lock().process.is_some_and(|p| p.pid == exit.pid && p.start == exit.start);
            if ours && container.phase() == ContainerPhase::Running {
                self.settle_exit(container, &exit).await;
            }
        }
        let id = id.to_owned();
        self.background(move |this| {
            // What is held belongs to a later start of the container, if there has been one. The acknowledgement comes
            // last: without it a successor does this again.
            if known.is_none_or(|c| c.phase() != ContainerPhase::Running) {
                for key in [format!("c/{id}"), format!("i/{id}")] {
                    let _ = this.init.drop_key(&key);
                }
            }
            let _ = this.init.acknowledge(exit.pid, exit.start);
        });
    }

    async fn settle_exit(self: &Arc<Self>, container: &Arc<Container>, exit: &Exit) {
        let record = container.record.lock().clone();
        if exit.code == NOT_RELEASED && fs::metadata(upper_dir(&self.config.run, &record.id).join(STARTED)).is_ok_and(|m| m.len() == 0) {
            // Our predecessor died between writing the start down and saying so: nothing has run.
            return self.take_back_start(container).await;
        }
        let group = self.cgroups.group(&record.cgroup);
        if !self.owns_pid_namespace(&record) {
            group.kill();
        }
        self.drain(container).await;
        let oom = group.oom_kills() > 0;
        {
            let mut record = container.record.lock();
            record.phase = ContainerPhase::Exited;
            record.exit_code = exit.code;
            record.finished_at = exit.wall_ns;
            if oom {
                record.reason = "OOMKilled".into();
            }
        }
        if let Err(error) = self.save_container(container) {
            tracing::error!(container = %container.id, %error, "the end of a container could not be written down");
        }
        container.changed.send_replace(ContainerPhase::Exited);
        self.emit(ContainerEventType::ContainerStoppedEvent, &container.id, &record.sandbox_id);
        let c = Arc::clone(container);
        self.background(move |this| this.remove_cgroup(&c));
    }

    async fn take_back_start(&self, container: &Container) {
        self.drain(container).await;
        {
            let mut record = container.record.lock();
            record.phase = ContainerPhase::Created;
            record.started_at = 0;
            (record.process, record.identity) = (None, None);
        }
        if let Err(error) = self.save_container(container) {
            tracing::error!(container = %container.id, %error, "a start that was taken back could not be written down");
        }
        container.changed.send_replace(ContainerPhase::Created);
    }

    /// Waits until all output is in the log; heirs of the container do not hold this up for long.
    async fn drain(&self, container: &Container) {
        let mut drained = container.drained.subscribe();
        if self.clock.timeout(DRAIN, drained.wait_for(|d| *d)).await.is_none() {
            let handle = container.log.lock().clone();
            if let Some(handle) = handle {
                handle.finish().await;
                let _ = self.clock.timeout(DRAIN, drained.wait_for(|d| *d)).await;
            }
        }
        *container.log.lock() = None;
    }

    /// Removes a container's writable layer or spool, and the cgroup the former names.
    pub(crate) fn remove_container_dir(&self, dir: &std::path::Path) {
        if let Ok(cgroup) = fs::read_link(dir.join("cgroup")) {
            self.remove_group(&self.cgroups.group(&cgroup.to_string_lossy()));
        }
        let _ = fs::remove_dir_all(dir);
    }

    fn remove_cgroup(&self, container: &Container) {
        let group = self.cgroups.group(&container.record.lock().cgroup);
        self.remove_group(&group);
    }

    /// Blocks until the group is gone.
    fn remove_group(&self, group: &crate::cgroup::Group) {
        // Zombies leave a group a moment after their parent has heard of them, and what was killed takes a moment to end.
        let handle = tokio::runtime::Handle::current();
        let mut pause = Duration::from_millis(1);
        while let Err(e) = group.remove()
            && e.kind() == std::io::ErrorKind::ResourceBusy
            && pause < KILL_PATIENCE
        {
            group.kill();
            handle.block_on(self.clock.sleep(pause));
            pause *= 2;
        }
    }

    /// Removes a container, killing it first if need be. Absent is success; its log stays.
    pub(crate) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(container) = self.container(id) else { return Ok(()) };
        if container.phase() == ContainerPhase::Running {
            self.stop_container(&container, 0).await?;
        }
        let Ok(_op) = container.op.try_lock() else {
            return self.remove_later(&container).await;
        };
        self.remove_now(&container).await
    }

    /// Somebody is starting, ending or removing it.
    async fn remove_later(self: &Arc<Self>, container: &Arc<Container>) -> Result<()> {
        if container.phase() == ContainerPhase::Created {
            return Err(Error::State("container is in starting state, can't be removed".into()));
        }
        let _op = container.op.lock().await;
        self.remove_now(container).await
    }

    async fn remove_now(self: &Arc<Self>, container: &Arc<Container>) -> Result<()> {
        container.removing.store(true, Ordering::Release);
        if container.phase() == ContainerPhase::Running {
            container.removing.store(false, Ordering::Release);
            return Err(Error::State(format!("container {:?} is running", container.id)));
        }
        self.journal.remove(Kind::Container, &container.id).map_err(Error::io("remove container state"))?;
        if self.containers.lock().remove(&container.id).is_none() {
            return Ok(());
        }
        self.release(&container.id);
        let sandbox_id = container.record.lock().sandbox_id.clone();
        self.emit(ContainerEventType::ContainerDeletedEvent, &container.id, &sandbox_id);
        let c = Arc::clone(container);
        self.background(move |this| {
            this.remove_cgroup(&c);
            this.remove_container_dir(&upper_dir(&this.config.run, &c.id));
            this.remove_container_dir(&spool_dir(&this.config.run, &c.id));
        });
        Ok(())
    }
}

/// The streams of a container about to start.
struct Streams {
    stdio: Stdio,
    outputs: Vec<OwnedFd>,
    stdin: Option<OwnedFd>,
}

impl Streams {
    fn open(record: &ContainerRecord) -> std::io::Result<Self> {
        if record.config.tty {
            return Ok(Self { stdio: Stdio::Tty, outputs: Vec::new(), stdin: None });
        }
        let (stdin_read, stdin) = if record.config.stdin {
            let (r, w) = pipe()?;
            (r, Some(w))
        } else {
            (fs::File::open("/dev/null")?.into(), None)
        };
        let ((out_read, out), (err_read, err)) = (pipe()?, pipe()?);
        // High numbers: init receives them, and a child's own descriptors must not collide with them.
        Ok(Self { stdio: Stdio::Fds([stdin_read, out, err]), outputs: vec![dup_high(&out_read)?, dup_high(&err_read)?], stdin })
    }
}
