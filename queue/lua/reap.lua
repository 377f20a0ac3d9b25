-- REAP limit
-- Returns units whose lease has expired to the ready queue, ends groups whose time is over, and
-- forgets grants that nobody asks for again; answers how many leases had expired.
local reaped = reap(tonumber(ARGV[1]))
local grants = call('HRANDFIELD', GRANTS, 16, 'WITHVALUES')
for index = 1, #grants, 2 do
  if unpacked(grants[index + 1])[2] < now - 3600000 then call('HDEL', GRANTS, grants[index]) end
end
-- A few records at a time, the whole shard again and again: a unit that stands nowhere, or in the
-- wrong place, is put where its record says.
local page = call('HSCAN', UNITS, call('HGET', COUNTERS, 'repair_cursor') or '0', 'COUNT', 32)
for index = 1, #page[2], 2 do
  local unit = page[2][index]
  local record = read_unit(unit)
  local stands = record and groups[group_of(unit)] and place_of(record)
  if stands and not call('ZSCORE', stands, unit) then
    moved[unit], changed[unit] = true, true
    count('repaired', 1)
  end
end
flush()
call('HSET', COUNTERS, 'repair_cursor', page[1])
return reaped
