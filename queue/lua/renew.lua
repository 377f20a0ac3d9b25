-- RENEW holder idle_ms environment_ms engine_pause_ms {unit token ttl_ms waiting}...
-- Moves lease deadlines forward; answers the units whose lease is lost. `waiting` is 0 for
-- nothing, 1 for the environment, 2 for a paused engine. A unit without progress beyond its limit
-- goes to another holder, counted as an attempt. Scoring makes no tokens: its limit is always that
-- of the environment.

local function note_wait(record, waiting)
  if waiting == 0 and record[WAITING_SINCE] > 0 then
    record[WAITING_SINCE], record[PROGRESS_AT] = 0, now
  elseif waiting > 0 and record[WAITING_SINCE] == 0 then
    record[WAITING_SINCE] = record[STAGE] == REWARD and record[LEASED_AT] or now
  end
end

-- Whether the holder still has the unit afterwards.
local function renew(holder, limits, unit, token, ttl, waiting)
  local record = read_unit(unit)
  if not record or not is_leased(record[STATE]) or record[TOKEN] ~= token
      or record[HOLDER] ~= holder then
    return false
  end
  local group = groups[group_of(unit)]
  if record[STAGE] == REWARD then waiting = 1 end
  note_wait(record, waiting)
  local quiet_since =
    math.max(record[PROGRESS_AT], record[LEASED_AT], record[WAITING_SINCE])
  if now - quiet_since > limits[waiting] then
    fault(unit, record, group, 'no progress')
    return false
  end
  if group[MAX_LEASED] > 0 and now - record[LEASED_AT] > group[MAX_LEASED] then
    fault(unit, record, group, 'leased too long')
    return false
  end
  deadlines[unit], changed[unit], moved[unit] = now + ttl, true, true
  return true
end

register('renew', FINISHES, function()
  local limits = { [0] = tonumber(ARGV[2]), [1] = tonumber(ARGV[3]), [2] = tonumber(ARGV[4]) }
  local lost, ids = {}, {}
  for at = 5, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end
  fetch_units(ids)
  for at = 5, #ARGV, 4 do
    local unit, token = ARGV[at], tonumber(ARGV[at + 1])
    local ttl, waiting = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if not renew(ARGV[1], limits, unit, token, ttl, waiting) then lost[#lost + 1] = unit end
  end
  flush()
  return lost
end)
