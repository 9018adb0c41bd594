//! Configuration lists on disk: the lexically first of `*.conflist`, `*.conf`, `*.json`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::types::{NetConf, VERSIONS};

/// Largest configuration file read.
const MAX_FILE: u64 = 4 << 20;

/// Why no list could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory holds no configuration.
    #[error("no network config found in {0}")]
    None(PathBuf),
    /// A file could not be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file makes no sense.
    #[error("network config {path}: {why}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// A network: an ordered list of plugins.
#[derive(Debug, Clone)]
pub struct ConfList {
    /// Network name.
    pub name: String,
    /// Highest version both sides know.
    pub version: String,
    /// Skip CHECK.
    pub disable_check: bool,
    /// Skip GC.
    pub disable_gc: bool,
    /// The plugins, in ADD order.
    pub plugins: Vec<NetConf>,
}

impl ConfList {
    /// Loads the network of a configuration directory.
    ///
    /// # Errors
    /// [`LoadError`]; an empty or missing directory is [`LoadError::None`].
    pub fn load_dir(dir: &Path) -> Result<Self, LoadError> {
        let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
        let wanted = |p: &PathBuf| {
            p.extension().and_then(|e| e.to_str()).is_some_and(|e| matches!(e, "conflist" | "conf" | "json"))
        };
        let first = names.filter(wanted).min().ok_or_else(|| LoadError::None(dir.to_owned()))?;
        Self::load(&first)
    }

    /// Loads one file: a list, or a single plugin's configuration as a list of one.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let fail = |source| LoadError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(fail)?.len() > MAX_FILE {
            return Err(LoadError::Invalid { path: path.to_owned(), why: "file is too large".into() });
        }
        let text = fs::read_to_string(path).map_err(fail)?;
        Self::parse(&text).map_err(|why| LoadError::Invalid { path: path.to_owned(), why })
    }

    /// Reads a list from JSON text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let tree: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let text_at = |key: &str| tree.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |key: &str| match tree.get(key) {
            Some(Value::Bool(b)) => *b,
            Some(Value::String(s)) => s.eq_ignore_ascii_case("true"),
            _ => false,
        };
        let name = text_at("name");
        let word = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(word) {
            return Err(format!("invalid network name {name:?}"));
        }
        let plugins: Vec<NetConf> = match tree.get("plugins") {
            Some(list) => serde_json::from_value(list.clone()).map_err(|e| format!("plugins: {e}"))?,
            None => vec![serde_json::from_value(tree.clone()).map_err(|e| e.to_string())?],
        };
        if plugins.is_empty() || plugins.iter().any(|p| p.kind.is_empty()) {
            return Err("every plugin needs a type, and there must be at least one".into());
        }
        let offered = tree.get("cniVersions").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let rank = |v: &str| VERSIONS.iter().position(|known| *known == v);
        let declared = text_at("cniVersion");
        let best = offered.chain([declared.as_str()]).filter_map(rank).max();
        let version = match best {
            Some(i) => VERSIONS[i].to_owned(),
            None if declared.is_empty() => VERSIONS[0].to_owned(),
            None => return Err(format!("unsupported cniVersion {declared:?}")),
        };
        Ok(Self { name, version, disable_check: flag("disableCheck"), disable_gc: flag("disableGC"), plugins })
    }
}
