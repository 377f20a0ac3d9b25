-- ENQUEUE group size fewest max_lag resume min_version priority max_attempts max_infra
--         max_leased_ms expires_at_ms max_tokens spec
-- Adds a group, all slots or none. Answers OK or ALREADY_DONE.
for _, old in ipairs(redis.call('ZRANGE', TOMBS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 16)) do
  redis.call('ZREM', TOMBS, old)
end
local id = ARGV[1]
if redis.call('HEXISTS', GROUPS, id) == 1 or redis.call('ZSCORE', TOMBS, id) then
  return 'ALREADY_DONE'
end
local group = {}
for field = SIZE, MAX_TOKENS do group[field] = tonumber(ARGV[field + 1]) end
group[SEALED] = 0
write(GROUPS, id, group)
redis.call('HSET', SPECS, id, ARGV[13])
local last = redis.call('HINCRBY', COUNTERS, 'sequence', group[SIZE])
for slot = 0, group[SIZE] - 1 do
  local unit = unit_of(id, slot)
  local sequence = last - group[SIZE] + 1 + slot
  local record = { ENQUEUED, 0, '', 0, 0, 0, 0, 0, 0, 0, sequence, now, now, now, 0, 0, 0, 0, '' }
  make_ready(unit, record, group)
end
count('enqueued', group[SIZE])
return 'OK'
