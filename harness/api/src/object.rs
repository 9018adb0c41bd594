//! The dynamic object: what the store keeps and the in-process client passes by `Arc`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ApiError, KubeType, meta::ObjectMeta};

/// One API object of any kind, as a JSON tree with ordered keys.
///
/// `apiVersion` and `kind` are always set on objects that leave the API server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Value);

impl Object {
    /// Builds the dynamic form of a typed object; sets `apiVersion` and `kind`.
    ///
    /// # Errors
    /// [`ApiError`] with reason `BadRequest` when the value does not serialise to a JSON object.
    pub fn from_typed<K: KubeType>(value: &K) -> Result<Self, ApiError> {
        let mut tree = serde_json::to_value(value).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let map = tree.as_object_mut().ok_or_else(|| ApiError::bad_request("object expected"))?;
        map.insert("apiVersion".into(), K::API_VERSION.into());
        map.insert("kind".into(), K::KIND.into());
        Ok(Self(tree))
    }

    /// Reads the object as a typed one, without going through JSON text.
    ///
    /// # Errors
    /// [`ApiError`] with reason `BadRequest` naming the field that does not fit.
    pub fn to_typed<K: KubeType>(&self) -> Result<K, ApiError> {
        K::deserialize(&self.0).map_err(|e| ApiError::bad_request(format!("{}: {e}", K::KIND)))
    }

    /// The string at a path of object keys, if there is one.
    pub fn str_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path).and_then(Value::as_str)
    }

    /// The value at a path of object keys, if there is one.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.0, |v, key| v.get(key))
    }

    /// `metadata.name`, or the empty string.
    pub fn name(&self) -> &str {
        self.str_at(&["metadata", "name"]).unwrap_or_default()
    }

    /// `metadata.namespace`, if set.
    pub fn namespace(&self) -> Option<&str> {
        self.str_at(&["metadata", "namespace"])
    }

    /// `metadata.uid`, or the empty string.
    pub fn uid(&self) -> &str {
        self.str_at(&["metadata", "uid"]).unwrap_or_default()
    }

    /// `metadata.resourceVersion` as a number; 0 when unset.
    pub fn resource_version(&self) -> u64 {
        self.str_at(&["metadata", "resourceVersion"]).and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    /// The metadata as a typed value.
    ///
    /// # Errors
    /// [`ApiError`] with reason `BadRequest` when a metadata field has the wrong type.
    pub fn meta(&self) -> Result<ObjectMeta, ApiError> {
        match self.0.get("metadata") {
            None => Ok(ObjectMeta::default()),
            Some(m) => ObjectMeta::deserialize(m).map_err(|e| ApiError::bad_request(format!("metadata: {e}"))),
        }
    }

    /// The metadata map, created when absent; a value that is not an object is replaced by an empty one.
    pub fn meta_mut(&mut self) -> &mut Map<String, Value> {
        map_in(map_of(&mut self.0), "metadata")
    }
}

/// `value` as a map, replacing anything else by an empty map.
fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object in the line above")
}

/// The map under `key`, created when absent.
fn map_in<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    map_of(map.entry(key).or_insert_with(|| Value::Object(Map::new())))
}
