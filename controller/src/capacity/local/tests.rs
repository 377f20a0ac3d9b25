//! The local provider behaves like an Auto Scaling group.

use super::*;

const START: Duration = Duration::from_secs(20);

fn clock() -> UnixMillis {
    UnixMillis(5_000)
}

fn provider(initial_nodes: u32, limit: u32) -> LocalCapacity {
    let pool = LocalPool {
        name: "spot".parse().expect("valid"),
        market: Market::Spot,
        zone: None,
        initial_nodes,
        limit,
    };
    LocalCapacity::new(vec![pool], START, clock)
}

fn policy_pool() -> Pool {
    Pool {
        name: "spot".parse().expect("valid"),
        provider: ebbtide_core::policy::Provider::Local,
        market: Market::Spot,
        instance_type: None,
        zone: None,
        max_nodes: 8,
        dollars_per_node_hour: None,
        reservation: None,
    }
}

async fn look(provider: &LocalCapacity) -> PoolView {
    provider.observe(&[&policy_pool()]).await.remove(0)
}

async fn states(provider: &LocalCapacity) -> Vec<InstanceState> {
    let view = look(provider).await;
    let size = view.size.known().expect("local pools are always known");
    size.instances.iter().map(|instance| instance.state).collect()
}

#[tokio::test(start_paused = true)]
async fn node_takes_its_start_time() {
    let provider = provider(0, 8);
    provider.raise(&policy_pool(), 0, 1, 1).await.expect("room");
    assert_eq!(states(&provider).await, [InstanceState::Pending]);
    let began_at = Instant::now();
    let order = provider.next_order().await;
    assert!(matches!(order, NodeOrder::Start(node) if node.node.as_str() == "node-1"));
    assert!((began_at.elapsed().abs_diff(START)) < Duration::from_millis(10));
    assert_eq!(states(&provider).await, [InstanceState::InService]);
}

#[tokio::test(start_paused = true)]
async fn raise_from_another_size_is_refused() {
    let provider = provider(2, 8);
    let refused = provider.raise(&policy_pool(), 1, 3, 1).await.expect_err("it is at 2");
    assert!(refused.is_retriable(), "{refused}");
    assert!(refused.to_string().contains("at 1 nodes to be raised, got 2"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn terminated_node_is_stopped_and_not_replaced() {
    let provider = provider(2, 8);
    provider.next_order().await;
    let NodeOrder::Start(node) = provider.next_order().await else { panic!("two starts") };
    provider.terminate(&policy_pool(), std::slice::from_ref(&node.instance)).await.expect("known");
    assert_eq!(provider.next_order().await, NodeOrder::Stop(node.clone()));
    assert_eq!(provider.nodes().len(), 1);
    let gone = provider.find_gone(&[], std::slice::from_ref(&node.instance)).await.expect("local");
    assert!(gone.contains(&node.instance));
}

#[tokio::test(start_paused = true)]
async fn lost_node_is_replaced_by_another() {
    let provider = provider(1, 8);
    let NodeOrder::Start(first) = provider.next_order().await else { panic!("a start") };
    provider.lose(&first.instance);
    let NodeOrder::Start(second) = provider.next_order().await else { panic!("a start") };
    assert_ne!(first.instance, second.instance);
    assert_ne!(first.node, second.node);
}

#[tokio::test(start_paused = true)]
async fn pool_without_machines_fails_until_there_are_some() {
    let provider = provider(0, 1);
    provider.raise(&policy_pool(), 0, 2, 1).await.expect("room");
    let view = look(&provider).await;
    let failures = &view.activities.known().expect("local").failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].kind, FailureKind::Capacity);
    assert!(matches!(provider.next_order().await, NodeOrder::Start(_)));
    provider.set_limit(&policy_pool().name, 2);
    assert!(matches!(provider.next_order().await, NodeOrder::Start(_)));
    assert_eq!(states(&provider).await, [InstanceState::InService; 2]);
}
