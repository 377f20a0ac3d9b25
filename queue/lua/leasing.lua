-- Granting units: what a call does for its leases.

-- The answer: one flat list; how long it is, and the groups whose specs stand at its end.
local answer = { n = 0, names = { n = 0 } }

local begin_answer, end_answer, begin_leases, forget_head, lease_all
do
  -- Leases that have run out which one call ends at most, and ready units that it looks at.
  local REAP_LIMIT, SCAN_LIMIT = 64, 1000

  -- The request that is granted: holder, id, stage, limit, ttl, worker_version, start_at,
  -- allow_fresh; and what follows from those.
  local request

  function begin_answer()
    -- A long one would keep its specs.
    if answer.n > 256 then answer = { n = 0, names = { n = 0 } } end
    answer.n, answer.names.n = 0, 0
  end

  -- Adds a grant: unit, token, parts, origins, attempts, finish.
  local function add_grant(id, group, token, parts, origins, attempts, finish)
    local n = answer.n
    answer[n + 1], answer[n + 2], answer[n + 3] = id, token, parts
    answer[n + 4], answer[n + 5], answer[n + 6] = origins, attempts, finish
    answer.n = n + 6
    if not group[ANSWERED] then
      group[ANSWERED] = true
      put(answer.names, group[ID])
    end
  end

  local function add_unit(unit)
    local attempts = request.stage == REWARD and SCORE_ATTEMPTS or ATTEMPTS
    add_grant(unit[ID], unit[GROUP], unit[TOKEN], unit[PARTS], unit[ORIGINS], unit[attempts],
      unit[FINISH])
  end

  -- Adds the names and specs; answers the whole.
  function end_answer()
    local names, n = answer.names, answer.n
    if names.n > 0 then
      local specs = call('HMGET', SPECS, unpack(names, 1, names.n))
      for index = 1, names.n do
        answer[n + 1], answer[n + 2] = names[index], specs[index]
        n = n + 2
      end
    end
    -- The table is used again: Redis reads it up to here.
    answer[n + 1], answer.n = nil, n
    return answer
  end

  -- Of what was given, only what the holder still has. `given` is '<first token> {<unit> }', the
  -- tokens rise by one.
  local function answer_again(given)
    local token = tonumber(string.match(given, '^%d+'))
    for id in string.gmatch(given, ' (%S+)') do
      local unit = read_unit(id)
      if unit and is_leased(unit[STATE]) and unit[TOKEN] == token then add_unit(unit) end
      token = token + 1
    end
  end

  local function is_fresh_enough(group) return lag(request.worker_version) <= group[MAX_LAG] end

  local function admit_fresh(group)
    return request.allow_fresh and request.worker_version >= group[MIN_VERSION]
      and is_fresh_enough(group)
  end

  -- Whether this worker may have the unit; ends or resets it where that is due for everybody.
  local function admit(unit)
    local group, is_scored = unit[GROUP], request.stage == REWARD
    if group[EXPIRES_AT] > 0 and group[EXPIRES_AT] <= now then
      end_slot(unit, EXPIRED, 'expired')
      return false
    end
    if not is_scored and unit[TOKENS] > 0 and group[RESUME] == RESTART_IF_NEWER
        and current > unit[LAST] then
      count('wasted:restarted', unit[TOKENS])
      remember(unit, 'restarted', '')
      drop_chunks(unit)
      unit[PRESERVED], unit[RESTARTED] = 0, 1
      move(unit)
    end
    if not is_scored and unit[TOKENS] == 0 then
      return admit_fresh(group) and (unit[RESTARTED] == 0 or request.worker_version >= current)
    end
    if unit[PARTS] > 0 and is_stale(group, unit[FIRST]) then
      end_slot(unit, EXPIRED, 'stale')
      return false
    end
    return is_scored or (request.worker_version >= unit[LAST] and is_fresh_enough(group))
  end

  -- One page of a ready queue.
  local function ready_page(stage, from, length)
    return call('ZRANGE', READY[stage].key, from, '+inf', 'BYSCORE', 'LIMIT', '0', text_of(length))
  end

  -- The head of the ready queue of `stage`, fetched for all requests that begin there: units,
  -- `false` in place of those that were chosen; the first one that was not; how many were asked
  -- for; the last one; and where the queue goes on behind it.
  local head = { n = 0, at = 1, length = 0, stage = false, last = '', ends = false }

  -- Fetches the head, and adds its units to `ids`. Answers how many units are wanted in all.
  function begin_leases(requests, ids)
    local wanted = 0
    head.stage, head.length, head.ends = false, 0, false
    for index = 1, requests.n do
      local asks = requests[index]
      wanted = wanted + asks.limit
      local begins = asks.limit > 0 and asks.start_at == '0'
      if begins and (not head.stage or head.stage == asks.stage) then
        head.stage, head.length = asks.stage, math.min(head.length + asks.limit, SCAN_LIMIT)
      end
    end
    if head.stage then
      local found = ready_page(head.stage, '0', head.length)
      head.n, head.at = #found, 1
      for index = 1, head.n do
        head[index] = found[index]
        put(ids, found[index])
      end
      head.last = found[head.n]
    end
    return wanted
  end

  -- The queue has changed since the head was fetched.
  function forget_head() head.stage = false end

  -- Where the queue goes on behind the head.
  local function behind_head()
    if not head.ends then
      head.ends = tonumber(call('ZSCORE', READY[head.stage].key, head.last)) + 1
    end
    return head.ends
  end

  -- Whether this worker may have a unit that is ready.
  local function admits(id)
    local group = records[id] == false and units[id] == nil and groups[group_of(id)]
    if group and group[EXPIRES_AT] == 0 then return admit_fresh(group) end
    -- It may be gone: the one before it may have failed their group.
    local unit = read_unit(id)
    return unit and unit[STATE] == ENQUEUED and admit(unit)
  end

  -- Chooses from the head. Answers whether that is all there is to choose from.
  local function choose_from_head(chosen)
    for index = head.at, head.n do
      local id = head[index]
      if id and admits(id) then
        put(chosen, id)
        head[index] = false
        if chosen.n == request.limit then break end
      end
    end
    while head.at <= head.n and not head[head.at] do head.at = head.at + 1 end
    return chosen.n == request.limit or head.n < head.length
  end

  -- Looks at ready units, few at first, until enough are admitted. Answers their ids, and where to
  -- go on: 0 when the queue was seen to its end or enough was found.
  local function choose()
    local limit, stage, from, seen, length = request.limit, request.stage, request.start_at, 0, 0
    local chosen = { n = 0 }
    if head.stage == stage and from == '0' then
      if choose_from_head(chosen) then return chosen, 0 end
      from, seen, length = behind_head(), head.n, head.n
    end
    -- What others were granted in this call is no longer there.
    flush()
    while seen < SCAN_LIMIT do
      length = math.min(math.max(limit, 4 * length), SCAN_LIMIT - seen)
      local ids = ready_page(stage, from, length)
      fetch_units(ids)
      local count_ids = #ids
      for index = 1, count_ids do
        if admits(ids[index]) then
          put(chosen, ids[index])
          if chosen.n == limit then return chosen, 0 end
        end
      end
      if count_ids < length then return chosen, 0 end
      from = tonumber(call('ZSCORE', READY[stage].key, ids[count_ids])) + 1
      seen = seen + count_ids
    end
    return chosen, from
  end

  -- The first lease of a unit: its record follows from the request and the token.
  local function grant_new(id, token)
    records[id] = struct.pack('>BBI7c0', LEASED, GENERATE, token, request.record_end)
    put_pair(units_to_write, id, records[id])
    put(READY[GENERATE].to_drop, id)
    put_pair(LEASE[GENERATE].to_add, request.deadline, id)
    add_grant(id, groups[group_of(id)], token, 0, 0, 0, '')
  end

  local function grant(unit, token)
    unit[STATE], unit[HOLDER], unit[TOKEN] = LEASED, request.holder, token
    unit[LEASED_AT], unit[DEADLINE], unit[WAITING_SINCE] = now, request.deadline, 0
    unit[AT_LEASE] = unit[TOKENS]
    touch(unit)
    add_unit(unit)
  end

  -- The first of `count` tokens that rise by one. Those for the leases of the same call that
  -- follow, of up to `later` units, are taken at once.
  local next_token, spare_tokens = 0, 0
  local function take_tokens(count, later)
    if spare_tokens < count then
      spare_tokens = count + later
      next_token = call('HINCRBY', COUNTERS, 'token', text_of(spare_tokens)) - spare_tokens + 1
    end
    local first = next_token
    next_token, spare_tokens = next_token + count, spare_tokens - count
    return first
  end

  -- Grants chosen units, as far as they are still there. Answers what there is to remember of it.
  local function grant_all(chosen, later)
    local holder = request.holder
    local first = take_tokens(chosen.n, later)
    local token, count_new = first, 0
    local given = { request.id, now_text, format('%d', first) }
    request.deadline = format('%d', now + request.ttl)
    request.record_end = struct.pack('>I2c0I6I2', #holder, holder, now, 0)
    for index = 1, chosen.n do
      local id = chosen[index]
      local unit = units[id]
      local is_there = unit == nil or (unit and unit[STATE] == ENQUEUED)
      if unit == nil then
        grant_new(id, token)
        count_new = count_new + 1
      elseif is_there then
        grant(unit, token)
      end
      if is_there then
        token = token + 1
        given[token - first + 3] = id
      end
    end
    if count_new > 0 then hold(node_of_holder(holder), count_new) end
    return table.concat(given, ' ')
  end

  -- What a request is granted: repeated with the same id, what it was granted before (`known`).
  -- Answers where to go on in the queue.
  local function lease(known, later, grants, is_reaped)
    local id, given = string.match(known or '', '^(%S+) %d+ (.*)$')
    if id == request.id then
      answer_again(given)
      return 0
    end
    if not is_reaped[request.stage] then
      is_reaped[request.stage] = true
      if reap(request.stage, REAP_LIMIT) > 0 then forget_head() end
    end
    local chosen, resume_at = choose()
    if chosen.n > 0 then put_pair(grants, request.memory, grant_all(chosen, later)) end
    return resume_at
  end

  -- Leases for each request, `wanted` units in all: version, resume_at, how many grants, and those.
  function lease_all(requests, wanted)
    local memories, grants = { n = 0 }, { n = 0 }
    for index = 1, requests.n do
      local asks = requests[index]
      if asks.limit > 0 then
        asks.memory = asks.holder .. '|' .. text_of(asks.stage)
        put(memories, asks.memory)
      end
    end
    local known, count_leases = call('HMGET', GRANTS, unpack(memories, 1, memories.n)), 0
    local is_reaped = {}
    spare_tokens = 0
    for index = 1, requests.n do
      request = requests[index]
      if request.limit > 0 then
        local at = answer.n + 1
        answer[at], answer[at + 1], answer[at + 2], answer.n = current, '0', 0, at + 2
        count_leases, wanted = count_leases + 1, wanted - request.limit
        local resume_at = lease(known[count_leases], wanted, grants, is_reaped)
        if resume_at > 0 then answer[at + 1] = format('%d', resume_at) end
        answer[at + 2] = (answer.n - at - 2) / 6
      end
    end
    call_on('HSET', GRANTS, grants)
  end
end
