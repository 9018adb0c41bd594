//! Processes beside a container's own: in all its namespaces and its cgroup, with its user, environment and rights.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use tokio::{io::Interest, sync::oneshot};

use crate::{
    error::Error,
    init::{Exit, pipe},
    launch::{self, Job, LaunchError, Namespaces, PidMode, Setup, Stdio},
    runtime::Runtime,
    sandbox::hostname_of,
    state::{Container, ContainerPhase},
    sys::{aio, proc::ProcessId},
    v1,
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Most bytes of output an `ExecSync` returns, both streams together; what is beyond is dropped.
const MAX_OUTPUT: usize = 16 << 20;
/// How long output is awaited after the process has ended but left the pipes to a child.
const DRAIN: Duration = Duration::from_secs(2);

/// A process started by [`Runtime::start_exec`].
#[derive(Debug)]
pub(crate) struct ExecProcess {
    pub process: ProcessId,
    pub exit: oneshot::Receiver<Exit>,
    /// Master of its terminal.
    pub tty: Option<OwnedFd>,
}

impl ExecProcess {
    /// Kills the process and its group (it leads a session of its own).
    pub fn kill(&self) {
        if self.process.alive() {
            let _ = nix::sys::signal::killpg(
                nix::unistd::Pid::from_raw(self.process.pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let _ = self.process.signal(libc::SIGKILL);
    }
}

impl Runtime {
    /// A container that runs, or the error that says what it does instead.
    pub(crate) fn running(&self, id: &str) -> Result<Arc<Container>> {
        let container = self.container(id)?;
        let state = match container.phase() {
            ContainerPhase::Running => return Ok(container),
            ContainerPhase::Created => "CONTAINER_CREATED",
            ContainerPhase::Exited => "CONTAINER_EXITED",
        };
        Err(Error::State(format!("container is in {state} state")))
    }

    /// Starts a process in a running container. Blocks.
    pub(crate) fn start_exec(
        self: &Arc<Self>,
        container: &Arc<Container>,
        command: Vec<String>,
        tty: bool,
        stdio: Stdio,
    ) -> Result<ExecProcess> {
        let record = container.record.lock().clone();
        let first = record.process.ok_or_else(|| Error::State("container has no process".into()))?;
        let hostname =
            self.sandbox(&record.sandbox_id).map(|s| hostname_of(&s.record.lock().config)).unwrap_or_default();
        let open =
            |name: &str| first.namespace(name).map_err(Error::io(format!("open the container's {name} namespace")));
        let v2 = self.cgroups.version() == crate::cgroup::Version::V2;
        let namespaces = Namespaces {
            net: Some(open("net")?),
            ipc: Some(open("ipc")?),
            uts: Some(open("uts")?),
            mnt: Some(open("mnt")?),
            cgroup: v2.then(|| open("cgroup")).transpose()?,
            pid: PidMode::Join(open("pid")?),
            user: self.sandbox(&record.sandbox_id).and_then(|s| self.users_of(&s.record.lock().clone()))?,
        };
        // The namespaces are open; if the process was replaced meanwhile they are somebody else's.
        if !first.alive() {
            return Err(Error::State("container is in CONTAINER_EXITED state".into()));
        }
        let mut process = self.process_of(&record, hostname)?;
        process.argv = command;
        process.tty = tty;
        let group = self.cgroups.group(&record.cgroup);
        let job = Job {
            namespaces,
            setup: Setup::Exec,
            process,
            entry: Box::new(move || group.entry().map_err(LaunchError::setup("open the container's cgroup"))),
            stdio,
            mark: None,
            new_cgroup_ns: false,
        };
        let key = format!("e/{:016x}", self.rng.next_u64());
        let (tx, exit) = oneshot::channel();
        self.execs.lock().insert(key.clone(), tx);
        let spawned = launch::launch(job, |s| {
            self.init.register(s.process, &key, &[]).map_err(|e| LaunchError::Invalid(e.to_string()))
        });
        match spawned {
            Ok(s) => Ok(ExecProcess { process: s.process, exit, tty: s.tty }),
            Err(e) => {
                self.execs.lock().remove(&key);
                let id: String = (0..4).map(|_| format!("{:016x}", self.rng.next_u64())).collect();
                Err(Error::State(format!(
                    "failed to exec in container: failed to start exec {id:?}: OCI runtime exec failed: exec failed: unable to start container process: {e}"
                )))
            }
        }
    }

    /// Runs a command to its end and returns what it wrote. On a timeout it is killed.
    pub(crate) async fn exec_sync(
        self: &Arc<Self>,
        id: &str,
        command: Vec<String>,
        timeout: i64,
    ) -> Result<v1::ExecSyncResponse> {
        let container = self.running(id)?;
        let fail = || Error::io("make the command's streams");
        let ((out_read, out), (err_read, err)) = (pipe().map_err(fail())?, pipe().map_err(fail())?);
        let null: OwnedFd = std::fs::File::open("/dev/null").map_err(fail())?.into();
        let mut exec = self
            .blocking(move |this| this.start_exec(&container, command, false, Stdio::Fds([null, out, err])))
            .await?;

        let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
        let (mut exit, mut exited) = (None, false);
        {
            let reading = async { tokio::join!(collect(out_read, &mut stdout), collect(err_read, &mut stderr)) };
            let mut reading = Box::pin(reading);
            let mut read = false;
            let limit = async {
                if timeout > 0 {
                    self.clock.sleep(Duration::from_secs(timeout.unsigned_abs())).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            let mut limit = Box::pin(limit);
            while !exited {
                tokio::select! {
                    biased;
                    code = &mut exec.exit => {
                        exit = code.ok();
                        exited = true;
                    }
                    _ = &mut reading, if !read => read = true,
                    () = &mut limit => {
                        exec.kill();
                        let _ = self.clock.timeout(DRAIN, &mut exec.exit).await;
                        return Err(Error::Deadline(format!("failed to exec in container: timeout {timeout}s exceeded: context deadline exceeded")));
                    }
                }
            }
            if !read {
                let _ = self.clock.timeout(DRAIN, &mut reading).await;
            }
        }
        let exit = exit.ok_or_else(|| Error::State("the end of the command was not observed".into()))?;
        Ok(v1::ExecSyncResponse { stdout: stdout.to_vec(), stderr: stderr.to_vec(), exit_code: exit.code })
    }
}

/// Reads a pipe to its end, keeping no more than half the limit.
async fn collect(fd: OwnedFd, into: &mut BytesMut) {
    let Ok(fd) = aio::watch(fd, Interest::READABLE) else { return };
    let mut chunk = vec![0; 32 << 10];
    loop {
        let Ok(mut ready) = fd.readable().await else { return };
        match ready.try_io(|fd| nix::unistd::read(fd.get_ref().as_fd(), &mut chunk).map_err(std::io::Error::from)) {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(n)) => into.extend_from_slice(&chunk[..n.min((MAX_OUTPUT / 2).saturating_sub(into.len()))]),
            Err(_) => {}
        }
    }
}
