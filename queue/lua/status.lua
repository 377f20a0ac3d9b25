-- STATUS
-- Answers {now, version, ready, leased, sealed_waiting, sealed_taken, oldest_ready_at, counters,
-- holders}; `holders` pairs each node with its leased units. The oldest ready unit is looked for
-- at both heads of the ready queue: the resumed and the fresh.
local function enqueued_at(from)
  local unit = redis.call('ZRANGE', READY, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  local record = unit and read(UNITS, unit)
  return record and record[ENQUEUED_AT] or math.huge
end
local oldest = math.min(enqueued_at('-inf'), enqueued_at(string.format('%.0f', 2 ^ 52)))
local by_node, nodes = {}, {}
for _, unit in ipairs(redis.call('ZRANGE', LEASE, 0, -1)) do
  local record = read(UNITS, unit)
  local node = record and string.match(record[HOLDER], '^([^/]*)/')
  if node then by_node[node] = (by_node[node] or 0) + 1 end
end
for node, leased in pairs(by_node) do
  nodes[#nodes + 1] = node
  nodes[#nodes + 1] = leased
end
local pending = redis.pcall('XPENDING', OUT, TRAINERS)
local taken = pending.err and 0 or pending[1]
return { now, current, redis.call('ZCARD', READY), redis.call('ZCARD', LEASE),
  redis.call('XLEN', OUT) - taken, taken, oldest == math.huge and 0 or oldest,
  redis.call('HGETALL', COUNTERS), nodes }
