//! Parameters, variants, libraries and names: what they become, and how what is wrong with them is said.

use std::{collections::BTreeMap, path::Path};

use super::{GOOD, error};
use crate::{LoadError, Step, parse, parse_all};

/// The good scenario with more keys on top and other steps in `then`.
fn scenario(more: &str, then: &str) -> String {
    let head = GOOD.split("then:").next().unwrap();
    format!("{head}{more}then:\n{then}- eventually: {{match: {{pod: a, phase: Running}}, within: 1s}}\n")
}

fn all(text: &str) -> Vec<(String, crate::Scenario)> {
    parse_all(text, Path::new("x.yaml"), &BTreeMap::new()).unwrap()
}

#[test]
fn several_errors_are_told_in_one_go_each_at_its_place_with_a_suggestion() {
    let text = "apiVersion: podlab/v1
kind: Scenario
intnt: A Pod becomes Ready.
cluster: {nodes: many}
given:
- aply: {yaml: 'kind: Pod'}
then:
- eventually: {match: {pod: a, conditon: Ready}, within: 10}
- holds: {match: {pod: a, phase: Running}}
";
    let Err(LoadError::Invalid { problems, text, .. }) = parse(text, Path::new("x.yaml")) else { panic!() };
    let lines: Vec<u64> = problems.iter().map(|p| p.at.line).collect();
    assert_eq!(lines, [1, 3, 4, 6, 8, 8, 9], "{text}");
    for said in [
        "x.yaml:3:1: there is no key \"intnt\"; did you mean \"intent\"?\n  intnt: A Pod",
        "x.yaml:4:18: cluster.nodes: the text \"many\" where an integer belongs",
        "x.yaml:6:3: given[1]: there is no \"aply\" here; did you mean \"apply\"?",
        "there is no key \"conditon\"; did you mean \"condition\"?",
        "\"10\" is not a duration",
        "then[2].holds: \"for\" is missing",
        "\"intent\" is missing",
    ] {
        assert!(text.contains(said), "{said}\n---\n{text}");
    }
}

#[test]
fn parameters_and_matrix_make_one_trial_for_each_combination() {
    let more = "params: {pod: a, wait: 5}\nmatrix: {n: [1, 2], kind: [x, y]}\n";
    let text = scenario(
        more,
        "- expect: {that: 'size(pods) == matrix.n', within: '${params.wait}s'}\n- exec: {pod: '${params.pod}', command: ['${matrix.kind}'], exitCode: '${matrix.n}'}\n",
    );
    let names: Vec<String> = all(&text).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["[n=1,kind=x]", "[n=1,kind=y]", "[n=2,kind=x]", "[n=2,kind=y]"]);
    let given = BTreeMap::from([("wait".to_owned(), "7".to_owned()), ("pod".to_owned(), "b".to_owned())]);
    let (_, last) = parse_all(&text, Path::new("x.yaml"), &given).unwrap().pop().unwrap();
    let Step::Exec(e) = &last.then[1] else { panic!() };
    assert_eq!((e.pod.as_str(), e.command[0].as_str(), e.exit_code), ("b", "y", 2));
    let Step::Expect(e) = &last.then[0] else { panic!() };
    assert_eq!(e.within, Some("7s".parse().unwrap()));
    let wrong = BTreeMap::from([("wait".to_owned(), "soon".to_owned())]);
    let said = parse_all(&text, Path::new("x.yaml"), &wrong).unwrap_err().to_string();
    assert!(said.contains("\"soon\" is not of the kind of its default, 5"), "{said}");
}

#[test]
fn an_expression_is_held_against_the_names_there_are_at_its_place() {
    for (then, said) in [
        ("- expect: {that: 'pod.a == 1'}\n", "nothing is called \"pod\" here; did you mean \"pods\"?"),
        ("- expect: {that: 'pods.a =='}\n", "is no expression"),
        ("- expect: {that: 'uid == 1'}\n- bind: {uid: 'pods.a'}\n", "nothing is called \"uid\" here"),
        ("- exec: {pod: a, command: ['${uid}']}\n", "nothing is called \"uid\" here"),
        ("- exec: {pod: a, command: ['${uid']}\n", "a `${` without its `}`"),
        ("- bind: {pods: '1'}\n", "\"pods\" has a meaning of its own"),
        ("- bind: {Uid: '1'}\n", "\"Uid\" is no name"),
        ("- forEach: {in: podNames, as: n, steps: [{delete: {pod: '${m}'}}]}\n", "nothing is called \"m\" here"),
        ("- parallel: [[{bind: {x: '1'}}], [{delete: {pod: '${x}'}}]]\n", "nothing is called \"x\" here"),
        ("- repeat: {times: '${pods}', steps: []}\n", "what a step binds is text"),
        ("- exec: {pod: '${params.nope}', command: [a]}\n", "`${params.nope}`: "),
        ("- unchanged: uid\n- checkpoint: {name: uid, pod: a, path: /x}\n", "no step before it remembers \"uid\""),
        ("- order: {moments: [{step: 'then[1]'}, {step: 'then[9]'}]}\n", "there is no step \"then[9]\""),
    ] {
        let text = error(&scenario("", then));
        assert!(text.contains(said) && text.contains("x.yaml:"), "{then}{text}");
    }
    let good = "- bind: {uid: 'pods.a.metadata.uid'}\n- exec: {pod: a, command: ['${uid} $${HOME} ${podNames[0]}']}\n";
    all(&scenario("", good));
}

#[test]
fn what_is_known_to_steps_only_stands_nowhere_else() {
    let text = scenario("tags: ['${pods}']\n", "");
    assert!(error(&text).contains("pods is known to steps only"), "{}", error(&text));
    let always = |that: &str| scenario(&format!("always: [{{that: '{that}', because: it must}}]\n"), "");
    all(&always("size(pods) < 3"));
    assert!(error(&always("params == matrix")).contains("looks at nothing that could change"));
    assert!(error(&always("calls.x == 1")).contains("which nobody watches"));
}

#[test]
fn a_library_is_put_where_it_is_used_and_its_mistakes_are_told_in_its_own_lines() {
    let dir = std::env::temp_dir().join(format!("podlab-lib-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let library = "apiVersion: podlab/v1\nkind: StepLibrary\nintent: It starts.\nparams: {name: null, n: 1}\nsteps:\n- exec: {pod: '${params.name}', command: [x], exitCode: '${params.n}'}\n";
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    write("good.yaml", library);
    write("bad.yaml", &library.replace("exec:", "exce:"));
    write("loop.yaml", &library.replace("- exec", "- use: {file: loop.yaml, with: {name: a}}\n- exec"));
    let load = |used: &str| {
        parse_all(&scenario("", &format!("- use: {used}\n")), &dir.join("x.yaml"), &BTreeMap::new())
            .map(|mut all| all.remove(0).1)
            .map_err(|e| e.to_string())
    };
    let good = load("{file: good.yaml, with: {name: a, n: 3}}").unwrap();
    let Step::Group(group) = &good.then[0] else { panic!() };
    assert_eq!(group.name, "It starts.");
    let Step::Exec(e) = &group.steps[0] else { panic!() };
    assert_eq!((e.pod.as_str(), e.exit_code), ("a", 3));
    for (used, said) in [
        ("{file: nope.yaml}", "use.file: "),
        ("{file: good.yaml}", "the library needs \"name\""),
        ("{file: good.yaml, with: {nam: a}}", "the library has no parameter \"nam\"; did you mean \"name\"?"),
        ("{file: bad.yaml, with: {name: a}}", "bad.yaml:6:3: then[1].group.steps[1]: there is no \"exce\""),
        ("{file: loop.yaml, with: {name: a}}", "libraries may use each other"),
        ("{fil: good.yaml}", "did you mean \"file\"?"),
    ] {
        let text = load(used).unwrap_err();
        assert!(text.contains(said), "{used}: {text}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_scenario_of_any_nesting_is_refused_or_read_and_never_a_panic() {
    let nested = |n: usize| format!("{}x{}", "[".repeat(n), "]".repeat(n));
    for text in
        [nested(60), nested(5000), "{".repeat(3000), "- ".repeat(3000), "a: &a [*a]".into(), "? [x]\n: y".into()]
    {
        let read =
            std::thread::Builder::new().stack_size(2 << 20).spawn(move || parse(&text, Path::new("x.yaml")).is_err());
        assert!(read.unwrap().join().unwrap());
    }
    let (open, close) = ("group: {name: g, steps: [{".repeat(9), "}]}".repeat(9));
    let step = format!("{{{open}expect: {{that: 'size(pods) == 1'}}{close}}}");
    all(&scenario("", &format!("- {step}\n")));
}

#[test]
fn a_manifest_among_scenarios_is_told_where_it_belongs() {
    let said = error("# mine\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\n");
    assert!(
        said.contains("x.yaml:2:1: a manifest of \"v1\" and no scenario") && said.contains("begins with \"_\""),
        "{said}"
    );
}
