//! AWS's own mock of the instance metadata service, `amazon-ec2-metadata-mock`.
//!
//! What the harness adds to the arguments: the address, and `--mock-ip-count -1`, since by default
//! only the first two clients ever see an event. Times are in UTC, as the mock prints "GMT"
//! without converting. Delays (`--mock-delay-sec`) count from its start.

use crate::{
    EVENT_LIMIT, Error,
    folder::RunFolder,
    http, parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// A running metadata mock of this test's own; killed on drop.
#[derive(Debug)]
pub struct Aemm {
    service: Service,
    port: u16,
}

impl Aemm {
    /// Starts it, for example with `["spot", "--action", "terminate", "--mock-delay-sec", "2",
    /// "--imdsv2"]`, and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed; others when it does not get ready.
    pub async fn start(arguments: &[&str]) -> Result<Self, Error> {
        let located = parts::AEMM.locate()?;
        let port = free_port()?;
        let launch = Launch::new("ec2-metadata-mock", &located.path)
            .arguments(arguments)
            .arguments(["--hostname", "127.0.0.1", "--port", &port.to_string()])
            .arguments(["--mock-ip-count", "-1"])
            .variable("TZ", "UTC");
        let service = Service::start(launch, RunFolder::create("ec2-metadata-mock")?)?;
        let mut aemm = Self { service, port };
        aemm.ready().await?;
        report::took_part(&parts::AEMM, &located.version);
        Ok(aemm)
    }

    /// For `AWS_EC2_METADATA_SERVICE_ENDPOINT`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends it; the next requests are refused.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Starts it again with the same arguments and port; its delays begin anew.
    ///
    /// # Errors
    ///
    /// When it does not get ready again.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.service.kill();
        self.service.spawn()?;
        self.ready().await
    }

    async fn ready(&mut self) -> Result<(), Error> {
        let url = format!("{}/latest/meta-data/", self.base_url());
        self.service.ready("an answer over HTTP", EVENT_LIMIT, || http::answers(&url)).await
    }
}
