//! Questions over a real socket against a small in-memory API would need the plane; here the codec and refusals.

use super::message;

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut q = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        q.push(u8::try_from(label.len()).unwrap());
        q.extend_from_slice(label.as_bytes());
    }
    q.push(0);
    q.extend_from_slice(&kind.to_be_bytes());
    q.extend_from_slice(&[0, 1]);
    q
}

fn zone() -> super::names::Zone {
    use podlab_client::{Client, ListOptions, reflector::reflector};
    let access = podlab_client::kubeconfig::ClusterAccess { server: "http://127.0.0.1:1".into(), ..Default::default() };
    let client = Client::new(std::sync::Arc::new(podlab_client::http::HttpApi::new(&access).unwrap()));
    let clock = podlab_clock::Clock::real();
    let (_, services, _) = reflector(&client, None, ListOptions::default(), clock, 1);
    let (_, slices, _) = reflector(&client, None, ListOptions::default(), clock, 1);
    let hosts = vec![("registry.test".to_owned(), std::net::Ipv4Addr::new(172, 18, 0, 2))];
    super::names::Zone { domain: "cluster.local".into(), hosts, services, slices }
}

#[tokio::test]
async fn known_hosts_answer_pods_are_computed_and_the_rest_does_not_exist() {
    let zone = zone();
    let ask = |name: &str, kind: u16| message::answer(&query(name, kind), &zone, 512).unwrap();
    let answer = ask("registry.test", 1);
    assert_eq!((answer[3] & 15, answer[7], &answer[answer.len() - 4..]), (0, 1, &[172, 18, 0, 2][..]));
    let answer = ask("10-244-1-2.default.pod.cluster.local", 1);
    assert_eq!(&answer[answer.len() - 4..], [10, 244, 1, 2]);
    // An address of another family: the name exists, the record does not.
    let answer = ask("registry.test", 28);
    assert_eq!((answer[3] & 15, answer[7]), (0, 0));
    for name in ["nope.default.svc.cluster.local", "example.org"] {
        assert_eq!(ask(name, 1)[3] & 15, 3, "{name}");
    }
}

#[tokio::test]
async fn what_is_no_question_gets_no_answer() {
    let zone = zone();
    for bytes in [&[][..], &[0; 11], &[0; 12], &[0xff; 40], &query("a", 1)[..14]] {
        assert_eq!(message::answer(bytes, &zone, 512), None);
    }
}
