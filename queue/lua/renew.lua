-- RENEW holder idle_ms environment_ms engine_pause_ms {unit token ttl_ms waiting}...
-- Moves lease deadlines forward; answers the units whose lease is lost. `waiting` is 0 for
-- nothing, 1 for the environment, 2 for a paused engine. A unit without progress beyond its limit
-- goes to another holder, counted as an attempt.
local holder = ARGV[1]
local limits = { [0] = tonumber(ARGV[2]), [1] = tonumber(ARGV[3]), [2] = tonumber(ARGV[4]) }
local lost = {}

local function renew(unit, token, ttl, waiting)
  local record = read(UNITS, unit)
  if not record or not is_leased(record[STATE]) or record[TOKEN] ~= token
      or record[HOLDER] ~= holder then
    return false
  end
  local group = read(GROUPS, group_of(unit))
  if waiting == 0 and record[WAITING_SINCE] > 0 then
    record[WAITING_SINCE], record[PROGRESS_AT] = 0, now
  elseif waiting > 0 and record[WAITING_SINCE] == 0 then
    record[WAITING_SINCE] = now
  end
  local quiet_since = record[WAITING_SINCE] > 0 and record[WAITING_SINCE] or record[PROGRESS_AT]
  local is_overdue = group[MAX_LEASED] > 0 and now - record[LEASED_AT] > group[MAX_LEASED]
  if now - quiet_since > limits[waiting] or is_overdue then
    fault(unit, record, group)
    return false
  end
  write(UNITS, unit, record)
  redis.call('ZADD', LEASE, now + ttl, unit)
  return true
end

for at = 5, #ARGV, 4 do
  local unit, token = ARGV[at], tonumber(ARGV[at + 1])
  local ttl, waiting = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  if not renew(unit, token, ttl, waiting) then lost[#lost + 1] = unit end
end
return lost
