//! Addresses and ports of Services. Source: k/k pkg/registry/core/service/storage/alloc.go.

use std::{net::Ipv4Addr, ops::RangeInclusive, sync::Arc};

use podlab_api::ApiError;
use podlab_store::Stored;
use serde_json::{Value, json};

use crate::{
    context::Context,
    field::Errors,
    kinds::{Kind, registry},
    server::{Allocations, ApiServer},
    tree::{each_mut, has, int, list, put, text},
};

impl ApiServer {
    /// Stores a new Service with its addresses and ports, and gives them back when that fails.
    pub(crate) async fn create_service(
        &self,
        cx: &Context,
        kind: &Kind,
        key: &str,
        mut service: Value,
    ) -> Result<Arc<Stored>, ApiError> {
        if let Some(stored) = self.store.get(key) {
            return Err(crate::errors::already_exists(kind, stored.object.name()));
        }
        self.allocate(&mut service)?;
        let held = service.clone();
        let result = self.store_new(cx, kind, key, service).await;
        if result.is_err() || cx.dry_run {
            self.release_service(&held);
        }
        result
    }

    /// Gives a Service what its type needs.
    ///
    /// # Errors
    /// 422 for an address or port that is taken or out of range, 500 when there are none left.
    pub(crate) fn allocate(&self, service: &mut Value) -> Result<(), ApiError> {
        let kind = text(service, "spec.type").to_owned();
        if kind == "ExternalName" {
            return Ok(());
        }
        let name = text(service, "metadata.name").to_owned();
        let mut held = self.services.lock();
        let mut errors = Errors::default();
        let asked = text(service, "spec.clusterIP").to_owned();
        if !list(service, "spec.clusterIPs").is_empty() && asked.is_empty() {
            put(service, "spec.clusterIP", list(service, "spec.clusterIPs")[0].clone());
        }
        let asked = text(service, "spec.clusterIP").to_owned();
        let address = if asked == "None" {
            "None".to_owned()
        } else if asked.is_empty() {
            let free = self.free_address(&held);
            free.ok_or_else(|| ApiError::internal("Internal error occurred: failed to allocate IP: range is full"))?
                .to_string()
        } else {
            match asked.parse::<Ipv4Addr>() {
                Ok(ip) if !self.in_range(ip) => {
                    let (base, bits) = self.config.service_range;
                    let why = format!(
                        "failed to allocate IP {asked}: the provided IP ({asked}) is not in the valid range. The range \
                         of valid IPs is {base}/{bits}"
                    );
                    errors.invalid("spec.clusterIPs", json!([asked]), &why);
                }
                Ok(ip) if held.addresses.contains(&ip) => {
                    let why = format!("failed to allocate IP {asked}: provided IP is already allocated");
                    errors.invalid("spec.clusterIPs", json!([asked]), &why);
                }
                Ok(_) => {}
                Err(_) => errors.invalid(
                    "spec.clusterIPs[0]",
                    asked.as_str(),
                    "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                ),
            }
            asked
        };
        let mut taken = Vec::new();
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            for (i, port) in each_mut(service, "spec.ports").enumerate() {
                let asked = int(port, "nodePort").unwrap_or(0);
                let number = if asked == 0 {
                    let free = self.free_port(&held.node_ports, &taken);
                    free.ok_or_else(|| {
                        ApiError::internal("Internal error occurred: failed to allocate a nodePort: range is full")
                    })?
                } else {
                    let field = format!("spec.ports[{i}].nodePort");
                    let range = &self.config.node_ports;
                    match u16::try_from(asked) {
                        Ok(n) if range.contains(&n) && !held.node_ports.contains(&n) => n,
                        Ok(n) if range.contains(&n) => {
                            errors.invalid(field, asked, "provided port is already allocated");
                            continue;
                        }
                        _ => {
                            let why = format!(
                                "provided port is not in the valid range. The range of valid ports is {}-{}",
                                range.start(),
                                range.end()
                            );
                            errors.invalid(field, asked, &why);
                            continue;
                        }
                    }
                };
                taken.push(number);
                put(port, "nodePort", number);
            }
        }
        errors.into_result("Service", "", &name)?;
        put(service, "spec.clusterIP", address.as_str());
        put(service, "spec.clusterIPs", json!([address]));
        if !has(service, "spec.ipFamilies") {
            put(service, "spec.ipFamilies", json!(["IPv4"]));
        }
        if !has(service, "spec.ipFamilyPolicy") {
            put(service, "spec.ipFamilyPolicy", "SingleStack");
        }
        held.note(service);
        Ok(())
    }

    /// Gives back what a Service held.
    pub(crate) fn release_service(&self, service: &Value) {
        let mut held = self.services.lock();
        if let Ok(ip) = text(service, "spec.clusterIP").parse() {
            held.addresses.remove(&ip);
        }
        for port in list(service, "spec.ports").iter().filter_map(|p| int(p, "nodePort")) {
            if let Ok(port) = u16::try_from(port) {
                held.node_ports.remove(&port);
            }
        }
    }

    /// Learns at start what the stored Services hold.
    pub(crate) fn load_service_allocations(&self) {
        let kind = registry().core("services");
        if let Ok(listing) = self.store.list(&kind.prefix, None) {
            let mut held = self.services.lock();
            listing.items.iter().for_each(|(_, stored)| held.note(&stored.object.0));
        }
    }

    fn in_range(&self, ip: Ipv4Addr) -> bool {
        self.range().contains(&u32::from(ip))
    }

    /// Usable addresses: without the network's own and the broadcast one.
    fn range(&self) -> RangeInclusive<u32> {
        let (base, bits) = self.config.service_range;
        let size = 1_u32.checked_shl(32 - u32::from(bits.clamp(8, 30))).unwrap_or(4);
        let first = u32::from(base) & !(size - 1);
        first + 1..=first + size - 2
    }

    /// A free address, not from the lower band that is kept for those who ask for one.
    fn free_address(&self, held: &Allocations) -> Option<Ipv4Addr> {
        let range = self.range();
        let (first, count) = (*range.start(), range.end() - range.start() + 1);
        let reserved = (count / 16).clamp(16, 256).min(count / 2);
        let upper = count - reserved;
        let offset = u32::try_from(self.rng.below(u64::from(upper))).unwrap_or(0);
        let candidates = (0..upper).map(|i| first + reserved + (offset + i) % upper);
        candidates.chain(first..first + reserved).map(Ipv4Addr::from).find(|ip| !held.addresses.contains(ip))
    }

    fn free_port(&self, held: &std::collections::BTreeSet<u16>, taken: &[u16]) -> Option<u16> {
        let (first, last) = (*self.config.node_ports.start(), *self.config.node_ports.end());
        let count = u64::from(last - first) + 1;
        let offset = self.rng.below(count);
        (0..count)
            .filter_map(|i| u16::try_from(u64::from(first) + (offset + i) % count).ok())
            .find(|port| !held.contains(port) && !taken.contains(port))
    }
}

impl Allocations {
    pub(crate) fn note(&mut self, service: &Value) {
        if let Ok(ip) = text(service, "spec.clusterIP").parse() {
            self.addresses.insert(ip);
        }
        for port in list(service, "spec.ports").iter().filter_map(|p| int(p, "nodePort")) {
            if let Some(port) = u16::try_from(port).ok().filter(|p| *p != 0) {
                self.node_ports.insert(port);
            }
        }
    }
}
