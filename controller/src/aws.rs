//! How AWS is reached: one configuration for all clients, one way to make a call.
//!
//! Region and credentials come from the standard variables, the profile, a web identity or the
//! container's own source, never from the instance metadata: the controller is a pod, and a pod
//! that is one hop too far away would hang at every start.

mod call;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::{
    EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider,
};
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_config::{BehaviorVersion, Region};
use aws_smithy_http_client::tls;

pub use self::call::AwsError;
pub(crate) use self::call::{call, call_within};
pub use aws_config::SdkConfig;
pub use aws_sdk_autoscaling::config::{Credentials, SharedCredentialsProvider};

/// How to reach AWS. What is not given comes from the standard variables and files.
#[derive(Debug, Clone, Default)]
pub struct AwsSettings {
    /// The region; none takes `AWS_REGION` or the profile's.
    pub region: Option<String>,
    /// One address for all services, `http://` included; none takes `AWS_ENDPOINT_URL` and its
    /// variants per service, or AWS's own.
    pub endpoint_url: Option<String>,
}

/// The configuration of all clients. Nothing is called, so that AWS may be away.
pub async fn load_config(settings: AwsSettings) -> SdkConfig {
    let ring = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new().tls_provider(ring).build_https();
    let provider = ProviderConfig::without_region().with_http_client(http.clone());
    let profile = ProfileFileRegionProvider::builder().configure(&provider).build();
    let region = RegionProviderChain::first_try(settings.region.map(Region::new))
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(profile)
        .region()
        .await;
    let provider = provider.with_region(region.clone());
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        .region(region)
        .credentials_provider(credentials(&provider));
    if let Some(url) = settings.endpoint_url {
        loader = loader.endpoint_url(url);
    }
    loader.load().await
}

/// The standard chain without its last link.
fn credentials(provider: &ProviderConfig) -> CredentialsProviderChain {
    let profile = ProfileFileCredentialsProvider::builder().configure(provider).build();
    let identity = WebIdentityTokenCredentialsProvider::builder().configure(provider).build();
    let container = EcsCredentialsProvider::builder().configure(provider).build();
    let environment = EnvironmentVariableCredentialsProvider::new();
    CredentialsProviderChain::first_try("Environment", environment)
        .or_else("Profile", profile)
        .or_else("WebIdentityToken", identity)
        .or_else("EcsContainer", container)
}
