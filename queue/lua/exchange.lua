-- EXCHANGE holder request_id stage limit ttl_ms worker_version start_at allow_fresh reap_limit
--          scan_limit {write}...
-- First the writes, then the lease; `limit` 0 leases nothing. One round trip for a whole cycle of a
-- worker. Answers {replies, leased}; `leased` is false without a lease. LEASE and WRITE are this
-- function with the other part empty.
register('exchange', FINISHES, function()
  local holder, limit = ARGV[1], tonumber(ARGV[4])
  local replies = write_all(holder, 11)
  -- What is ready again must be seen by the lease; all else is written once, after it.
  if limit == 0 or changed_ready() then flush() end
  if limit == 0 then return { replies, false } end
  return { replies, lease({ holder = holder, id = ARGV[2], stage = tonumber(ARGV[3]),
    limit = limit, ttl = tonumber(ARGV[5]), worker_version = tonumber(ARGV[6]),
    start_at = ARGV[7], allow_fresh = ARGV[8] == '1', reap_limit = tonumber(ARGV[9]),
    scan_limit = tonumber(ARGV[10]) }) }
end)
