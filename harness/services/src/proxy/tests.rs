//! What the table says, and that the kernel takes it.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

use podlab_api::{core::Service, discovery::EndpointSlice};

use super::{rules, table::Table};

fn service(yaml: &str) -> Arc<Service> {
    Arc::new(serde_json::from_str(yaml).unwrap())
}

fn slice(yaml: &str) -> Arc<EndpointSlice> {
    Arc::new(serde_json::from_str(yaml).unwrap())
}

fn sample() -> Table {
    let s = service(
        r#"{"metadata":{"name":"web","namespace":"d"},"spec":{"clusterIP":"10.96.0.9","clusterIPs":["10.96.0.9"],
        "ports":[{"port":80,"targetPort":8080,"nodePort":30080},{"name":"dns","port":53,"protocol":"UDP"}]}}"#,
    );
    let e = slice(
        r#"{"metadata":{"name":"web-1","namespace":"d","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
        "ports":[{"name":"","protocol":"TCP","port":8080}],
        "endpoints":[{"addresses":["10.244.1.2"],"conditions":{"ready":true}},{"addresses":["10.244.1.3"],"conditions":{"ready":false}}]}"#,
    );
    Table::compute(&[s], &[e], "node-1")
}

#[test]
fn only_ready_endpoints_serve_and_a_port_without_any_is_known() {
    let table = sample();
    let ip = Ipv4Addr::new(10, 96, 0, 9);
    let ready = BTreeSet::from([(Ipv4Addr::new(10, 244, 1, 2), 8080)]);
    assert_eq!(table.fronts.get(&(Some(ip), 6, 80)), Some(&ready));
    assert_eq!(table.fronts.get(&(None, 6, 30080)), Some(&ready));
    assert_eq!(table.fronts.get(&(Some(ip), 17, 53)), Some(&BTreeSet::new()));
}

#[test]
fn the_kernel_takes_the_rules_and_takes_them_again() {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
        rules::write(&Table::default()).unwrap();
        rules::write(&sample()).unwrap();
        rules::write(&sample()).unwrap();
    })
    .join()
    .unwrap();
}
