//! What the controller says about a policy, as a schema.

use serde_json::{Map, Value, json};

/// The schema of `status`.
pub(super) fn schema() -> Map<String, Value> {
    let text = |limit: u32| json!({ "type": "string", "maxLength": limit });
    let count = || json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let moment = || json!({ "type": "string", "format": "date-time" });
    let sizes = || {
        json!({
            "type": "object",
            "properties": {
                "running": count(),
                "desired": count(),
                "ready": count(),
                "pending": count(),
                "draining": count(),
            },
        })
    };
    let conditions = json!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": text(316),
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": count(),
                "lastTransitionTime": moment(),
                "reason": text(1024),
                "message": text(32_768),
            },
        },
    });
    let schema = json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(),
            "conditions": conditions,
            "mode": text(16),
            "leaderGeneration": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "Of the controller that wrote this; an older one writes no more.",
            },
            "limitingStage": text(64),
            "rollout": sizes(),
            "reward": sizes(),
            "environment": sizes(),
            "lastDecision": {
                "type": "object",
                "properties": {
                    "at": moment(),
                    "actions": { "type": "array", "maxItems": 64, "items": text(1024) },
                    "reasons": { "type": "array", "maxItems": 64, "items": text(1024) },
                    "held": text(1024),
                },
            },
            "cost": {
                "type": "object",
                "description": "Estimates, by the policy's prices.",
                "properties": {
                    "dollars": { "type": "number" },
                    "dollarsPerVerifiedUpdate": { "type": "number" },
                    "staticOnDemandDollars": { "type": "number" },
                    "staticSpotDollars": { "type": "number" },
                    "verifiedUpdates": count(),
                },
            },
        },
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}
