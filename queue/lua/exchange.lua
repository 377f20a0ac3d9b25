-- EXCHANGE holder request_id stage limit ttl_ms worker_version start_at allow_fresh {write}...
-- First the writes, then the lease; `limit` 0 leases nothing. One round trip for a whole cycle of a
-- worker. Answers a reply for each write; behind them, with a lease, version, resume_at, how many
-- grants, {unit token parts origins attempts finish}..., {group spec}.... It is one flat list, for
-- Redis sends nested ones slowly. LEASE and WRITE are this function with the other part empty.

local ids = { n = 0 }

local function read_request()
  request.holder, request.id, request.stage = ARGV[1], ARGV[2], tonumber(ARGV[3])
  request.limit, request.ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
  request.worker_version, request.start_at = tonumber(ARGV[6]), ARGV[7]
  request.allow_fresh = ARGV[8] == '1'
end

register('exchange', 'finishes', function()
  read_request()
  local limit, page = request.limit, nil
  -- A long answer would keep its specs.
  if answer.n > 256 then answer = new_answer() end
  ids.n, answer.n = 0, 0
  list_written(9, ids)
  if limit > 0 then
    page = ready_page(request.stage, request.start_at, limit)
    for index = 1, #page do put(ids, page[index]) end
  end
  fetch_units(ids)
  write_all(request.holder, 9, answer)
  -- What is ready again must be seen by the lease; all else is written once, after it.
  if limit == 0 or changed_ready() then
    flush()
    page = nil
  end
  if limit > 0 then lease(page) end
  -- The table is used again: Redis reads it up to here.
  answer[answer.n + 1] = nil
  return answer
end)
