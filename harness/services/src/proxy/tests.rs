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
fn a_service_with_affinity_sends_a_sender_to_one_endpoint_on_all_its_fronts() {
    let s = service(
        r#"{"metadata":{"name":"web","namespace":"d"},"spec":{"clusterIP":"10.96.0.9","clusterIPs":["10.96.0.9"],
        "sessionAffinity":"ClientIP","ports":[{"port":80,"nodePort":30080}]}}"#,
    );
    let table = Table::compute(&[s], &[], "node-1");
    assert_eq!(table.sticky, table.fronts.keys().copied().collect());
    assert_eq!(table.sticky.len(), 2);
    assert!(sample().sticky.is_empty());
}

/// A Service address behind which two listeners say who they are; how often each was reached in 20 connections.
fn reached(sticky: bool) -> (usize, usize) {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
    };
    let asked = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let front = (Some(Ipv4Addr::new(127, 9, 9, 9)), 6, 80);
        let mut table = Table::default();
        // Not 127.0.0.1: an endpoint that is the sender itself is hidden behind an address that lo has not.
        let listeners = [TcpListener::bind("127.0.0.2:0").unwrap(), TcpListener::bind("127.0.0.3:0").unwrap()];
        let ends = listeners.each_ref().map(|l| match l.local_addr().unwrap() {
            std::net::SocketAddr::V4(a) => (*a.ip(), a.port()),
            std::net::SocketAddr::V6(_) => unreachable!("bound to an IPv4 address"),
        });
        table.fronts.insert(front, ends.into());
        if sticky {
            table.sticky.insert(front);
        }
        rules::write(&table).unwrap();
        for (name, listener) in [b'a', b'b'].into_iter().zip(listeners) {
            std::thread::spawn(move || {
                while let Ok((mut peer, _)) = listener.accept() {
                    std::io::Write::write_all(&mut peer, &[name]).unwrap();
                }
            });
        }
        let answers = (0..20).map(|_| {
            let mut byte = [0];
            TcpStream::connect("127.9.9.9:80").unwrap().read_exact(&mut byte).unwrap();
            byte[0]
        });
        let a = answers.filter(|b| *b == b'a').count();
        (a, 20 - a)
    };
    std::thread::spawn(asked).join().unwrap()
}

#[test]
fn affinity_holds_and_without_it_both_endpoints_are_reached() {
    let (a, b) = reached(true);
    assert!(a == 0 || b == 0, "{a} and {b}");
    let (a, b) = reached(false);
    assert!(a > 0 && b > 0, "{a} and {b}");
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
