//! `ebbtide queue requeue`: takes leased units from their holders.

use ebbtide_core::ids::UnitId;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::reply::WriteReply;
use serde_json::json;

use crate::place::Answer;
use crate::table::Table;

/// Takes each unit; bad when one is unknown or was not answered.
pub async fn requeue(queue: &WorkQueue, units: &[UnitId]) -> Answer {
    let mut outcomes = Vec::with_capacity(units.len());
    for unit in units {
        outcomes.push((unit.clone(), queue.requeue(unit).await));
    }
    tell(&outcomes)
}

fn tell(outcomes: &[(UnitId, Result<WriteReply, QueueError>)]) -> Answer {
    let mut table = Table::new(["", ""]);
    let mut units = Vec::new();
    let mut is_good = true;
    for (unit, outcome) in outcomes {
        let (is_right, words) = meaning(outcome);
        is_good &= is_right;
        table.row([unit.to_string(), words.clone()]);
        let is_taken = matches!(outcome, Ok(WriteReply::Ok));
        units.push(json!({ "unit": unit.to_string(), "requeued": is_taken, "message": words }));
    }
    let json = json!({ "ok": is_good, "units": units });
    Answer { is_good, text: table.to_lines().join("\n"), json }
}

fn meaning(outcome: &Result<WriteReply, QueueError>) -> (bool, String) {
    match outcome {
        Ok(WriteReply::Ok) => {
            (true, "taken from its holder, ready again with its tokens".to_owned())
        }
        Ok(WriteReply::AlreadyDone) => (true, "nobody holds it: nothing was done".to_owned()),
        Ok(WriteReply::Unknown) => (false, "there is no such unit in this run".to_owned()),
        Ok(other) => (false, format!("unexpected answer: {other:?}")),
        Err(error) => (false, format!("not known whether it was taken: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_is_told_in_words() {
        let unit = |slot| UnitId { group: "g".parse().expect("valid"), slot };
        let outcomes = [
            (unit(0), Ok(WriteReply::Ok)),
            (unit(1), Ok(WriteReply::AlreadyDone)),
            (unit(2), Ok(WriteReply::Unknown)),
        ];
        let answer = tell(&outcomes);
        assert!(!answer.is_good);
        assert_eq!(
            answer.text,
            "g.0000  taken from its holder, ready again with its tokens\n\
             g.0001  nobody holds it: nothing was done\n\
             g.0002  there is no such unit in this run"
        );
        assert_eq!(answer.json["units"][0]["requeued"], true);
        assert!(tell(&outcomes[..2]).is_good);
    }
}
