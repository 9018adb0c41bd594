//! Users and groups of a root file system, from its own `/etc/passwd` and `/etc/group`. Lookups never fail on junk
//! lines: an image may hold anything.

use std::{fs, io::Read, path::Path};

const MAX_BYTES: u64 = 4 << 20;

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory.
    pub home: String,
}

/// Both files, read at once.
#[derive(Debug, Default)]
pub struct UserDb {
    users: Vec<User>,
    groups: Vec<(String, u32, Vec<String>)>,
}

/// Who a process runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups, in the order they were found.
    pub groups: Vec<u32>,
    /// Home directory, for `HOME`.
    pub home: Option<String>,
}

fn read(path: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let _ = file.take(MAX_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

impl UserDb {
    /// Reads the files under `root`.
    pub fn of_root(root: &Path) -> Self {
        Self::parse(&read(&root.join("etc/passwd")), &read(&root.join("etc/group")))
    }

    /// Parses both files.
    pub fn parse(passwd: &str, group: &str) -> Self {
        let users = passwd.lines().filter_map(|line| {
            let f: Vec<&str> = line.split(':').collect();
            let (uid, gid) = (f.get(2)?.parse().ok()?, f.get(3)?.parse().ok()?);
            Some(User {
                name: (*f.first()?).to_owned(),
                uid,
                gid,
                home: f.get(5).map(|h| (*h).to_owned()).unwrap_or_default(),
            })
        });
        let groups = group.lines().filter_map(|line| {
            let f: Vec<&str> = line.split(':').collect();
            let members = f.get(3).unwrap_or(&"").split(',').map(str::trim).filter(|m| !m.is_empty());
            Some(((*f.first()?).to_owned(), f.get(2)?.parse().ok()?, members.map(ToOwned::to_owned).collect()))
        });
        Self { users: users.collect(), groups: groups.collect() }
    }

    /// A user by name or number.
    pub fn user(&self, name_or_id: &str) -> Option<&User> {
        let by_name = self.users.iter().find(|u| u.name == name_or_id);
        by_name.or_else(|| name_or_id.parse().ok().and_then(|id: u32| self.users.iter().find(|u| u.uid == id)))
    }

    fn group(&self, name_or_id: &str) -> Option<u32> {
        name_or_id.parse().ok().or_else(|| self.groups.iter().find(|g| g.0 == name_or_id).map(|g| g.1))
    }

    /// Groups that list the user as a member.
    pub fn groups_of(&self, user: &str) -> Vec<u32> {
        self.groups.iter().filter(|g| g.2.iter().any(|m| m == user)).map(|g| g.1).collect()
    }

    /// Resolves `user[:group]`, as images and `run_as_username` write it.
    ///
    /// # Errors
    /// The sentence runc would print.
    pub fn resolve(&self, spec: &str) -> Result<Identity, String> {
        let (user, group) = spec.split_once(':').map_or((spec, None), |(u, g)| (u, Some(g)));
        let mut id = if user.is_empty() {
            Identity { home: self.user("0").map(|u| u.home.clone()), ..Identity::default() }
        } else if let Some(found) = self.user(user) {
            let groups = self.groups_of(&found.name);
            Identity { uid: found.uid, gid: found.gid, groups, home: Some(found.home.clone()) }
        } else {
            let uid = user
                .parse()
                .map_err(|_| "unable to find user ".to_owned() + user + ": no matching entries in passwd file")?;
            Identity { uid, ..Identity::default() }
        };
        if let Some(group) = group {
            id.gid = self
                .group(group)
                .ok_or_else(|| "unable to find group ".to_owned() + group + ": no matching entries in group file")?;
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn db() -> UserDb {
        UserDb::parse(
            "root:x:0:0:root:/root:/bin/sh\njunk\nweb:x:1000:1001::/home/web:/bin/sh\n",
            "root:x:0:\nweb:x:1001:\nextra:x:50000:web,other\nbad:x:y:web\n",
        )
    }

    #[test]
    fn names_numbers_and_groups_resolve_as_an_image_writes_them() {
        let id = |s| db().resolve(s).map(|i| (i.uid, i.gid, i.groups));
        assert_eq!(id(""), Ok((0, 0, vec![])));
        assert_eq!(id("web"), Ok((1000, 1001, vec![50000])));
        assert_eq!(id("1000"), Ok((1000, 1001, vec![50000])));
        assert_eq!(id("4242"), Ok((4242, 0, vec![])));
        assert_eq!(id("web:extra"), Ok((1000, 50000, vec![50000])));
        assert_eq!(id("4242:7"), Ok((4242, 7, vec![])));
        assert!(id("nobody").unwrap_err().contains("no matching entries in passwd file"));
        assert!(id("web:none").unwrap_err().contains("no matching entries in group file"));
    }
}
