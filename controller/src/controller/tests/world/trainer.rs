//! The trainer in miniature: it reports, unless it is dead.

use std::sync::{Arc, Mutex};

use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::TrainerRecord;

use super::agents::BEAT;

/// The trainer, as it reports.
#[derive(Debug)]
pub struct FakeTrainer {
    pub record: TrainerRecord,
    /// It is dead, or starts anew.
    pub is_silent: bool,
}

/// Reports for ever.
pub async fn report_trainer(queue: WorkQueue, trainer: Arc<Mutex<FakeTrainer>>) {
    loop {
        let said = {
            let trainer = trainer.lock().expect("no panic");
            (!trainer.is_silent).then(|| trainer.record.clone())
        };
        if let Some(record) = said
            && queue.put_trainer(record).await.is_err()
        {
            tracing::debug!("queue is away");
        }
        tokio::time::sleep(BEAT).await;
    }
}
