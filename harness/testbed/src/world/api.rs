//! The API as a component of the virtual world reaches it: the in-process server behind a tap.

use podlab_api::ApiError;
use podlab_clock::Clock;
use podlab_fault::{Call, Effect};
use podlab_timeline::Lane;

use super::seam::{Seam, Site};
use crate::api_tap::{ApiSite, Gate, refused};

impl Gate for Seam {
    async fn pass<T: Send, F: Future<Output = Result<T, ApiError>> + Send>(
        &self,
        at: ApiSite<'_>,
        make: impl Fn() -> F + Send + Sync,
    ) -> Result<(T, Option<Effect>), ApiError> {
        // Names of events and leases differ from seed to seed; what they are about does not.
        let shown = if at.resource == "events" { "" } else { at.name };
        let client = self.who.strip_prefix("agent ").unwrap_or(&self.who);
        let subject = format!("{} {shown} by {client}", at.resource);
        let site = Site {
            call: Call::Api { client, verb: at.verb, resource: at.resource, name: at.name },
            name: format!("{} {} {shown}", at.verb, at.resource),
            pod: None,
            subject: &subject,
            // Only a run that disturbs the API shows its calls: there are many.
            lane: self.plan.at("api").then_some(Lane::Api),
        };
        self.pass_with(site, make, refused).await
    }

    async fn event(&self, plural: &str, name: &str) {
        self.pause(&format!("event of {plural} {name}")).await;
    }

    fn clock(&self) -> Clock {
        self.clock
    }
}
