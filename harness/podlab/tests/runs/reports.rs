//! The reports of a run as its user asks for them: forms, comparison, recorded timelines, traces sent to a collector.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
};

use crate::support::{POD, READY, command, e2e, fails, folder, passes, report, said, scenario, verdict};

#[test]
fn a_run_is_reported_in_the_forms_that_are_asked_for_and_against_one_of_before() {
    let dir = folder(&[("a", passes()), ("b", fails())]);
    e2e(dir.path(), &[]);
    let at = |name: &str| dir.path().join("more").join(name);
    let args = ["report", "out", "--out", "more", "--format", "perfetto", "--format", "otlp", "--against", "out"];
    let o = command(dir.path(), &args).output().unwrap();
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    assert!(at("trace.json").exists() && at("otlp.json").exists() && !at("junit.xml").exists());
    let page = fs::read_to_string(at("comparison.html")).unwrap();
    assert!(page.contains("2 trials, 0 ended otherwise, 0 with another timeline"), "{}", &page[..2000]);
    let o = command(dir.path(), &["report", "out", "--against", "nowhere"]).output().unwrap();
    assert!(o.status.code() == Some(2) && said(&o).contains("nowhere"), "{}", said(&o));
    let schema: serde_json::Value =
        serde_json::from_slice(&command(dir.path(), &["schema", "--report"]).output().unwrap().stdout).unwrap();
    assert_eq!(schema["title"], "ReportFile");
    assert_eq!(report(dir.path())["trials"][0]["steps"][0]["what"], "Apply Pod a.");
}

#[test]
fn a_trial_whose_timeline_is_not_the_recorded_one_fails_and_says_where_they_differ() {
    let kept = scenario(
        "A Pod is deleted.",
        &format!(
            "{POD}{READY}- delete: {{pod: a}}\n- eventually: {{match: {{pod: a, gone: true}}, within: 1m}}\nsnapshot: {{timeline: [a]}}\n"
        ),
    );
    let dir = folder(&[("a", kept)]);
    let o = e2e(dir.path(), &["--snapshots", "kept"]);
    assert_eq!(o.status.code(), Some(0), "nothing was recorded of it: {}", said(&o));
    let text = report(dir.path())["trials"][0]["timeline"]["text"].as_str().unwrap().to_owned();
    let file = dir.path().join("kept/t/a.snap");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, format!("---\nsource: x\n---\n{text}")).unwrap();
    let o = e2e(dir.path(), &["--snapshots", "kept"]);
    assert_eq!(o.status.code(), Some(0), "it is the recorded one: {}", said(&o));
    fs::write(&file, format!("---\nsource: x\n---\n{}", text.replace("cni ADD", "cni CHECK"))).unwrap();
    let o = e2e(dir.path(), &["--snapshots", "kept"]);
    assert_eq!((o.status.code(), verdict(dir.path(), "t/a").as_str()), (Some(1), "failed"));
    assert!(said(&o).contains("- cni CHECK") && said(&o).contains("+ cni ADD"), "{}", said(&o));
}

#[test]
fn what_a_ci_shows_beside_a_run_is_added_to_and_not_written_over() {
    let dir = folder(&[("a", fails())]);
    fs::write(dir.path().join("step.md"), "before\n").unwrap();
    let args = ["e2e", "--scenarios", "s", "--out", "out"];
    command(dir.path(), &args).env("GITHUB_STEP_SUMMARY", "step.md").output().unwrap();
    let text = fs::read_to_string(dir.path().join("step.md")).unwrap();
    assert!(text.starts_with("before\n## ❌ e2e") && text.contains("t/a"), "{text}");
}

#[test]
fn traces_are_sent_to_the_collector_that_is_named_and_a_refusal_is_said() {
    let dir = folder(&[("a", passes()), ("b", fails())]);
    e2e(dir.path(), &[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/base", listener.local_addr().unwrap());
    // Takes two requests, and refuses every other.
    let collector = std::thread::spawn(move || {
        let mut taken = Vec::new();
        for (i, stream) in listener.incoming().take(3).enumerate() {
            let mut stream = stream.unwrap();
            let (mut bytes, mut one) = (Vec::new(), [0; 1]);
            while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut one).unwrap() == 1 {
                bytes.push(one[0]);
            }
            let head = String::from_utf8(bytes).unwrap();
            let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = if i < 2 { "200 OK" } else { "429 Too Many Requests" };
            stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 2\r\n\r\n{{}}").as_bytes()).unwrap();
            taken.push((head.lines().next().unwrap().to_owned(), body));
        }
        taken
    });
    let send =
        || command(dir.path(), &["report", "out", "--format", "otlp", "--otlp-endpoint", &url]).output().unwrap();
    let o = send();
    assert!(o.status.code() == Some(1) && said(&o).contains("2 traces sent"), "{}", said(&o));
    let o = send();
    assert!(o.status.code() == Some(2) && said(&o).contains("429 Too Many Requests"), "{}", said(&o));
    let taken = collector.join().unwrap();
    assert_eq!(taken[0].0, "POST /base/v1/traces HTTP/1.1");
    let trace: serde_json::Value = serde_json::from_slice(&taken[1].1).unwrap();
    assert_eq!(trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"], "t/b");
    let o = command(dir.path(), &["report", "out", "--otlp-endpoint", "https://x"]).output().unwrap();
    assert!(o.status.code() == Some(2) && said(&o).contains("must begin with http://"), "{}", said(&o));
}
