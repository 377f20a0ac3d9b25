-- REAP limit
-- Returns units whose lease has expired to the ready queue, ends groups whose time is over, forgets
-- grants that nobody asks for again, and mends what it meets out of place; answers how many leases
-- had expired.

-- Ends what is still open of groups whose time is over.
local function expire_due(limit)
  for _, id in ipairs(call('ZRANGE', EXPIRY, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
    call('ZREM', EXPIRY, id)
    local group = read_group(id)
    for slot = 0, group and group[SIZE] - 1 or -1 do
      local unit = read_unit(unit_of(id, slot))
      if unit and not is_final(unit[STATE]) then end_slot(unit, EXPIRED, 'expired') end
    end
  end
end

-- An hour is far longer than any client tries again.
local function forget_old_grants()
  local grants = call('HRANDFIELD', GRANTS, 16, 'WITHVALUES')
  for index = 1, #grants, 2 do
    local at = string.match(grants[index + 1], '^%S+ (%d+)')
    if tonumber(at) < now - 3600000 then call('HDEL', GRANTS, grants[index]) end
  end
end

-- A few records at a time, the whole shard again and again: a unit that stands nowhere is put where
-- its record says.
local function mend_some()
  local page = call('HSCAN', UNITS, call('HGET', COUNTERS, 'repair_cursor') or '0', 'COUNT', 32)
  for index = 1, #page[2], 2 do
    local unit = read_unit(page[2][index])
    if unit and unit[PLACE] and not call('ZSCORE', unit[PLACE].key, unit[ID]) then
      move(unit)
      count('repaired', 1)
    end
  end
  call('HSET', COUNTERS, 'repair_cursor', page[1])
end

register('reap', 'finishes', function()
  local limit = tonumber(ARGV[1])
  local reaped = reap(GENERATE, limit) + reap(REWARD, limit)
  expire_due(limit)
  flush()
  forget_old_grants()
  mend_some()
  flush()
  return reaped
end)
