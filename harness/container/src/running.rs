//! One container from start to removal.

use std::{path::PathBuf, time::Duration};

use bollard::{
    container::LogOutput,
    exec::{CreateExecOptions, StartExecResults},
    models::{HostConfig, PortBinding},
    query_parameters::LogsOptionsBuilder,
};
use futures::StreamExt;
use testcontainers::{
    ContainerAsync, GenericImage, ImageExt,
    core::{CgroupnsMode, IntoContainerPort, Mount, WaitFor},
    runners::AsyncRunner,
};

use crate::{
    ContainerError, Engine, PROGRAM, chain,
    engine::{OWNER_LABEL, REPOSITORY},
};

/// What nodes of ours need, each for a reason:
/// namespaces, mounts and cgroups (`SYS_ADMIN`); links, routes and firewall (`NET_ADMIN`, `NET_RAW`); device nodes
/// (`MKNOD`); unpacking images with their owners (`CHOWN`, `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `SETFCAP`); containers with
/// users and capabilities of their own (`SETUID`, `SETGID`, `SETPCAP`); roots of nodes and containers (`SYS_CHROOT`); ending
/// processes of other users (`KILL`); files behind `/proc/PID/root` (`SYS_PTRACE`); what containers have by default
/// (`NET_BIND_SERVICE`, `AUDIT_WRITE`). `--privileged` would add all others, and fails where the host lacks one of them.
const CAPABILITIES: [&str; 17] = [
    "SYS_ADMIN",
    "NET_ADMIN",
    "NET_RAW",
    "MKNOD",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETFCAP",
    "SETUID",
    "SETGID",
    "SETPCAP",
    "SYS_CHROOT",
    "KILL",
    "SYS_PTRACE",
    "NET_BIND_SERVICE",
    "AUDIT_WRITE",
];
/// Most bytes a command may say; the log of a component is the longest.
const MAX_OUTPUT: usize = 64 << 20;
/// Most bytes of a log that are kept.
const MAX_LOG: usize = 1 << 20;

/// What to start.
#[derive(Debug, Clone)]
pub struct Request {
    /// Name of the container, once on the engine.
    pub name: String,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Port in the container that is published on loopback.
    pub port: u16,
    /// Folders of this machine: here, there.
    pub folders: Vec<(PathBuf, String)>,
    /// The line of standard output that says it is ready.
    pub ready: String,
    /// How long that may take.
    pub within: Duration,
}

/// What a command in a container did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code.
    pub code: i64,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A container that is ready. Dropping it removes it in the background; [`Running::end`] waits for that.
#[derive(Debug)]
pub struct Running {
    container: ContainerAsync<GenericImage>,
    engine: Engine,
    port: u16,
}

impl Engine {
    /// Starts a container and waits until it is ready. One that does not get ready is removed.
    ///
    /// # Errors
    /// [`ContainerError::Start`] with the end of its log.
    pub async fn start(&self, request: &Request) -> Result<Running, ContainerError> {
        let port = request.port;
        let loopback = move |config: &mut HostConfig| {
            let binding = PortBinding { host_ip: Some("127.0.0.1".into()), host_port: None };
            config.publish_all_ports = Some(false);
            config.port_bindings = Some([(format!("{port}/tcp"), Some(vec![binding]))].into());
            // What `--security-opt systempaths=unconfined` of the command line stands for: nodes mount a /proc of their own,
            // and the kernel allows that only where nothing of the container's is hidden.
            config.masked_paths = Some(Vec::new());
            config.readonly_paths = Some(Vec::new());
            // Images are run from there, and the upper side of an overlay must not be an overlay itself.
            config.tmpfs = Some([("/podlab/state".to_owned(), "exec,mode=700".to_owned())].into());
        };
        let image = GenericImage::new(REPOSITORY, &self.tag)
            .with_entrypoint(PROGRAM)
            .with_exposed_port(port.tcp())
            .with_wait_for(WaitFor::message_on_stdout(&request.ready));
        let mut container = image
            .with_cmd(request.arguments.clone())
            .with_container_name(&request.name)
            .with_label(OWNER_LABEL, &self.owner.name)
            .with_cap_drop("ALL")
            // Namespaces and mounts are what nodes are made of; the profiles of engines forbid them.
            .with_security_opt("seccomp=unconfined")
            .with_security_opt("apparmor=unconfined")
            // A node's groups are made below the container's own, which must be found under its name.
            .with_cgroupns_mode(CgroupnsMode::Host)
            .with_mount(Mount::bind_mount("/sys/fs/cgroup", "/sys/fs/cgroup"))
            .with_startup_timeout(request.within)
            .with_host_config_modifier(loopback);
        for capability in CAPABILITIES {
            container = container.with_cap_add(capability);
        }
        for (here, there) in &request.folders {
            container = container.with_mount(Mount::bind_mount(here.to_string_lossy(), there.as_str()));
        }
        let started = async {
            let container = container.start().await?;
            let port = container.get_host_port_ipv4(port.tcp()).await?;
            Ok::<_, testcontainers::TestcontainersError>((container, port))
        };
        match started.await {
            Ok((container, port)) => Ok(Running { container, engine: self.clone(), port }),
            Err(e) => {
                let log = self.log(&request.name).await.unwrap_or_default();
                // One that was made and not started is nobody's otherwise.
                let _ = self.remove(&request.name).await;
                let lines: Vec<&str> = log.lines().collect();
                let log = lines[lines.len().saturating_sub(20)..].join("\n");
                Err(ContainerError::Start { why: chain(&e), log })
            }
        }
    }

    /// What a container has said, oldest first, at most a mebibyte.
    async fn log(&self, name: &str) -> Result<String, bollard::errors::Error> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let mut stream = self.docker.logs(name, Some(options));
        let mut text = String::new();
        while let Some(part) = stream.next().await {
            text.push_str(&part?.to_string());
            if text.len() > MAX_LOG {
                break;
            }
        }
        Ok(text)
    }
}

impl Running {
    /// The port of 127.0.0.1 that leads to the container's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs the program in the container with other arguments. Dropping the future does not end the command.
    ///
    /// # Errors
    /// [`ContainerError::Inside`] when it could not be run; an exit code is no error.
    pub async fn exec(&self, arguments: &[&str]) -> Result<Executed, ContainerError> {
        let what = arguments.join(" ");
        let fail = |why: String| ContainerError::Inside { what: what.clone(), why };
        let docker = &self.engine.docker;
        let options = CreateExecOptions {
            cmd: Some(std::iter::once(PROGRAM).chain(arguments.iter().copied()).map(str::to_owned).collect()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..CreateExecOptions::default()
        };
        let made = docker.create_exec(self.container.id(), options).await.map_err(|e| fail(chain(&e)))?;
        let started = docker.start_exec(&made.id, None).await.map_err(|e| fail(chain(&e)))?;
        let StartExecResults::Attached { mut output, .. } = started else {
            return Err(fail("its output is not attached".into()));
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(part) = output.next().await {
            match part.map_err(|e| fail(chain(&e)))? {
                LogOutput::StdErr { message } => stderr.extend_from_slice(&message),
                other => stdout.extend_from_slice(&other.into_bytes()),
            }
            if stdout.len() > MAX_OUTPUT || stderr.len() > MAX_OUTPUT {
                return Err(fail(format!("it says more than {MAX_OUTPUT} bytes")));
            }
        }
        let ended = docker.inspect_exec(&made.id).await.map_err(|e| fail(chain(&e)))?;
        let code = ended.exit_code.ok_or_else(|| fail("it closed its output and did not end".into()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Executed { code, stdout: text(stdout), stderr: text(stderr) })
    }

    /// What it has said.
    ///
    /// # Errors
    /// [`ContainerError::Inside`].
    pub async fn log(&self) -> Result<String, ContainerError> {
        let log = self.engine.log(self.container.id()).await;
        log.map_err(|e| ContainerError::Inside { what: "read the log".into(), why: chain(&e) })
    }

    /// Removes it with everything it runs, and returns when it is gone.
    ///
    /// # Errors
    /// [`ContainerError::Inside`]; the next run removes it then.
    pub async fn end(self) -> Result<(), ContainerError> {
        let removed = self.container.rm().await;
        removed.map_err(|e| ContainerError::Inside { what: "remove".into(), why: chain(&e) })
    }
}
