//! Which hierarchies this process sees, and where in them it may work.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Group;

/// Which interface the limits are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy a controller (or set of controllers).
    V1,
    /// One hierarchy for all.
    V2,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub version: Version,
    pub controllers: Vec<String>,
    /// Directory of the base group.
    pub base: PathBuf,
    /// Groups appear here only when a limit needs it.
    pub lazy: bool,
}

/// The hierarchies in use and the base group below which everything is made. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cgroups {
    pub(crate) hierarchies: Arc<Vec<Hierarchy>>,
}

const WANTED: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "cpuset"];

impl Cgroups {
    /// Reads `/proc/self`. `base` names the group to work below as seen from the mount points; without one it is this
    /// process's own group, in each hierarchy.
    ///
    /// # Errors
    /// When there is no usable hierarchy, or the files cannot be read.
    pub fn detect(base: Option<&str>) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let unified_has = |dir: &Path| fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        let hierarchies = parse(&mounts, &own, base, unified_has);
        if hierarchies.is_empty() {
            return Err(io::Error::other(
                "no cgroup hierarchy is mounted (a version 1 one with a memory or cpu controller, or version 2)",
            ));
        }
        Ok(Self { hierarchies: Arc::new(hierarchies) })
    }

    /// The version whose files hold the limits.
    pub fn version(&self) -> Version {
        self.hierarchies.first().map_or(Version::V1, |h| h.version)
    }

    /// This process's own group in the unified hierarchy.
    ///
    /// # Errors
    /// When `/proc/self/cgroup` cannot be read.
    pub fn own_path() -> io::Result<String> {
        Ok(own_path(&fs::read_to_string("/proc/self/cgroup")?, str::is_empty).to_owned())
    }

    /// A group by its path below the base; a leading slash does not matter, `..` is dropped.
    pub fn group(&self, path: &str) -> Group {
        let clean: Vec<&str> = path.split('/').filter(|s| !s.is_empty() && *s != "." && *s != "..").collect();
        Group { all: self.clone(), path: clean.join("/") }
    }

    pub(crate) fn hierarchy(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.controllers.iter().any(|c| c == controller))
    }
}

fn parse(mounts: &str, own: &str, base: Option<&str>, unified: impl Fn(&Path) -> String) -> Vec<Hierarchy> {
    let mut v1 = Vec::<Hierarchy>::new();
    let mut v2 = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (Some(root), Some(point), Some(kind)) = (left.get(3), left.get(4), right.first()) else { continue };
        let point = Path::new(point);
        let options: Vec<String> = right.last().unwrap_or(&"").split(',').map(ToOwned::to_owned).collect();
        if *kind == "cgroup" {
            let controllers: Vec<String> = options.into_iter().filter(|o| WANTED.contains(&o.as_str())).collect();
            // A later mount of the same hierarchy is a bind or a shadow; the first one is as good.
            if controllers.is_empty() || v1.iter().any(|h| h.controllers == controllers) {
                continue;
            }
            let path = own_path(own, |names| names.split(',').any(|n| n == controllers[0]));
            let lazy = controllers == ["cpuset"];
            v1.push(Hierarchy { version: Version::V1, base: at(point, root, base.unwrap_or(path)), controllers, lazy });
        } else if *kind == "cgroup2" && v2.is_none() {
            let controllers: Vec<String> = unified(point).split_ascii_whitespace().map(ToOwned::to_owned).collect();
            let path = own_path(own, str::is_empty);
            v2 = Some(Hierarchy {
                version: Version::V2,
                base: at(point, root, base.unwrap_or(path)),
                controllers,
                lazy: false,
            });
        }
    }
    let main = |h: &Hierarchy| h.controllers.iter().any(|c| c == "memory" || c == "cpu");
    if v1.iter().any(main) {
        // The memory hierarchy first: it answers for what a group contains.
        v1.sort_by_key(|h| WANTED.iter().position(|w| h.controllers.iter().any(|c| c == w)));
        v1
    } else {
        // Even one without a controller tells what belongs together; limits then have nowhere to go.
        v2.into_iter().collect()
    }
}

fn own_path(own: &str, is_it: impl Fn(&str) -> bool) -> &str {
    let found = own.lines().find_map(|l| {
        let mut f = l.splitn(3, ':').skip(1);
        let names = f.next()?;
        is_it(names).then(|| f.next()).flatten()
    });
    found.unwrap_or("/")
}

/// The directory of group `path` in a hierarchy whose group `root` is mounted at `point`.
fn at(point: &Path, root: &str, path: &str) -> PathBuf {
    let below = if root == "/" { Some(path) } else { path.strip_prefix(root) };
    let below = below.unwrap_or("").trim_matches('/');
    if below.is_empty() || below.split('/').any(|s| s == "..") { point.to_owned() } else { point.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
35 31 0:32 /jail /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/jail/me\n3:cpuset:/\n1:cpu,cpuacct:/c\n0::/u\n";

    fn bases(h: &[Hierarchy]) -> Vec<(String, bool)> {
        h.iter().map(|h| (h.base.display().to_string(), h.lazy)).collect()
    }

    #[test]
    fn a_hybrid_boot_is_version_1_with_memory_first_and_cpuset_on_demand() {
        let got = parse(V1, OWN, None, |_| String::new());
        let want = [
            ("/sys/fs/cgroup/memory/me", false),
            ("/sys/fs/cgroup/cpu,cpuacct/c", false),
            ("/sys/fs/cgroup/cpuset", true),
        ];
        assert_eq!(bases(&got), want.map(|(p, l)| (p.to_owned(), l)));
    }

    #[test]
    fn a_unified_boot_is_version_2_below_the_given_base() {
        let got = parse("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/u\n", Some("/x/y"), |_| {
            "cpu memory pids".into()
        });
        assert_eq!((got[0].version, bases(&got)), (Version::V2, vec![("/sys/fs/cgroup/x/y".to_owned(), false)]));
    }

    #[test]
    fn no_path_leaves_the_base() {
        let all = Cgroups { hierarchies: Arc::new(parse(V1, OWN, None, |_| String::new())) };
        assert_eq!(all.group("/../../etc/./a").path(), "etc/a");
        assert_eq!(all.group("a").child("b").path(), "a/b");
    }
}
