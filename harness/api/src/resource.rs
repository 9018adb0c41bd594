//! Which resource a call is about.

use k8s_openapi::{Metadata, NamespaceResourceScope, Resource, ResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use crate::meta::ObjectMeta;

/// A typed Kubernetes object with ordinary metadata: everything a typed client can carry.
pub trait KubeType:
    Resource<Scope: ResourceScope + 'static>
    + Metadata<Ty = ObjectMeta>
    + Clone
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}
impl<T> KubeType for T where
    T: Resource<Scope: ResourceScope + 'static>
        + Metadata<Ty = ObjectMeta>
        + Clone
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// A resource as the API names it: `group/version`, plural, kind and scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceRef {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version inside the group, e.g. `v1`.
    pub version: &'static str,
    /// Lower-case plural used in URLs, e.g. `pods`.
    pub plural: &'static str,
    /// Kind used in objects, e.g. `Pod`.
    pub kind: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

impl ResourceRef {
    /// The resource of a `k8s-openapi` type.
    pub fn of<K: KubeType>() -> Self {
        let namespaced = std::any::TypeId::of::<K::Scope>() == std::any::TypeId::of::<NamespaceResourceScope>();
        Self { group: K::GROUP, version: K::VERSION, plural: K::URL_PATH_SEGMENT, kind: K::KIND, namespaced }
    }

    /// `v1` or `group/v1`, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The URL path of the collection, or of one object when `name` is given, or of its subresource.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let (true, Some(ns)) = (self.namespaced, namespace) {
            path.push_str("/namespaces/");
            path.push_str(ns);
        }
        for part in [Some(self.plural), name, subresource].into_iter().flatten() {
            path.push('/');
            path.push_str(part);
        }
        path
    }
}
