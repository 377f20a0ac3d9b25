//! `moto`'s server: EC2, Auto Scaling and SQS over HTTP, with AWS's wire formats.
//!
//! Any credentials and regions are accepted; instances do not boot, they are "running" at once.

use crate::{
    EVENT_LIMIT, Error,
    folder::RunFolder,
    http, parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// A running moto server of this test's own; killed on drop.
#[derive(Debug)]
pub struct Moto {
    service: Service,
    port: u16,
}

impl Moto {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed; others when it does not get ready.
    pub async fn start() -> Result<Self, Error> {
        let located = parts::MOTO.locate()?;
        let port = free_port()?;
        let launch = Launch::new("moto", &located.path)
            .arguments(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .variable("AWS_ACCESS_KEY_ID", "test")
            .variable("AWS_SECRET_ACCESS_KEY", "test");
        let service = Service::start(launch, RunFolder::create("moto")?)?;
        let mut moto = Self { service, port };
        moto.ready().await?;
        report::took_part(&parts::MOTO, &located.version);
        Ok(moto)
    }

    /// For `AWS_ENDPOINT_URL`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a program needs in its environment to take it for AWS.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", self.url()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// Forgets everything that was created in it.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn reset(&self) -> Result<(), Error> {
        http::post(&format!("{}/moto-api/reset", self.url())).await
    }

    /// Ends it; the next requests are refused. Its state is lost.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Starts it again on the same port, empty.
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
        let url = format!("{}/moto-api/", self.url());
        self.service.ready("an answer over HTTP", EVENT_LIMIT, || http::answers(&url)).await
    }
}
