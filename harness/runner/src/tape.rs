//! The step that plays a tape.

use podlab_scenario::{Except, Replay};
use podlab_tape::{Difference, Tape};

use crate::steps::{Stage, StepError, chain};

/// Most differences that are told one by one.
const TOLD: usize = 10;

impl Stage<'_> {
    /// Every call of a tape is answered as it was.
    pub(crate) async fn replay(&self, r: &Replay) -> Result<(), StepError> {
        let tape = Tape::read(&self.dir.join(&r.tape)).map_err(|e| StepError::Broken(chain(&e)))?;
        if tape.calls.is_empty() {
            return Err(StepError::Broken(format!("the tape {} has no calls", r.tape)));
        }
        let done = self.backend.replay(&r.node, &tape).await?;
        let mut needed = vec![false; r.except.len()];
        let mut told = Vec::new();
        for d in &done.differences {
            let left: Vec<&str> =
                d.what.iter().map(String::as_str).filter(|w| !excepted(r, d, w, &mut needed)).collect();
            if !left.is_empty() {
                told.push(format!("call {}, {}: {}", d.call, d.method, left.join("; ")));
            }
        }
        if !told.is_empty() {
            let head = format!("{} of {} calls were answered differently", told.len(), done.calls);
            told.truncate(TOLD);
            return Err(StepError::Failed(format!("{head}:\n{}", told.join("\n"))));
        }
        match r.except.iter().zip(needed).find(|(_, needed)| !needed) {
            Some((e, _)) => {
                Err(StepError::Failed(format!("the exception for {} of {} is not needed", e.field, e.method)))
            }
            None => Ok(()),
        }
    }
}

/// Whether an exception is made for this; remembers which.
fn excepted(r: &Replay, d: &Difference, what: &str, needed: &mut [bool]) -> bool {
    let field = what.split(':').next().unwrap_or_default();
    let covers = |e: &Except| {
        let rest = field.strip_prefix(e.field.as_str());
        e.method == d.method && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    match r.except.iter().position(covers) {
        Some(i) => {
            needed[i] = true;
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_covers_its_field_with_all_below_it_and_nothing_beside_it() {
        let except = Except { method: "M".into(), field: "status.image".into(), because: "so".into() };
        let r = Replay { tape: "t".into(), node: "node-1".into(), except: vec![except] };
        let mut needed = [false];
        let mut covered = |method: &str, what: &str| {
            let d = Difference { call: 1, method: method.into(), what: Vec::new() };
            excepted(&r, &d, what, &mut needed)
        };
        assert!(!covered("M", "status.image_ref: recorded 1, now 2"));
        assert!(!covered("N", "status.image: recorded 1, now 2"));
        assert!(covered("M", "status.image: recorded 1, now 2"));
        assert!(covered("M", "status.image.annotations: recorded 1, now 2"));
        assert_eq!(needed, [true]);
    }
}
