//! Services: the proxy of a node (ClusterIP and NodePort by nftables) and the cluster's DNS server.
#![deny(missing_docs)]

pub mod dns;
pub mod proxy;
