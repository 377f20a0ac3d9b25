//! Auto Scaling groups, with what their launch templates or configurations say.

use aws_config::SdkConfig;
use aws_sdk_autoscaling::types::{AutoScalingGroup, LaunchTemplateSpecification};
use aws_sdk_ec2::types::MarketType;
use ebbtide_core::policy::Market;

use super::{Found, SurveyError};
use crate::aws::call;
use crate::metrics::ApiCalls;

/// What a group launches.
#[derive(Default)]
struct Launch {
    instance_type: Option<String>,
    market: Option<Market>,
}

struct Survey<'a> {
    groups: aws_sdk_autoscaling::Client,
    instances: aws_sdk_ec2::Client,
    calls: &'a ApiCalls,
}

/// The groups of these names, in their order.
///
/// # Errors
/// AWS does not answer or refuses, or has no group of a name.
pub async fn survey_groups(
    config: &SdkConfig,
    calls: &ApiCalls,
    names: &[String],
) -> Result<Vec<Found>, SurveyError> {
    let survey = Survey {
        groups: aws_sdk_autoscaling::Client::new(config),
        instances: aws_sdk_ec2::Client::new(config),
        calls,
    };
    let mut found = Vec::new();
    for name in names {
        let group = survey.group(name).await?;
        let missing = || SurveyError::Missing { what: "Auto Scaling group", name: name.clone() };
        found.push(survey.describe(name, &group.ok_or_else(missing)?).await?);
    }
    Ok(found)
}

impl Survey<'_> {
    async fn group(&self, name: &str) -> Result<Option<AutoScalingGroup>, SurveyError> {
        let reply = call("DescribeAutoScalingGroups", self.calls, || {
            self.groups.describe_auto_scaling_groups().auto_scaling_group_names(name).send()
        })
        .await?;
        Ok(reply.auto_scaling_groups.unwrap_or_default().into_iter().next())
    }

    async fn describe(&self, name: &str, group: &AutoScalingGroup) -> Result<Found, SurveyError> {
        let mut remarks = Vec::new();
        let launch = if group.mixed_instances_policy.is_some() {
            remarks.push(
                "it mixes instance types or markets: make one group of each, a pool has one \
                 of both"
                    .to_owned(),
            );
            Launch::default()
        } else if let Some(template) = &group.launch_template {
            self.template(template).await?
        } else if let Some(name) = &group.launch_configuration_name {
            self.configuration(name).await?
        } else {
            Launch::default()
        };
        let of_instances = || {
            let types = group.instances().iter().filter_map(|instance| instance.instance_type());
            only(types.map(str::to_owned))
        };
        let size = |size: Option<i32>| size.and_then(|size| u32::try_from(size).ok());
        Ok(Found {
            name: name.to_owned(),
            market: launch.market,
            instance_type: launch.instance_type.or_else(of_instances),
            zone: only(group.availability_zones().iter().cloned()),
            max_nodes: size(group.max_size),
            desired: size(group.desired_capacity),
            remarks,
        })
    }

    async fn template(
        &self,
        template: &LaunchTemplateSpecification,
    ) -> Result<Launch, SurveyError> {
        let version = template.version().unwrap_or("$Default");
        let reply = call("DescribeLaunchTemplateVersions", self.calls, || {
            self.instances
                .describe_launch_template_versions()
                .set_launch_template_id(template.launch_template_id.clone())
                // One of the two names it, and both are refused.
                .set_launch_template_name(
                    template
                        .launch_template_name
                        .clone()
                        .filter(|_| template.launch_template_id.is_none()),
                )
                .versions(version)
                .send()
        })
        .await?;
        let versions = reply.launch_template_versions.unwrap_or_default();
        let Some(data) = versions.into_iter().find_map(|version| version.launch_template_data)
        else {
            return Ok(Launch::default());
        };
        let options = data.instance_market_options;
        let market = options.and_then(|options| options.market_type);
        Ok(Launch {
            instance_type: data.instance_type.map(|kind| kind.as_str().to_owned()),
            market: Some(match market {
                Some(MarketType::Spot) => Market::Spot,
                _ => Market::OnDemand,
            }),
        })
    }

    async fn configuration(&self, name: &str) -> Result<Launch, SurveyError> {
        let reply = call("DescribeLaunchConfigurations", self.calls, || {
            self.groups.describe_launch_configurations().launch_configuration_names(name).send()
        })
        .await?;
        let configuration = reply.launch_configurations.unwrap_or_default().into_iter().next();
        Ok(configuration.map_or_else(Launch::default, |configuration| Launch {
            market: Some(match configuration.spot_price {
                Some(price) if !price.is_empty() => Market::Spot,
                _ => Market::OnDemand,
            }),
            instance_type: configuration.instance_type.filter(|kind| !kind.is_empty()),
        }))
    }
}

/// The one value that all of them are.
fn only(mut values: impl Iterator<Item = String>) -> Option<String> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}
