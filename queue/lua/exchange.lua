-- EXCHANGE {holder request_id stage limit ttl_ms worker_version start_at allow_fresh writes
--          {write}...}...
-- Requests of one or more workers, at one moment: first all that they write, then what they lease;
-- `writes` is the number of a request's writes, and `limit` 0 leases nothing. One round trip for a
-- whole cycle of a worker. Answers a reply for each write of each request; behind all of those, for
-- each lease, version, resume_at, how many grants, {unit token parts origins attempts finish}...;
-- and at the end {group spec}.... It is one flat list, for Redis sends nested ones slowly.

local requests, ids = { n = 0 }, { n = 0 }

-- Reads the request that begins there; answers where it ends.
local function read_request(at)
  local asks = requests[requests.n + 1] or {}
  put(requests, asks)
  asks.holder, asks.id, asks.stage = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  asks.limit, asks.ttl = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  asks.worker_version, asks.start_at = tonumber(ARGV[at + 5]), ARGV[at + 6]
  asks.allow_fresh, asks.writes = ARGV[at + 7] == '1', tonumber(ARGV[at + 8])
  asks.writes_at = at + 9
  return list_written(asks.writes_at, asks.writes, ids)
end

register('exchange', 'finishes', function()
  requests.n, ids.n = 0, 0
  local at, last = 1, #ARGV
  while at <= last do at = read_request(at) end
  local wanted = begin_leases(requests, ids)
  fetch_units(ids)
  begin_answer()
  for index = 1, requests.n do
    local asks = requests[index]
    write_all(asks.holder, asks.writes_at, asks.writes, answer)
  end
  -- What is ready again must be seen by the leases; all else is written once, after them.
  if changed_ready() then
    flush()
    forget_head()
  end
  if wanted > 0 then lease_all(requests, wanted) end
  flush()
  return end_answer()
end)
