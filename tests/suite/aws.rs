//! What the tests themselves ask of moto: groups, instances and queues, over the plain query API.

use ebbtide_core::ids::NodeName;
use ebbtide_harness::Moto;

/// An Auto Scaling group in moto.
pub struct Group<'a> {
    moto: &'a Moto,
    name: String,
}

impl<'a> Group<'a> {
    /// Creates one of `desired` instances, at most `most`.
    pub async fn create(moto: &'a Moto, name: &str, desired: u32, most: u32) -> Self {
        let configuration = format!(
            "Action=CreateLaunchConfiguration&LaunchConfigurationName={name}\
             &ImageId=ami-12c6146b&InstanceType=p5en.48xlarge"
        );
        ask(moto, "autoscaling", &configuration).await;
        let group = format!(
            "Action=CreateAutoScalingGroup&AutoScalingGroupName={name}\
             &LaunchConfigurationName={name}&MinSize=0&MaxSize={most}&DesiredCapacity={desired}\
             &AvailabilityZones.member.1=us-east-1a"
        );
        ask(moto, "autoscaling", &group).await;
        Self { moto, name: name.to_owned() }
    }

    /// Creates an empty one of a launch template, at most `most`.
    pub async fn of_template(moto: &'a Moto, name: &str, template: &str, most: u32) -> Self {
        let group = format!(
            "Action=CreateAutoScalingGroup&AutoScalingGroupName={name}\
             &LaunchTemplate.LaunchTemplateName={template}&LaunchTemplate.Version=%24Latest\
             &MinSize=0&MaxSize={most}&DesiredCapacity=0\
             &AvailabilityZones.member.1=us-east-1a"
        );
        ask(moto, "autoscaling", &group).await;
        Self { moto, name: name.to_owned() }
    }

    /// Gives it a hook that holds instances on their way out, for so many seconds.
    pub async fn add_hook(&self, hook: &str, seconds: u32) {
        let action = format!(
            "Action=PutLifecycleHook&AutoScalingGroupName={}&LifecycleHookName={hook}\
             &LifecycleTransition=autoscaling%3AEC2_INSTANCE_TERMINATING\
             &HeartbeatTimeout={seconds}",
            self.name
        );
        ask(self.moto, "autoscaling", &action).await;
    }

    async fn describe(&self) -> String {
        let action = format!(
            "Action=DescribeAutoScalingGroups&AutoScalingGroupNames.member.1={}",
            self.name
        );
        ask(self.moto, "autoscaling", &action).await
    }

    /// Its desired capacity.
    pub async fn desired(&self) -> u32 {
        let text = self.describe().await;
        elements(&text, "DesiredCapacity")[0].parse().unwrap()
    }

    /// Suspends one of its processes.
    pub async fn suspend(&self, process: &str) {
        let action = format!(
            "Action=SuspendProcesses&AutoScalingGroupName={}\
             &ScalingProcesses.member.1={process}",
            self.name
        );
        ask(self.moto, "autoscaling", &action).await;
    }

    /// How many of its instances are protected from scale-in.
    pub async fn protected(&self) -> usize {
        let marks = elements(&self.describe().await, "ProtectedFromScaleIn");
        marks.iter().filter(|mark| *mark == "true").count()
    }

    /// Ids of its instances.
    pub async fn instances(&self) -> Vec<String> {
        elements(&self.describe().await, "InstanceId")
    }
}

/// Creates a launch template.
pub async fn template(moto: &Moto, name: &str, instance_type: &str, is_spot: bool) {
    let market =
        if is_spot { "&LaunchTemplateData.InstanceMarketOptions.MarketType=spot" } else { "" };
    let template = format!(
        "Action=CreateLaunchTemplate&LaunchTemplateName={name}\
         &LaunchTemplateData.ImageId=ami-12c6146b\
         &LaunchTemplateData.InstanceType={instance_type}{market}"
    );
    ask(moto, "ec2", &template).await;
}

/// The maximum of a group in the moto at this address.
pub async fn most_of(url: &str, group: &str) -> u32 {
    let action = format!("Action=DescribeAutoScalingGroups&AutoScalingGroupNames.member.1={group}");
    let text = ask_at(url, "autoscaling", &action).await;
    elements(&text, "MaxSize")[0].parse().unwrap()
}

/// The instances in moto that are pending or run.
pub async fn live_instances(moto: &Moto) -> Vec<String> {
    let action = "Action=DescribeInstances&Filter.1.Name=instance-state-name\
                  &Filter.1.Value.1=pending&Filter.1.Value.2=running";
    elements(&ask(moto, "ec2", action).await, "instanceId")
}

/// The nodes that these instances become, in their order.
pub async fn node_names(moto: &Moto, instances: &[String]) -> Vec<NodeName> {
    let mut names = Vec::new();
    for instance in instances {
        let action = format!("Action=DescribeInstances&InstanceId.1={instance}");
        let text = ask(moto, "ec2", &action).await;
        names.push(elements(&text, "privateDnsName")[0].parse().unwrap());
    }
    names
}

async fn ask(moto: &Moto, service: &str, action: &str) -> String {
    ask_at(&moto.url(), service, action).await
}

async fn ask_at(url: &str, service: &str, action: &str) -> String {
    let (version, credential) = match service {
        "autoscaling" => ("2011-01-01", "autoscaling"),
        "sqs" => ("2012-11-05", "sqs"),
        _ => ("2016-11-15", "ec2"),
    };
    let answer = reqwest::Client::new()
        .post(url)
        .header("Content-Type", "application/x-www-form-urlencoded")
        .header(
            "Authorization",
            format!(
                "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{credential}/aws4_request, \
                 SignedHeaders=host, Signature=0"
            ),
        )
        .body(format!("{action}&Version={version}"))
        .send()
        .await
        .unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert!(status.is_success(), "{action}: {text}");
    text
}

/// Contents of all elements with a name, in order.
fn elements(text: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    text.split(&open)
        .skip(1)
        .filter_map(|rest| rest.split(&close).next())
        .map(str::to_owned)
        .collect()
}

/// A queue in moto.
pub struct Queue<'a> {
    moto: &'a Moto,
    name: String,
}

impl<'a> Queue<'a> {
    /// Creates one.
    pub async fn create(moto: &'a Moto, name: &str) -> Self {
        let queue = Self { moto, name: name.to_owned() };
        ask(moto, "sqs", &format!("Action=CreateQueue&QueueName={name}")).await;
        queue
    }

    /// Its URL, which is the same whenever a queue of this name is created.
    pub fn url(&self) -> String {
        queue_url(self.moto, &self.name)
    }

    /// Sends a message.
    pub async fn send(&self, body: &str) {
        let url = percent_encoded(&self.url());
        let body = percent_encoded(body);
        let send = format!("Action=SendMessage&QueueUrl={url}&MessageBody={body}");
        ask(self.moto, "sqs", &send).await;
    }

    /// Messages that were not deleted: those that wait, and those that are hidden.
    pub async fn left(&self) -> u32 {
        let url = percent_encoded(&self.url());
        let read = format!("Action=GetQueueAttributes&QueueUrl={url}&AttributeName.1=All");
        let text = ask(self.moto, "sqs", &read).await;
        let names = elements(&text, "Name");
        let values = elements(&text, "Value");
        let of = |wanted: &str| -> u32 {
            let mut found = names.iter().zip(&values).filter(|(name, _)| *name == wanted);
            found.next().map_or(0, |(_, value)| value.parse().unwrap())
        };
        of("ApproximateNumberOfMessages") + of("ApproximateNumberOfMessagesNotVisible")
    }
}

/// The URL of a queue in moto, whether or not it is there.
pub fn queue_url(moto: &Moto, name: &str) -> String {
    format!("{}/123456789012/{name}", moto.url())
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
