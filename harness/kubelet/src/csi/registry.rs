//! Which drivers have registered, and how plugins are reached.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{CsiError, CsiNode, NodeCapabilities};

/// What a plugin says of itself at registration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin` or `DRAPlugin`.
    pub kind: String,
    /// Driver name.
    pub name: String,
    /// Socket of the driver; the registration socket's own when empty.
    pub endpoint: String,
    /// Versions it speaks.
    pub versions: Vec<String>,
}

/// How plugins are reached: the registration service on its socket, and the driver behind it.
#[async_trait]
pub trait Plugins: Send + Sync + 'static {
    /// GetInfo on a registration socket.
    async fn info(&self, socket: &Path) -> Result<PluginInfo, CsiError>;
    /// NotifyRegistrationStatus; `error` is empty on success.
    async fn notify(&self, socket: &Path, error: &str) -> Result<(), CsiError>;
    /// The node service at an endpoint.
    async fn connect(&self, endpoint: &Path) -> Result<Arc<dyn CsiNode>, CsiError>;
}

/// A registered driver.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) node: Arc<dyn CsiNode>,
    pub(crate) capabilities: NodeCapabilities,
    pub(crate) socket: PathBuf,
}

/// Drivers by name.
#[derive(Default)]
pub(crate) struct Drivers(Mutex<BTreeMap<String, Driver>>);

impl Drivers {
    /// A registered driver.
    pub(crate) async fn node(&self, name: &str) -> Result<Driver, CsiError> {
        self.0.lock().get(name).cloned().ok_or_else(|| CsiError::NotRegistered(name.to_owned()))
    }

    /// Adds a driver, or replaces the one of the same name.
    pub(crate) fn add(&self, name: &str, driver: Driver) {
        self.0.lock().insert(name.to_owned(), driver);
    }

    /// Removes the driver that registered through a socket; its name.
    pub(crate) fn remove(&self, socket: &Path) -> Option<String> {
        let mut all = self.0.lock();
        let name = all.iter().find(|(_, d)| d.socket == socket).map(|(n, _)| n.clone())?;
        all.remove(&name);
        Some(name)
    }
}
