//! What is to be done for a Pod, case by case.
use std::collections::BTreeMap;

use podlab_api::{
    core::{Container, Pod, PodSpec},
    jiff::Timestamp,
};
use proptest::prelude::*;

use super::*;
use crate::runtime::{ContainerRecord, SandboxRecord};

pub(crate) fn mk_container(name: &str) -> Container {
    Container { name: name.to_owned(), image: Some("img:1".to_owned()), ..Container::default() }
}

pub(crate) fn mk_pod(policy: &str, init: &[(&str, bool)], regular: &[&str]) -> Pod {
    let sidecar = |(name, sidecar): &(&str, bool)| Container {
        restart_policy: sidecar.then(|| "Always".to_owned()),
        ..mk_container(name)
    };
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.to_owned()),
            init_containers: Some(init.iter().map(sidecar).collect()),
            containers: regular.iter().map(|n| mk_container(n)).collect(),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

pub(crate) fn record(name: &str, state: RuntimeState, exit_code: i32) -> ContainerRecord {
    ContainerRecord {
        id: format!("id-{name}"),
        name: name.to_owned(),
        restart_count: 0,
        state,
        created_at: Timestamp::from_second(1).unwrap(),
        started_at: Some(Timestamp::from_second(2).unwrap()),
        finished_at: (state == RuntimeState::Exited).then(|| Timestamp::from_second(3).unwrap()),
        exit_code,
        reason: String::new(),
        message: String::new(),
        image: "img:1".to_owned(),
        image_id: "img-id".to_owned(),
        spec_hash: Some(0),
        user: None,
        resources: None,
    }
}

pub(crate) fn with_sandbox(containers: Vec<ContainerRecord>) -> RuntimePod {
    let sandbox = SandboxRecord {
        id: "sb".to_owned(),
        attempt: 0,
        ready: true,
        created_at: Timestamp::from_second(1).unwrap(),
        ips: vec!["10.0.0.1".to_owned()],
        host_network: false,
    };
    RuntimePod { sandboxes: vec![sandbox], containers }
}

fn plan(pod: &Pod, runtime: &RuntimePod) -> Actions {
    let none = Results::default();
    compute(pod, runtime, &Inputs { liveness: &none, startup: &none, hash: &|_| 0 })
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_first_init_container() {
    let a = plan(&mk_pod("Always", &[("i1", false), ("i2", false)], &["c"]), &RuntimePod::default());
    assert_eq!((a.create_sandbox, a.init, a.start), (Some(0), vec![0], vec![]));
    let a = plan(&mk_pod("Always", &[], &["c", "d"]), &RuntimePod::default());
    assert_eq!((a.create_sandbox, a.start), (Some(0), vec![0, 1]));
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = mk_pod("Always", &[("i1", false), ("i2", false)], &["c"]);
    let cases: [(Vec<ContainerRecord>, Vec<usize>, Vec<usize>); 4] = [
        (vec![record("i1", RuntimeState::Running, 0)], vec![], vec![]),
        (vec![record("i1", RuntimeState::Exited, 0)], vec![1], vec![]),
        (vec![record("i1", RuntimeState::Exited, 3)], vec![0], vec![]),
        (vec![record("i2", RuntimeState::Exited, 0), record("i1", RuntimeState::Exited, 0)], vec![], vec![0]),
    ];
    for (records, init, start) in cases {
        let a = plan(&pod, &with_sandbox(records));
        assert_eq!((a.init, a.start, a.kill_pod), (init, start, false));
    }
}

#[test]
fn init_failure_of_a_never_pod_kills_it() {
    let pod = mk_pod("Never", &[("i", false)], &["c"]);
    let a = plan(&pod, &with_sandbox(vec![record("i", RuntimeState::Exited, 3)]));
    assert!(a.kill_pod && a.init.is_empty() && a.start.is_empty());
}

#[test]
fn a_started_sidecar_lets_the_containers_start_and_ends_with_them() {
    let pod = mk_pod("Never", &[("s", true)], &["c"]);
    let running = record("s", RuntimeState::Running, 0);
    let a = plan(&pod, &with_sandbox(vec![running.clone()]));
    assert_eq!(a.start, [0]);
    let a = plan(&pod, &with_sandbox(vec![record("c", RuntimeState::Exited, 0), running]));
    assert!(a.kill_pod && a.start.is_empty() && a.init.is_empty());
}

#[test]
fn a_failed_liveness_probe_kills_and_starts_again_in_one_plan() {
    let pod = mk_pod("Always", &[], &["c"]);
    let mut liveness = Results::default();
    liveness.set("id-c", ProbeResult::Failure);
    let a = compute(
        &pod,
        &with_sandbox(vec![record("c", RuntimeState::Running, 0)]),
        &Inputs { liveness: &liveness, startup: &Results::default(), hash: &|_| 0 },
    );
    assert_eq!(a.kill["id-c"].message, "Container c failed liveness probe, will be restarted");
    assert_eq!(a.start, [0]);
}

#[test]
fn a_finished_never_pod_gets_no_new_sandbox() {
    let pod = mk_pod("Never", &[], &["c"]);
    let mut runtime = with_sandbox(vec![record("c", RuntimeState::Exited, 0)]);
    runtime.sandboxes[0].ready = false;
    let a = plan(&pod, &runtime);
    assert!(a.kill_pod && a.create_sandbox.is_none() && a.start.is_empty());
}

fn any_state() -> impl Strategy<Value = Option<(RuntimeState, i32)>> {
    prop_oneof![
        Just(None),
        Just(Some((RuntimeState::Created, 0))),
        Just(Some((RuntimeState::Running, 0))),
        Just(Some((RuntimeState::Exited, 0))),
        Just(Some((RuntimeState::Exited, 1))),
        Just(Some((RuntimeState::Unknown, 0)))
    ]
}

proptest! {
    #[test]
    fn no_plan_starts_what_runs_nor_a_container_before_the_init_phase_is_over(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        i1 in any_state(), s in any_state(), c in any_state(), d in any_state(), ready in any::<bool>()
    ) {
        let pod = mk_pod(policy, &[("i1", false), ("s", true)], &["c", "d"]);
        let states: BTreeMap<&str, _> = [("i1", i1), ("s", s), ("c", c), ("d", d)].into();
        let records = states.iter().filter_map(|(n, st)| st.map(|(st, code)| record(n, st, code))).collect();
        let mut runtime = with_sandbox(records);
        runtime.sandboxes[0].ready = ready;
        let a = plan(&pod, &runtime);
        if a.create_sandbox.is_none() && !a.kill_pod {
            for (i, name) in ["c", "d"].iter().enumerate() {
                let runs = matches!(states[name], Some((RuntimeState::Running, _)));
                prop_assert!(!(runs && a.start.contains(&i)), "{name} runs and is started");
            }
            if !a.start.is_empty() && c.is_none() && d.is_none() {
                prop_assert!(matches!(s, Some((RuntimeState::Running, _))), "started before the sidecar");
            }
        }
        if a.kill_pod && a.create_sandbox.is_none() {
            prop_assert!(a.start.is_empty() && a.init.is_empty());
        }
        prop_assert_eq!(plan(&pod, &runtime), plan(&pod, &runtime));
    }
}
