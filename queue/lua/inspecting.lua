-- A unit as audits and operators see it: what SCAN, PEEK and TRACE share.

-- {id, state, stage, tokens, holder, token, attempts, infra, hand_backs, is_sealed, first, last,
-- enqueued_at, leased_at, deadline}; `first` and `last` are -1 without tokens.
local function snapshot(id)
  local unit = read_unit(id)
  if not unit then return nil end
  local group, has_tokens = unit[GROUP], unit[PARTS] > 0
  return { id, unit[STATE], unit[STAGE], unit[TOKENS], unit[HOLDER], unit[TOKEN],
    unit[ATTEMPTS] + unit[SCORE_ATTEMPTS], unit[INFRA], unit[HAND_BACKS],
    group[ENTRY] ~= '' and 1 or 0, has_tokens and unit[FIRST] or -1,
    has_tokens and unit[LAST] or -1, group[ENQUEUED_AT], unit[LEASED_AT],
    is_leased(unit[STATE]) and tonumber(call('ZSCORE', place_of(unit).key, id) or '0') or 0 }
end

local function snapshots_of_group(id)
  local snapshots = {}
  local group = read_group(id)
  for slot = 0, group and group[SIZE] - 1 or -1 do
    snapshots[#snapshots + 1] = snapshot(unit_of(id, slot))
  end
  return snapshots
end
