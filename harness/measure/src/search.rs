//! The highest rate that still meets a demand: halving between a rate that does and one that does not, in ratios.

/// A search under way. Told of each rate that was tried, it says which to try next.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    lo: f64,
    hi: f64,
    precision: f64,
    good: Option<f64>,
    bad: Option<f64>,
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Found {
    /// Not even the lowest rate met the demand.
    None,
    /// The highest rate that met it, and the lowest that did not.
    Between {
        /// Met it.
        good: f64,
        /// Did not.
        bad: f64,
    },
    /// The highest rate that was to be tried met it.
    AtLeast(f64),
}

impl Search {
    /// Between two rates, until they are no further apart than `precision` (0.1 is 10 %).
    pub fn new(lo: f64, hi: f64, precision: f64) -> Self {
        let lo = lo.max(1e-6);
        Self { lo, hi: hi.max(lo), precision: precision.max(0.001), good: None, bad: None }
    }

    /// The rate to try next, or what was found.
    ///
    /// # Errors
    /// The search is over: what it found.
    pub fn next(&self) -> Result<f64, Found> {
        match (self.good, self.bad) {
            (None, None) => Ok(self.lo),
            (None, Some(_)) => Err(Found::None),
            (Some(good), None) if good >= self.hi => Err(Found::AtLeast(good)),
            (Some(_), None) => Ok(self.hi),
            (Some(good), Some(bad)) if bad / good <= 1.0 + self.precision => Err(Found::Between { good, bad }),
            (Some(good), Some(bad)) => Ok((good * bad).sqrt()),
        }
    }

    /// What came of a rate.
    pub fn tell(&mut self, rate: f64, met: bool) {
        if met {
            self.good = Some(self.good.map_or(rate, |g| g.max(rate)));
        } else {
            self.bad = Some(self.bad.map_or(rate, |b| b.min(rate)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(truth: f64, lo: f64, hi: f64, precision: f64) -> (Found, usize) {
        let mut s = Search::new(lo, hi, precision);
        for n in 0..100 {
            match s.next() {
                Ok(rate) => s.tell(rate, rate <= truth),
                Err(found) => return (found, n),
            }
        }
        panic!("the search does not end");
    }

    proptest! {
        #[test]
        fn what_is_found_brackets_the_truth(truth in 1.0..500.0f64, precision in 0.02..0.3f64) {
            let (found, tries) = search(truth, 0.5, 1000.0, precision);
            let Found::Between { good, bad } = found else { panic!("{found:?}") };
            prop_assert!(good <= truth && truth < bad && bad / good <= 1.0 + precision);
            prop_assert!(tries < 20, "{tries}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_said_to_be_ends() {
        assert_eq!(search(0.1, 1.0, 100.0, 0.1).0, Found::None);
        assert_eq!(search(1e9, 1.0, 100.0, 0.1).0, Found::AtLeast(100.0));
    }
}
