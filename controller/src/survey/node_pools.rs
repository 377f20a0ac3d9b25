//! Karpenter's node pools: one finding for each market, instance type and zone that a pool names.

use ebbtide_core::policy::Market;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use super::{Found, SurveyError};

/// The node pools of these names, in their order, those on Spot first.
///
/// # Errors
/// The cluster does not answer or refuses, or has no node pool of a name.
pub async fn survey_node_pools(
    client: Client,
    names: &[String],
) -> Result<Vec<Found>, SurveyError> {
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool");
    let resource = ApiResource::from_gvk_with_plural(&kind, "nodepools");
    let pools: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut found = Vec::new();
    for name in names {
        let pool = pools.get_opt(name).await.map_err(|error| SurveyError::Cluster {
            name: name.clone(),
            problem: error.to_string(),
        })?;
        let missing = || SurveyError::Missing { what: "node pool", name: name.clone() };
        found.extend(describe(name, &pool.ok_or_else(missing)?.data));
    }
    found.sort_by_key(|found| found.market != Some(Market::Spot));
    Ok(found)
}

fn describe(name: &str, pool: &Value) -> Vec<Found> {
    let requirements = &pool["spec"]["template"]["spec"]["requirements"];
    let values_of = |key: &str| values_of(requirements, key);
    // What a pool does not narrow down is none: its nodes may be anything.
    let each = |values: Vec<String>| -> Vec<Option<String>> {
        if values.is_empty() { vec![None] } else { values.into_iter().map(Some).collect() }
    };
    let markets: Vec<Option<Market>> = each(values_of("karpenter.sh/capacity-type"))
        .into_iter()
        .map(|market| match market.as_deref() {
            Some("spot") => Some(Market::Spot),
            Some(_) => Some(Market::OnDemand),
            None => None,
        })
        .collect();
    let types = each(values_of("node.kubernetes.io/instance-type"));
    let zones = each(values_of("topology.kubernetes.io/zone"));
    // A quantity: YAML writes it with quotes or without.
    let max_nodes = match &pool["spec"]["limits"]["nodes"] {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    let mut found = Vec::new();
    for market in &markets {
        for instance_type in &types {
            for zone in &zones {
                found.push(Found {
                    name: name.to_owned(),
                    market: *market,
                    instance_type: instance_type.clone(),
                    zone: zone.clone(),
                    max_nodes,
                    desired: None,
                    remarks: Vec::new(),
                });
            }
        }
    }
    found
}

/// The values that requirements allow for a label, when they name them.
fn values_of(requirements: &Value, key: &str) -> Vec<String> {
    let all = requirements.as_array().map_or(&[][..], Vec::as_slice);
    let named = all.iter().filter(|one| one["key"] == key && one["operator"] == "In");
    let values = named.filter_map(|one| one["values"].as_array()).flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requirement(key: &str, values: &[&str]) -> Value {
        json!({ "key": key, "operator": "In", "values": values })
    }

    fn pool(requirements: Vec<Value>) -> Value {
        json!({ "spec": { "template": { "spec": { "requirements": requirements } } } })
    }

    #[test]
    fn pool_is_one_finding_for_each_market_type_and_zone_that_it_names() {
        let both = requirement("karpenter.sh/capacity-type", &["spot", "on-demand"]);
        let types = requirement("node.kubernetes.io/instance-type", &["p5en.48xlarge"]);
        let zones = requirement("topology.kubernetes.io/zone", &["us-east-2a", "us-east-2b"]);
        let found = describe("gpu", &pool(vec![both, types, zones]));
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|one| one.instance_type.as_deref() == Some("p5en.48xlarge")));
        for limit in [json!(10), json!("10")] {
            let mut limited = pool(vec![]);
            limited["spec"]["limits"] = json!({ "nodes": limit });
            assert_eq!(describe("any", &limited)[0].max_nodes, Some(10));
        }
        let found = describe("any", &pool(vec![]));
        assert_eq!(found, [Found { name: "any".to_owned(), ..Found::default() }]);
    }
}
