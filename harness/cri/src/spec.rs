//! From CRI's words to a process, a root and limits: validation and translation, no side effects.

use std::path::{Path, PathBuf};

use crate::{
    cgroup::{Limits, Version},
    error::Error,
    images::{ImageConfig, ImageRecord},
    launch::{BindMount, CgroupView, Device, MountSource, ProcessSpec, Propagation, RootfsSpec},
    runtime::Runtime,
    sandbox::is_node,
    state::{ContainerRecord, SandboxRecord, sandbox_dir, upper_dir},
    sys::{
        caps::Caps,
        mount,
        seccomp::{Filter, SeccompError},
    },
    v1::{
        self, ContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, MountPropagation, Signal,
        SupplementalGroupsPolicy, security_profile::ProfileType,
    },
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The security context, empty when there is none.
pub(crate) fn security(config: &ContainerConfig) -> LinuxContainerSecurityContext {
    config.linux.as_ref().and_then(|l| l.security_context.clone()).unwrap_or_default()
}

/// The resources, empty when there are none.
pub(crate) fn resources(config: &ContainerConfig) -> LinuxContainerResources {
    config.linux.as_ref().and_then(|l| l.resources.clone()).unwrap_or_default()
}

/// Resources as limits of a group; 0 means "not given".
pub(crate) fn limits_of(r: &LinuxContainerResources) -> Limits {
    let some = |n: i64| (n != 0).then_some(n);
    let unsigned = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
    let text = |s: &String| (!s.is_empty()).then(|| s.clone());
    Limits {
        cpu_shares: unsigned(r.cpu_shares),
        cpu_weight: None,
        cpu_quota: some(r.cpu_quota),
        cpu_period: unsigned(r.cpu_period),
        memory: some(r.memory_limit_in_bytes),
        memory_swap: some(r.memory_swap_limit_in_bytes),
        pids: None,
        cpuset_cpus: text(&r.cpuset_cpus),
        cpuset_mems: text(&r.cpuset_mems),
        oom_group: None,
        unified: r.unified.clone(),
    }
}

/// `user[:group]` by CRI's rules. Source: containerd internal/cri/server/container_create.go generateUserString.
pub(crate) fn user_string(s: &LinuxContainerSecurityContext, image: &ImageConfig) -> Result<String> {
    let mut user = s.run_as_user.as_ref().map(|u| u.value.to_string()).unwrap_or_default();
    if !s.run_as_username.is_empty() {
        user.clone_from(&s.run_as_username);
    }
    if let Some(group) = &s.run_as_group {
        if user.is_empty() {
            return Err(Error::Invalid(format!(
                "failed to generate user string: user group {:?} is specified without user",
                group.value.to_string()
            )));
        }
        user = format!("{user}:{}", group.value);
    }
    Ok(if user.is_empty() { image.user.clone() } else { user })
}

/// Command and arguments: CRI's replace the image's, each its own part.
pub(crate) fn argv(config: &ContainerConfig, image: &ImageConfig) -> Result<Vec<String>> {
    let mut argv = config.command.clone();
    let mut args = config.args.clone();
    if argv.is_empty() {
        if args.is_empty() {
            args.clone_from(&image.cmd);
        }
        argv.clone_from(&image.entrypoint);
    }
    argv.append(&mut args);
    if argv.is_empty() { Err(Error::Invalid("failed to generate spec: no command specified".into())) } else { Ok(argv) }
}

/// The signal's name as images write it; empty: not given.
pub(crate) fn stop_signal(config: &ContainerConfig, image: &ImageConfig) -> String {
    match config.stop_signal() {
        Signal::RuntimeDefault => image.stop_signal.clone(),
        given => given.as_str_name().trim_start_matches("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-"),
    }
}

/// A signal's number, by name (`SIGTERM`, `TERM`, `SIGRTMIN+3`) or number.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    let name = name.trim().to_ascii_uppercase();
    if let Ok(n) = name.parse::<i32>() {
        return (1..=64).contains(&n).then_some(n);
    }
    let bare = name.trim_start_matches("SIG");
    for (prefix, base, sign) in [("RTMIN", 34, 1), ("RTMAX", 64, -1)] {
        if let Some(rest) = bare.strip_prefix(prefix) {
            let offset: i32 = if rest.is_empty() { 0 } else { rest[1..].parse().ok()? };
            return Some(base + sign * offset).filter(|n| (34..=64).contains(n));
        }
    }
    let alias = match bare {
        "CLD" => "CHLD",
        "IOT" => "ABRT",
        "POLL" => "IO",
        other => other,
    };
    format!("SIG{alias}").parse::<nix::sys::signal::Signal>().ok().map(|s| s as i32)
}

/// The CRI value for a signal's name.
pub(crate) fn signal_value(name: &str) -> Signal {
    let bare = name.trim().to_ascii_uppercase();
    let bare = if bare.is_empty() {
        "SIGTERM".to_owned()
    } else if bare.starts_with("SIG") {
        bare
    } else {
        format!("SIG{bare}")
    };
    Signal::from_str_name(&format!("SIGNAL_{}", bare.replace('+', "PLUS").replace('-', "MINUS")))
        .unwrap_or(Signal::RuntimeDefault)
}

impl Runtime {
    /// Checks what can be checked before anything is done.
    pub(crate) fn check_container(&self, config: &ContainerConfig) -> Result<()> {
        for mount in &config.mounts {
            if mount.container_path.is_empty() {
                return Err(Error::Invalid("a mount has no container path".into()));
            }
            if let Some(image) = &mount.image {
                if !mount.readonly {
                    return Err(Error::Invalid(format!("image mount {:?} must be read-only", mount.container_path)));
                }
                let record = self
                    .images
                    .get(image_key(image))
                    .ok_or_else(|| Error::NotFound(format!("failed to resolve image {:?}: not found", image.image)))?;
                if !mount.image_sub_path.is_empty() {
                    let layers = self.images.layer_dirs(&record)?;
                    let clean = mount.image_sub_path.trim_start_matches('/');
                    if clean.split('/').any(|s| s == "..")
                        || !layers.iter().any(|l| l.join(clean).symlink_metadata().is_ok())
                    {
                        return Err(Error::Invalid(format!(
                            "image sub path {:?} does not exist in {:?}",
                            mount.image_sub_path, image.image
                        )));
                    }
                }
            } else if mount.host_path.is_empty() {
                return Err(Error::Invalid(format!("mount {:?} has no source", mount.container_path)));
            }
            if mount.recursive_read_only {
                if !mount.readonly {
                    return Err(Error::Invalid("recursive_read_only conflicts with readonly=false".into()));
                }
                if mount.propagation() != MountPropagation::PropagationPrivate {
                    return Err(Error::Invalid(
                        "recursive_read_only conflicts with a propagation other than private".into(),
                    ));
                }
            }
        }
        let security = security(config);
        let options = security.namespace_options.clone().unwrap_or_default();
        crate::sandbox::id_maps(&options, self.in_user_namespace)?;
        let caps = self.caps_of(&security)?;
        self.seccomp_of(&security, caps).map(drop)
    }

    fn caps_of(&self, s: &LinuxContainerSecurityContext) -> Result<Caps> {
        let caps = if s.privileged {
            Caps::ALL
        } else {
            let c = s.capabilities.clone().unwrap_or_default();
            let unknown = |name| Error::Invalid(format!("unknown capability {name:?}"));
            Caps::container_default().adjusted(&c.add_capabilities, &c.drop_capabilities).map_err(unknown)?
        };
        Ok(caps.within(self.bounding))
    }

    fn seccomp_of(&self, s: &LinuxContainerSecurityContext, caps: Caps) -> Result<Option<Filter>> {
        if s.privileged {
            return Ok(None);
        }
        #[expect(deprecated, reason = "older clients still set the path")]
        let old = s.seccomp_profile_path.as_str();
        let localhost = match (&s.seccomp, old) {
            (Some(profile), _) => match profile.profile_type() {
                ProfileType::RuntimeDefault => return Ok(Some(Filter::runtime_default(caps))),
                ProfileType::Unconfined => return Ok(None),
                ProfileType::Localhost => profile.localhost_ref.clone(),
            },
            (None, "" | "unconfined") => return Ok(None),
            (None, "runtime/default" | "docker/default") => return Ok(Some(Filter::runtime_default(caps))),
            (None, other) => other.to_owned(),
        };
        let path = localhost.strip_prefix("localhost/").unwrap_or(&localhost);
        let path = self.config.seccomp_dir.join(path);
        let json =
            std::fs::read(&path).map_err(Error::io(format!("failed to read seccomp profile {}", path.display())))?;
        let filter = Filter::from_json(&json, caps).map_err(|e: SeccompError| Error::Invalid(e.to_string()))?;
        Ok(Some(filter))
    }

    /// The process of a container, or with another command one beside it.
    pub(crate) fn process_of(&self, record: &ContainerRecord, hostname: String) -> Result<ProcessSpec> {
        let s = security(&record.config);
        let caps = self.caps_of(&s)?;
        let groups = s.supplemental_groups.iter().map(|g| u32::try_from(*g)).collect::<Result<Vec<_>, _>>();
        let adj = resources(&record.config).oom_score_adj;
        Ok(ProcessSpec {
            argv: record.argv.clone(),
            env: record.env.clone(),
            cwd: record.cwd.clone(),
            user: record.user.clone(),
            supplemental_groups: groups.map_err(|_| Error::Invalid("a supplemental group is out of range".into()))?,
            strict_groups: s.supplemental_groups_policy() == SupplementalGroupsPolicy::Strict,
            caps,
            no_new_privs: s.no_new_privs,
            seccomp: self.seccomp_of(&s, caps)?,
            rlimits: Vec::new(),
            oom_score_adj: i32::try_from(adj).ok(),
            tty: record.config.tty,
            hostname,
        })
    }

    /// The root of a container.
    pub(crate) fn rootfs_of(
        &self,
        record: &ContainerRecord,
        sandbox: &SandboxRecord,
        image: &ImageRecord,
    ) -> Result<RootfsSpec> {
        let s = security(&record.config);
        let run = &self.config.run;
        let dir = sandbox_dir(run, &sandbox.id);
        let mut mounts = Vec::with_capacity(record.config.mounts.len() + 2);
        for m in &record.config.mounts {
            mounts.push(self.bind_mount(m)?);
        }
        // The sandbox's own files are shifted like its volumes.
        let mut own = Vec::new();
        for file in ["hosts", "hostname", "resolv.conf"] {
            let target = Path::new("/etc").join(file);
            if !mounts.iter().any(|m| m.target == target) {
                if file == "hosts" && !dir.join(file).exists() {
                    // Nobody manages this Pod's hosts file: it begins as a copy of the node's.
                    let _ = std::fs::copy("/etc/hosts", dir.join(file))
                        .or_else(|_| std::fs::write(dir.join(file), "127.0.0.1\tlocalhost\n").map(|()| 0));
                }
                own.push(target.clone());
                mounts.push(plain_bind(dir.join(file), target, s.readonly_rootfs));
            }
        }
        let host_ipc = is_node(crate::sandbox::namespace_options(&sandbox.config).ipc);
        let group = self.cgroups.group(&record.cgroup);
        let cgroups = match self.cgroups.version() {
            Version::V2 => CgroupView::V2,
            Version::V1 => CgroupView::V1(
                ["memory", "cpu", "cpuacct", "pids"]
                    .iter()
                    .filter_map(|c| Some(((*c).to_owned(), group.dir(c)?)))
                    .collect(),
            ),
        };
        let users = self.users_of(sandbox)?;
        for mount in mounts.iter_mut().filter(|m| own.contains(&m.target)) {
            mount.shifted = true;
        }
        let devices = record.config.devices.iter().map(|d| Device {
            host_path: PathBuf::from(&d.host_path),
            container_path: PathBuf::from(&d.container_path),
        });
        Ok(RootfsSpec {
            layers: self.images.layer_dirs(image)?,
            upper: upper_dir(run, &record.id),
            mount_point: run.join("mnt"),
            scratch: run.join("img"),
            readonly: s.readonly_rootfs,
            privileged: s.privileged,
            mounts,
            devices: devices.collect(),
            unprivileged: self.in_user_namespace,
            users,
            shm: Some(if host_ipc { PathBuf::from("/dev/shm") } else { dir.join("shm") }),
            cgroups,
            masked: if s.privileged { Vec::new() } else { s.masked_paths.clone() },
            readonly_paths: if s.privileged { Vec::new() } else { s.readonly_paths.clone() },
        })
    }

    fn bind_mount(&self, m: &v1::Mount) -> Result<BindMount> {
        let source = match &m.image {
            Some(image) => {
                let record = self
                    .images
                    .get(image_key(image))
                    .ok_or_else(|| Error::NotFound(format!("failed to resolve image {:?}: not found", image.image)))?;
                MountSource::Image {
                    layers: self.images.layer_dirs(&record)?,
                    sub_path: m.image_sub_path.trim_start_matches('/').to_owned(),
                }
            }
            None => MountSource::Host(PathBuf::from(&m.host_path)),
        };
        let attrs = m.mount_options.iter().fold(0, |attrs, o| {
            attrs
                | match o.as_str() {
                    "noexec" => mount::NOEXEC,
                    "nosuid" => mount::NOSUID,
                    "nodev" => mount::NODEV,
                    _ => 0,
                }
        });
        Ok(BindMount {
            source,
            target: absolute(&m.container_path),
            readonly: m.readonly,
            recursive_readonly: m.recursive_read_only,
            propagation: match m.propagation() {
                MountPropagation::PropagationPrivate => Propagation::Private,
                MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
                MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
            },
            attrs,
            shifted: !m.uid_mappings.is_empty(),
        })
    }
}

/// What an image is looked up by: what was pulled, else what was asked for.
pub(crate) fn image_key(image: &v1::ImageSpec) -> &str {
    if image.image_ref.is_empty() { &image.image } else { &image.image_ref }
}

fn plain_bind(source: PathBuf, target: PathBuf, readonly: bool) -> BindMount {
    BindMount {
        source: MountSource::Host(source),
        target,
        readonly,
        recursive_readonly: false,
        propagation: Propagation::Private,
        attrs: 0,
        shifted: false,
    }
}

fn absolute(path: &str) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.split('/').filter(|p| !p.is_empty() && *p != "." && *p != "..") {
        out.push(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(command: &[&str], args: &[&str]) -> ContainerConfig {
        let own = |l: &[&str]| l.iter().map(ToString::to_string).collect();
        ContainerConfig { command: own(command), args: own(args), ..ContainerConfig::default() }
    }

    #[test]
    fn command_and_arguments_replace_the_images_as_kubernetes_documents() {
        let image = ImageConfig { entrypoint: vec!["/ep".into()], cmd: vec!["x".into()], ..ImageConfig::default() };
        for (command, args, want) in [
            (&[][..], &[][..], &["/ep", "x"][..]),
            (&["/c"], &[], &["/c"]),
            (&[], &["a"], &["/ep", "a"]),
            (&["/c"], &["a"], &["/c", "a"]),
        ] {
            assert_eq!(argv(&config(command, args), &image).unwrap(), want);
        }
        assert!(argv(&config(&[], &[]), &ImageConfig::default()).is_err());
    }

    #[test]
    fn the_user_is_the_pods_before_the_images_and_a_group_needs_a_user() {
        let image = ImageConfig { user: "web".into(), ..ImageConfig::default() };
        let s = |user: Option<i64>, name: &str, group: Option<i64>| LinuxContainerSecurityContext {
            run_as_user: user.map(|value| v1::Int64Value { value }),
            run_as_group: group.map(|value| v1::Int64Value { value }),
            run_as_username: name.into(),
            ..LinuxContainerSecurityContext::default()
        };
        assert_eq!(user_string(&s(None, "", None), &image).unwrap(), "web");
        assert_eq!(user_string(&s(Some(7), "", Some(8)), &image).unwrap(), "7:8");
        assert_eq!(user_string(&s(Some(0), "", None), &image).unwrap(), "0");
        assert_eq!(user_string(&s(None, "u", Some(8)), &image).unwrap(), "u:8");
        assert!(user_string(&s(None, "", Some(8)), &image).is_err());
    }

    #[test]
    fn signals_have_many_names() {
        for (name, number) in
            [("SIGTERM", 15), ("term", 15), ("9", 9), ("SIGRTMIN+3", 37), ("RTMAX-1", 63), ("SIGCLD", 17)]
        {
            assert_eq!(signal_number(name), Some(number), "{name}");
        }
        assert_eq!(signal_number("SIGNOPE"), None);
        assert_eq!(signal_number("99"), None);
        assert_eq!(signal_value("SIGRTMIN+3"), Signal::Sigrtminplus3);
        let c = ContainerConfig { stop_signal: Signal::Sigrtmaxminus2 as i32, ..ContainerConfig::default() };
        assert_eq!(stop_signal(&c, &ImageConfig::default()), "SIGRTMAX-2");
    }
}
