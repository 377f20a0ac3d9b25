-- A unit as audits and operators see it: what SCAN, PEEK and TRACE share.

-- {id, state, stage, tokens, holder, token, attempts, infra, hand_backs, is_sealed, first, last,
-- enqueued_at, leased_at, deadline}; `first` and `last` are -1 without tokens.
local function snapshot(unit)
  local record, group = read_unit(unit), read_group(group_of(unit))
  if not record or not group then return nil end
  local has_tokens = record[PARTS] > 0
  return { unit, record[STATE], record[STAGE], record[TOKENS], record[HOLDER], record[TOKEN],
    record[ATTEMPTS] + record[SCORE_ATTEMPTS], record[INFRA], record[HAND_BACKS],
    group[ENTRY] ~= '' and 1 or 0, has_tokens and record[FIRST] or -1,
    has_tokens and record[LAST] or -1, group[ENQUEUED_AT], record[LEASED_AT],
    is_leased(record[STATE]) and tonumber(call('ZSCORE', place_of(record), unit) or '0') or 0 }
end

local function snapshots_of_group(id)
  local snapshots = {}
  local group = read_group(id)
  for slot = 0, group and group[SIZE] - 1 or -1 do
    snapshots[#snapshots + 1] = snapshot(unit_of(id, slot))
  end
  return snapshots
end
