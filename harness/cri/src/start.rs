//! The start of a container: streams, namespaces, cgroup, launch, and its output from then on.

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

use crate::{
    error::Error,
    exit::STARTED,
    init::{dup_high, pipe},
    launch::{self, Job, LaunchError, Namespaces, PidMode, Setup, Stdio},
    log::{LogSpec, pump},
    runtime::Runtime,
    sandbox::{hostname_of, is_node, namespace_options},
    spec,
    state::{Container, ContainerPhase, ContainerRecord, SandboxRecord, spool_dir, upper_dir},
    v1::{ContainerEventType, NamespaceMode},
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Exit code of a container that could not be started. Source: containerd internal/cri/server/container_start.go.
const START_ERROR: i32 = 128;

impl Runtime {
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
        let image = self
            .images
            .get(&record.image_id)
            .ok_or_else(|| Error::NotFound(format!("image {:?} not found", record.image_id)))?;
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
                group
                    .apply(&spec::limits_of(&resources))
                    .map_err(LaunchError::setup("limit the container's resources"))?;
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
        let spawned = spawned.map_err(|e| {
            Error::State(format!("failed to create containerd task: unable to start container process: {e}"))
        })?;
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
        let pause =
            pod.process.ok_or_else(|| Error::State(format!("sandbox container {:?} is not running", pod.id)))?;
        let open =
            |name: &str| pause.namespace(name).map_err(Error::io(format!("open the sandbox's {name} namespace")));
        let pid = if own.pid == NamespaceMode::Pod as i32 {
            PidMode::Join(open("pid")?)
        } else if is_node(own.pid) {
            PidMode::Node
        } else if own.pid == NamespaceMode::Target as i32 {
            let target = self.container(&own.target_id)?;
            let process = {
                let record = target.record.lock();
                record.process.filter(|_| record.phase == ContainerPhase::Running)
            };
            let process =
                process.ok_or_else(|| Error::State(format!("target container {:?} is not running", own.target_id)))?;
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
            user: self.users_of(pod)?,
        })
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
        Ok(Self {
            stdio: Stdio::Fds([stdin_read, out, err]),
            outputs: vec![dup_high(&out_read)?, dup_high(&err_read)?],
            stdin,
        })
    }
}
