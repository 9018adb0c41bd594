//! Who a process runs as and what it executes, resolved inside the container's root.

use std::path::Path;

use super::{LaunchError, child::Rlimit};
use crate::sys::{
    caps::Caps,
    seccomp::Filter,
    userdb::{Identity, UserDb},
};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process as asked for.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// Command and arguments.
    pub argv: Vec<String>,
    /// `KEY=value`; a later one wins.
    pub env: Vec<String>,
    /// Working directory; made when absent.
    pub cwd: String,
    /// `user[:group]` as names or numbers; empty: root.
    pub user: String,
    /// Further groups.
    pub supplemental_groups: Vec<u32>,
    /// Take no groups from the image's `/etc/group`.
    pub strict_groups: bool,
    /// All capability sets, and the bounding set.
    pub caps: Caps,
    /// `allowPrivilegeEscalation: false`.
    pub no_new_privs: bool,
    /// `None`: unconfined.
    pub seccomp: Option<Filter>,
    /// Resource, soft and hard limit.
    pub rlimits: Vec<(i32, u64, u64)>,
    /// Relative to what the bridge has when it cannot be lowered.
    pub oom_score_adj: Option<i32>,
    /// A terminal on stdin, stdout and stderr.
    pub tty: bool,
    /// For `HOSTNAME`.
    pub hostname: String,
}

/// The same, with what only the container's root could tell.
#[derive(Debug, Clone)]
pub struct ResolvedProcess {
    /// User and groups; the primary group is the first of the groups.
    pub identity: Identity,
    pub(crate) env: Vec<String>,
    pub(crate) programs: Vec<String>,
}

impl ProcessSpec {
    /// Looks up user, groups, home and the command's candidates under `root`.
    ///
    /// # Errors
    /// [`LaunchError::Invalid`].
    pub fn resolve(&self, root: &Path) -> Result<ResolvedProcess, LaunchError> {
        let db = UserDb::of_root(root);
        let mut identity = db.resolve(&self.user).map_err(LaunchError::Invalid)?;
        let mut groups = vec![identity.gid];
        if !self.strict_groups {
            groups.append(&mut identity.groups);
        }
        groups.extend(&self.supplemental_groups);
        let mut seen = std::collections::BTreeSet::new();
        groups.retain(|g| seen.insert(*g));
        identity.groups = groups;
        let env = self.environment(&identity);
        let Some(command) = self.argv.first().filter(|c| !c.is_empty()) else {
            return Err(LaunchError::Invalid("no command specified".into()));
        };
        let programs = if command.contains('/') {
            vec![command.clone()]
        } else {
            let path = env.iter().rev().find_map(|e| e.strip_prefix("PATH=")).unwrap_or_default();
            path.split(':').filter(|d| !d.is_empty()).map(|d| format!("{d}/{command}")).collect()
        };
        Ok(ResolvedProcess { identity, env, programs })
    }

    fn environment(&self, identity: &Identity) -> Vec<String> {
        let mut env: Vec<String> = Vec::with_capacity(self.env.len() + 4);
        let has = |env: &[String], key: &str| env.iter().chain(&self.env).any(|e| e.starts_with(key));
        if !has(&env, "PATH=") {
            env.push(DEFAULT_PATH.into());
        }
        if !self.hostname.is_empty() && !has(&env, "HOSTNAME=") {
            env.push(format!("HOSTNAME={}", self.hostname));
        }
        if self.tty && !has(&env, "TERM=") {
            env.push("TERM=xterm".into());
        }
        for entry in &self.env {
            let key = entry.split_once('=').map_or(entry.as_str(), |(k, _)| k);
            if let Some(old) = env.iter_mut().find(|e| e.split_once('=').is_some_and(|(k, _)| k == key)) {
                old.clone_from(entry);
            } else {
                env.push(entry.clone());
            }
        }
        if !has(&env, "HOME=") {
            let home = identity.home.as_deref().filter(|h| !h.is_empty()).unwrap_or("/");
            env.push(format!("HOME={home}"));
        }
        env
    }

    pub(crate) fn limits(&self) -> Vec<(i32, Rlimit)> {
        self.rlimits.iter().map(|(r, soft, hard)| (*r, Rlimit { soft: *soft, hard: *hard })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(
            dir.path().join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nweb:x:1000:1001::/home/web:/bin/sh\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("etc/group"), "extra:x:50000:web\n").unwrap();
        dir
    }

    fn spec(user: &str) -> ProcessSpec {
        ProcessSpec { argv: vec!["app".into()], user: user.into(), ..ProcessSpec::default() }
    }

    #[test]
    fn the_primary_group_comes_first_and_strict_leaves_the_image_out() {
        let dir = root();
        let groups = |s: ProcessSpec| s.resolve(dir.path()).unwrap().identity.groups;
        let with = |strict| ProcessSpec { supplemental_groups: vec![7, 1001], strict_groups: strict, ..spec("web") };
        assert_eq!(groups(with(false)), [1001, 50000, 7]);
        assert_eq!(groups(with(true)), [1001, 7]);
    }

    #[test]
    fn the_environment_has_defaults_and_the_last_value_wins() {
        let dir = root();
        let s = ProcessSpec {
            env: vec!["A=1".into(), "PATH=/x:/y".into(), "A=2".into()],
            hostname: "h".into(),
            ..spec("web")
        };
        let r = s.resolve(dir.path()).unwrap();
        assert_eq!(r.env, ["HOSTNAME=h", "A=2", "PATH=/x:/y", "HOME=/home/web"]);
        assert_eq!(r.programs, ["/x/app", "/y/app"]);
        assert_eq!(spec("").resolve(dir.path()).unwrap().env, [DEFAULT_PATH, "HOME=/root"]);
    }
}
