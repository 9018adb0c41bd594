//! The objects every cluster has from its first moment.
//! Source: k/k pkg/controlplane/controller, plugin/pkg/auth/authorizer/rbac/bootstrappolicy.

use podlab_api::ApiError;
use serde_json::{Value, json};

use crate::{
    context::Context,
    kinds::registry,
    server::{ApiServer, StartError},
    tree::text,
};

impl ApiServer {
    /// Makes what is missing.
    pub(crate) async fn bootstrap(&self) -> Result<(), StartError> {
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            self.ensure(None, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
        }
        for (name, value, description) in [
            (
                "system-cluster-critical",
                2_000_000_000,
                "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            ),
            (
                "system-node-critical",
                2_000_001_000,
                "Used for system critical pods that must not be moved from their current node.",
            ),
        ] {
            let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": name}, "value": value, "description": description});
            self.ensure(None, class).await?;
        }
        for role in roles() {
            self.ensure(None, role).await?;
        }
        self.ensure_kubernetes_service().await
    }

    /// Makes the `kubernetes` Service, and what is behind it, as it should be.
    pub(crate) async fn ensure_kubernetes_service(&self) -> Result<(), StartError> {
        let (base, _) = self.config.service_range;
        let address = std::net::Ipv4Addr::from(u32::from(base) + 1).to_string();
        let target = self.config.advertise.map_or(6443, |(_, port)| port);
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
            "spec": {"clusterIP": address, "ports": [
                {"name": "https", "port": 443, "protocol": "TCP", "targetPort": target}]}});
        self.ensure(Some("default"), service).await?;
        let Some((ip, port)) = self.config.advertise else { return Ok(()) };
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": ip.to_string()}],
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": if ip.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{"addresses": [ip.to_string()], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
        self.replace(Some("default"), endpoints).await?;
        self.replace(Some("default"), slice).await
    }

    /// Creates an object unless it is there.
    async fn ensure(&self, namespace: Option<&str>, object: Value) -> Result<(), StartError> {
        let what = format!("{} {}", text(&object, "kind"), text(&object, "metadata.name"));
        let registry = registry();
        let missing = || StartError::Bootstrap { what: what.clone(), source: ApiError::internal("no such kind") };
        let kind = registry.by_kind(text(&object, "apiVersion"), text(&object, "kind")).ok_or_else(missing)?;
        if self.store.get(&kind.key(namespace, text(&object, "metadata.name"))).is_some() {
            return Ok(());
        }
        match self.create_object(&Context::loopback(), kind, namespace, object).await {
            Err(source) if !source.is_already_exists() => Err(StartError::Bootstrap { what, source }),
            _ => Ok(()),
        }
    }

    /// Creates an object, or puts it in place of the one there: the address of a restarted server may differ.
    async fn replace(&self, namespace: Option<&str>, object: Value) -> Result<(), StartError> {
        let what = format!("{} {}", text(&object, "kind"), text(&object, "metadata.name"));
        self.ensure(namespace, object.clone()).await?;
        let registry = registry();
        let Some(kind) = registry.by_kind(text(&object, "apiVersion"), text(&object, "kind")) else { return Ok(()) };
        let name = text(&object, "metadata.name").to_owned();
        let change = crate::machine::Change::Put(object);
        match self.update_object(&Context::loopback(), kind, namespace, &name, None, &change).await {
            Ok(_) => Ok(()),
            Err(source) => Err(StartError::Bootstrap { what, source }),
        }
    }
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": RBAC, "kind": "ClusterRole", "rules": rules,
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}})
}

fn binding(role: &str, kind: &str, subject: &str) -> Value {
    json!({"apiVersion": RBAC, "kind": "ClusterRoleBinding",
        "metadata": {"name": role, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}]})
}

/// The user-facing roles, and the few bindings that say what everyone may.
fn roles() -> Vec<Value> {
    let all = json!(["*"]);
    let read = json!(["get", "list", "watch"]);
    let write = json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    let core = json!([
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "persistentvolumeclaims",
        "pods",
        "pods/log",
        "pods/status",
        "replicationcontrollers",
        "resourcequotas",
        "serviceaccounts",
        "services",
    ]);
    let workloads = json!([
        {"apiGroups": ["apps", "batch", "discovery.k8s.io", "networking.k8s.io", "policy"], "resources": all, "verbs": read},
        {"apiGroups": [""], "resources": core, "verbs": read},
    ]);
    let edit = json!([
        {"apiGroups": ["apps", "batch", "networking.k8s.io", "policy"], "resources": all, "verbs": write},
        {"apiGroups": [""], "resources": [
            "configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "pods/attach", "pods/exec",
            "pods/portforward", "pods/proxy", "pods/eviction", "replicationcontrollers", "secrets", "serviceaccounts",
            "serviceaccounts/token", "services", "services/proxy"], "verbs": write},
        {"apiGroups": [""], "resources": ["limitranges", "namespaces", "pods/log", "resourcequotas"], "verbs": read},
    ]);
    let mut admin = edit.clone();
    if let Some(rules) = admin.as_array_mut() {
        rules.push(
            json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": write}),
        );
    }
    vec![
        role(
            "cluster-admin",
            json!([
            {"apiGroups": all, "resources": all, "verbs": all}, {"nonResourceURLs": all, "verbs": all}]),
        ),
        role("admin", admin),
        role("edit", edit),
        role("view", workloads),
        role(
            "system:basic-user",
            json!([{"apiGroups": ["authorization.k8s.io"], "verbs": ["create"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]}]),
        ),
        role(
            "system:discovery",
            json!([{"verbs": ["get"], "nonResourceURLs": [
            "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version"]}]),
        ),
        binding("cluster-admin", "Group", "system:masters"),
        binding("system:basic-user", "Group", "system:authenticated"),
        binding("system:discovery", "Group", "system:authenticated"),
    ]
}
