//! Storing tokens and ending units, each write checked against token and holder.

use ebbtide_core::ids::{Holder, UnitId};
use ebbtide_core::sample::Chunk;
use ebbtide_core::time::UnixMillis;

use super::MemoryShard;
use super::slots::Slot;
use crate::command::{Stage, Then, UnitWrite};
use crate::reply::WriteReply;
use crate::state::SlotState;

impl MemoryShard {
    pub(super) fn write_all(
        &mut self,
        holder: &Holder,
        writes: &[UnitWrite],
        now: UnixMillis,
    ) -> Vec<WriteReply> {
        writes.iter().map(|write| self.write(holder, write, now)).collect()
    }

    fn write(&mut self, holder: &Holder, write: &UnitWrite, now: UnixMillis) -> WriteReply {
        let unit = &write.unit;
        let Some(group) = self.groups.get(&unit.group) else { return self.ended_or_unknown(unit) };
        let max_tokens = group.spec.sampling.max_tokens;
        let Some(slot) = group.slots.get(usize::from(unit.slot)) else {
            return WriteReply::Unknown;
        };
        if slot.stage == Stage::Reward && slot.generated_under == Some(write.fencing_token) {
            return WriteReply::AlreadyDone;
        }
        if slot.fencing_token != write.fencing_token || slot.holder.as_ref() != Some(holder) {
            return WriteReply::Fenced;
        }
        if slot.state.is_final() {
            return WriteReply::AlreadyDone;
        }
        // Whoever writes is who made the tokens, whatever the chunk says.
        let mut tail = write.tail.clone();
        for chunk in &mut tail {
            chunk.origin.holder = holder.clone();
            chunk.origin.fencing_token = write.fencing_token;
        }
        if slot.state == SlotState::Enqueued {
            // Given back under this very token: by this very call, or by the reaper without these
            // tokens.
            let is_stored = tail.iter().all(|chunk| slot.chunks.contains(chunk));
            return match write.then {
                Then::HandBack(_) | Then::Fault(_) if is_stored => WriteReply::AlreadyDone,
                _ => WriteReply::Fenced,
            };
        }
        let is_wrong_stage = match slot.stage {
            Stage::Generate => matches!(write.then, Then::Score(_)),
            Stage::Reward => matches!(write.then, Then::Complete(_)) || !write.tail.is_empty(),
        };
        if is_wrong_stage {
            return WriteReply::WrongStage;
        }
        let new_chunks = match new_chunks(slot, &tail, max_tokens) {
            Ok(chunks) => chunks,
            Err(refusal) => return refusal,
        };
        self.store(unit, new_chunks, now);
        match &write.then {
            Then::Continue => {}
            Then::Complete(finish) => {
                self.count_preserved(unit);
                if let Some(slot) = self.slot_mut(unit) {
                    slot.finish = Some(finish.clone());
                }
                self.complete(unit, now);
            }
            Then::Score(score) => {
                if let Some(slot) = self.slot_mut(unit) {
                    slot.score = Some(score.clone());
                }
                self.complete(unit, now);
            }
            Then::HandBack(hand_back) => self.hand_back(unit, *hand_back, now),
            Then::Fault(detail) => self.fault(unit, detail, now),
        }
        WriteReply::Ok
    }

    pub(super) fn ended_or_unknown(&self, unit: &UnitId) -> WriteReply {
        if self.tombstones.contains_key(&unit.group) {
            WriteReply::AlreadyDone
        } else {
            WriteReply::Unknown
        }
    }

    fn store(&mut self, unit: &UnitId, chunks: &[Chunk], now: UnixMillis) {
        let stored: u64 = chunks.iter().map(|chunk| u64::from(chunk.len())).sum();
        if stored == 0 {
            return;
        }
        self.counters.tokens.generated += stored;
        self.count_preserved(unit);
        if let Some(slot) = self.slot_mut(unit) {
            slot.chunks.extend_from_slice(chunks);
            slot.progress_at = now;
            slot.state = SlotState::Streaming;
        }
    }

    /// The holder goes on from what others stored: those tokens are preserved, each once.
    fn count_preserved(&mut self, unit: &UnitId) {
        let Some(slot) = self.slot_mut(unit) else { return };
        let newly = slot.tokens_at_lease.saturating_sub(slot.tokens_preserved);
        slot.tokens_preserved = slot.tokens_preserved.max(slot.tokens_at_lease);
        self.counters.tokens.preserved += u64::from(newly);
    }

    /// The end of a stage: of the last one, or the unit waits for its score.
    fn complete(&mut self, unit: &UnitId, now: UnixMillis) {
        let current = self.counters.version;
        let Some(group) = self.groups.get(&unit.group) else { return };
        let versions = group.slots.get(usize::from(unit.slot)).and_then(Slot::versions);
        if versions.is_some_and(|partial| group.terms().is_stale(partial.first, current)) {
            self.end_slot(unit, SlotState::Expired, "stale", "", now);
            return;
        }
        self.leave_queues(unit);
        let has_reward_stage = self.settings.has_reward_stage;
        let Some(slot) = self.slot_mut(unit) else { return };
        if has_reward_stage && slot.stage == Stage::Generate {
            slot.stage = Stage::Reward;
            slot.generated_under = Some(slot.fencing_token);
            slot.waiting_since = None;
            slot.remember("generated", "", now);
            self.make_ready(unit);
            return;
        }
        slot.state = SlotState::Completed;
        self.counters.completed += 1;
        self.settle(&unit.group, now);
    }
}

/// The chunks of `tail` that are not stored yet.
///
/// A chunk that is stored already is skipped when it is equal to the stored one.
fn new_chunks<'a>(
    slot: &Slot,
    tail: &'a [Chunk],
    max_tokens: u32,
) -> Result<&'a [Chunk], WriteReply> {
    let stored = slot.tokens();
    let is_repeat = |chunk: &&Chunk| slot.chunks.iter().rev().any(|known| known == *chunk);
    let repeated = tail.iter().take_while(is_repeat).count();
    let fresh = &tail[repeated..];
    let mut end = stored;
    let mut version = slot.versions().map(|versions| versions.last);
    for chunk in fresh {
        if chunk.offset != end || chunk.is_empty() || chunk.end() > max_tokens {
            return Err(WriteReply::Offset(stored));
        }
        if version.is_some_and(|before| chunk.weight_version < before) {
            return Err(WriteReply::BadVersion);
        }
        end = chunk.end();
        version = Some(chunk.weight_version);
    }
    Ok(fresh)
}
