//! Measuring Pods: starts one at a time on two clusters in turn, loads of many, and where the time of each start went.
#![deny(missing_docs)]

mod arrivals;
mod attribute;
mod figures;
mod interleave;
mod load;
mod search;
mod sli;
mod subject;

pub use arrivals::Arrivals;
pub use attribute::{Attribution, attribute};
pub use figures::{Figures, PhaseFigures, all_started, deletion, indicator, split, startup};
pub use interleave::{Interleaved, Plan, order, run};
pub use load::{Arrived, Load, LoadReport, Progress, StopWhen, drive};
pub use search::{Found, Search};
pub use sli::{Excluded, Interval, Sli, SliInput, is_stateful, sli, started, union};
pub use subject::{MeasureError, Start, Subject, small_pod};
