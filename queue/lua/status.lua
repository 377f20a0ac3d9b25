-- STATUS
-- Answers {now, version, ready, leased, reward_ready, reward_leased, sealed_waiting, sealed_taken,
-- oldest_ready_at, failures, counters}.

-- When the oldest ready unit of a stage was enqueued: within one priority the first is the oldest,
-- so only the head of each is looked at. 64 priorities are more than a run has.
local function oldest_in(stage)
  local from, oldest = '-inf', math.huge
  for _ = 1, 64 do
    local head =
      call('ZRANGE', READY[stage].key, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if #head == 0 then break end
    local group = read_group(group_of(head[1]))
    if group then oldest = math.min(oldest, group[ENQUEUED_AT]) end
    from = (math.floor(tonumber(head[2]) / 2 ^ 40) + 1) * 2 ^ 40
  end
  return oldest
end

register('status', 'reads', function()
  local oldest = math.min(oldest_in(GENERATE), oldest_in(REWARD))
  local pending = redis.pcall('XPENDING', OUT, TRAINERS)
  local taken = pending.err and 0 or pending[1]
  local function size(set) return call('ZCARD', set.key) end
  return { now, current, size(READY[GENERATE]), size(LEASE[GENERATE]), size(READY[REWARD]),
    size(LEASE[REWARD]), call('XLEN', OUT) - taken, taken, oldest == math.huge and 0 or oldest,
    call('XLEN', FAILED), call('HGETALL', COUNTERS) }
end)
