-- RENEW holder idle_ms environment_ms engine_pause_ms {unit token ttl_ms waiting}...
-- Moves lease deadlines forward; answers the units whose lease is lost. `waiting` is 0 for
-- nothing, 1 for the environment, 2 for a paused engine. A unit without progress beyond its limit
-- goes to another holder, counted as an attempt. Scoring makes no tokens: its limit is always that
-- of the environment.

local function note_wait(unit, waiting)
  if waiting == 0 and unit[WAITING_SINCE] > 0 then
    unit[WAITING_SINCE], unit[PROGRESS_AT] = 0, now
    touch(unit)
  elseif waiting > 0 and unit[WAITING_SINCE] == 0 then
    unit[WAITING_SINCE] = unit[STAGE] == REWARD and unit[LEASED_AT] or now
    touch(unit)
  end
end

-- Whether the holder still has the unit afterwards.
local function renew(holder, limits, id, token, ttl, waiting)
  local unit = read_unit(id)
  if not unit or not is_leased(unit[STATE]) or unit[TOKEN] ~= token or unit[HOLDER] ~= holder then
    return false
  end
  if unit[STAGE] == REWARD then waiting = 1 end
  note_wait(unit, waiting)
  local quiet_since = math.max(unit[PROGRESS_AT], unit[LEASED_AT], unit[WAITING_SINCE])
  if now - quiet_since > limits[waiting] then
    fault(unit, 'no progress')
    return false
  end
  local longest = unit[GROUP][MAX_LEASED]
  if longest > 0 and now - unit[LEASED_AT] > longest then
    fault(unit, 'leased too long')
    return false
  end
  unit[DEADLINE] = now + ttl
  move(unit)
  return true
end

register('renew', 'finishes', function()
  local limits = { [0] = tonumber(ARGV[2]), [1] = tonumber(ARGV[3]), [2] = tonumber(ARGV[4]) }
  local lost, ids = {}, {}
  for at = 5, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end
  fetch_units(ids)
  for at = 5, #ARGV, 4 do
    local id, token = ARGV[at], tonumber(ARGV[at + 1])
    local ttl, waiting = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if not renew(ARGV[1], limits, id, token, ttl, waiting) then lost[#lost + 1] = id end
  end
  flush()
  return lost
end)
