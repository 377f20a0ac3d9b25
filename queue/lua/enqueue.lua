-- ENQUEUE group size fewest stages max_lag resume min_version priority max_attempts max_infra
--         max_leased_ms expires_at_ms max_tokens remember_ms spec retry_of
-- Adds a group, all slots or none. Answers OK or ALREADY_DONE. `retry_of` is '' or the record of
-- this group's failure, which makes place for the new attempt; UNKNOWN when there is none.
register('enqueue', 'adds', function()
  for _, old in ipairs(call('ZRANGE', TOMBS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 16)) do
    call('ZREM', TOMBS, old)
  end
  local id, spec, retry_of = ARGV[1], ARGV[15], ARGV[16]
  if call('HEXISTS', GROUPS, id) == 1 then return 'ALREADY_DONE' end
  if retry_of ~= '' then
    if call('XDEL', FAILED, retry_of) == 0 then return 'UNKNOWN' end
    call('ZREM', TOMBS, id)
  elseif call('ZSCORE', TOMBS, id) then
    return 'ALREADY_DONE'
  end
  local terms = {}
  for index = 1, REMEMBER - SIZE + 1 do terms[index] = tonumber(ARGV[index + 1]) end
  local size = terms[1]
  local sequence = call('HINCRBY', COUNTERS, 'sequence', size) - size + 1
  local group = new_group(id, sequence, pack(terms))
  groups[id] = group
  touch_group(group)
  call('HSET', SPECS, id, spec)
  if group[EXPIRES_AT] > 0 then call('ZADD', EXPIRY, group[EXPIRES_AT], id) end
  local ready = { n = 0 }
  for slot = 0, size - 1 do put_pair(ready, rank_of(group, slot, 0), unit_of(id, slot)) end
  call_on('ZADD', READY[GENERATE].key, ready)
  count('enqueued', size)
  flush()
  return 'OK'
end)
