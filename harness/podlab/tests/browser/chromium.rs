//! A headless Chromium, spoken to over its pipe (Chrome DevTools Protocol): no port, and it ends with its owner.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

/// How long it may take to answer; a browser that hangs is a failure, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Chromium {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: String,
    /// Events of the page that nobody has looked at.
    events: VecDeque<Value>,
}

impl Chromium {
    /// Starts one with a page. `profile` is a folder of its own.
    pub(crate) fn start(profile: &Path) -> Self {
        let program = std::env::var("PODLAB_CHROMIUM").unwrap_or_else(|_| "chromium".into());
        // The pipe is descriptors 3 and 4 of the browser: what it reads and what it writes.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, &program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--force-color-profile=srgb",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (said, from) = sync_channel(4096);
        // Ends when the browser does: then its side of the pipe is closed.
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if said.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut it = Self { child, to, from, next: 0, session: String::new(), events: VecDeque::new() };
        let target = it.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        it.session = it.call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            it.call(&format!("{domain}.enable"), json!({}));
        }
        it
    }

    /// Calls a method and returns its result; panics with what it answered when that is an error.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        let sent = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        sent.unwrap_or_else(|e| {
            panic!("{method}: no Chromium answers ({e}); apt-get install chromium, or set PODLAB_CHROMIUM")
        });
        loop {
            let said = self.from.recv_timeout(PATIENCE).unwrap_or_else(|e| {
                panic!("{method}: no Chromium answers ({e}); apt-get install chromium, or set PODLAB_CHROMIUM")
            });
            if said["id"] == self.next {
                assert!(said["error"].is_null(), "{method}: {}", said["error"]);
                return said["result"].clone();
            }
            self.events.push_back(said);
        }
    }

    /// The value of an expression in the page; a promise is waited for.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let said = self.call("Runtime.evaluate", params);
        assert!(said["exceptionDetails"].is_null(), "{expression}: {}", said["exceptionDetails"]);
        said["result"]["value"].clone()
    }

    /// Opens a file, and returns when all of it is there.
    pub(crate) fn open(&mut self, file: &Path) {
        let url = format!("file://{}", file.display());
        let said = self.call("Page.navigate", json!({"url": url}));
        assert!(said["errorText"].is_null(), "{url}: {}", said["errorText"]);
        self.eval("new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', () => r()))");
    }

    /// Goes to a page of the file, by the part of its address after `#`.
    pub(crate) fn visit(&mut self, anchor: &str) {
        let anchor = serde_json::to_string(anchor).unwrap();
        self.eval(&format!(
            "new Promise(r => {{ if (location.hash === {anchor}) return r(); addEventListener('hashchange', () => r(), {{once: true}}); location.hash = {anchor}; }})"
        ));
    }

    /// Presses and releases a key as a keyboard does.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            _ => 0,
        };
        let text = if key == "Enter" {
            "\r"
        } else if key.chars().count() == 1 {
            key
        } else {
            ""
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            down["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}));
        // What the key set off, a change of the address say, is over when the next task is.
        self.eval("new Promise(r => setTimeout(r))");
    }

    /// How wide the window is and which colours its user wants.
    pub(crate) fn look(&mut self, width: u32, scheme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// A picture of the whole page, cut off where it is very long.
    pub(crate) fn picture(&mut self, file: &Path) {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let height = size["height"].as_f64().unwrap_or(900.0).min(2600.0);
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let data = self.call("Page.captureScreenshot", params)["data"].as_str().unwrap().to_owned();
        std::fs::write(file, BASE64_STANDARD.decode(data).unwrap()).unwrap();
    }

    /// Events of a kind that came since the start.
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        self.events.iter().filter(|e| e["method"] == method).map(|e| e["params"].clone()).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
