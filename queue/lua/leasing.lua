-- Granting units: what a call does for its lease.

-- Leases that have run out which one call ends at most, and ready units that it looks at.
local REAP_LIMIT, SCAN_LIMIT = 64, 1000

-- What is asked for: holder, id, stage, limit, ttl, worker_version, start_at, allow_fresh; and what
-- follows from that.
local request = {}

-- The answer: one flat list; how long it is, where the answer to the lease begins, how many grants
-- it has, and the groups whose specs it needs.
local function new_answer() return { n = 0, at = 0, count = 0, names = { n = 0 } } end
local answer = new_answer()

-- Adds a grant to the answer: unit, token, parts, origins, attempts, finish; and remembers whose
-- spec it needs.
local function add_grant(id, group, token, parts, origins, attempts, finish)
  local n = answer.n
  answer[n + 1], answer[n + 2], answer[n + 3] = id, token, parts
  answer[n + 4], answer[n + 5], answer[n + 6] = origins, attempts, finish
  answer.n, answer.count = n + 6, answer.count + 1
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

-- Begins the answer to a lease behind the replies: version, resume_at, how many grants; those; then
-- each group's name and spec.
local function begin_answer()
  local n = answer.n
  answer[n + 1], answer[n + 2], answer[n + 3] = current, '0', 0
  answer.at, answer.n, answer.count, answer.names.n = n + 2, n + 3, 0, 0
end

local function end_answer(resume_at)
  local names, n = answer.names, answer.n
  if resume_at > 0 then answer[answer.at] = string.format('%d', resume_at) end
  answer[answer.at + 1] = answer.count
  local specs = names.n > 0 and call('HMGET', SPECS, unpack(names, 1, names.n)) or names
  for index = 1, names.n do
    answer[n + 1], answer[n + 2] = names[index], specs[index]
    n = n + 2
  end
  answer.n = n
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

-- One page of the ready queue.
local function ready_page(stage, from, length)
  return call('ZRANGE', READY[stage].key, from, '+inf', 'BYSCORE', 'LIMIT', '0', text_of(length))
end

-- Looks at ready units, few at first (`page`, when those were fetched already), until enough are
-- admitted. Answers their ids, and where to go on: 0 when the queue was seen to its end or enough
-- was found.
local function choose(page)
  local limit, stage = request.limit, request.stage
  local from, seen, length, chosen = request.start_at, 0, limit, { n = 0 }
  while seen < SCAN_LIMIT do
    length = math.min(length, SCAN_LIMIT - seen)
    local ids = page
    if not ids then
      ids = ready_page(stage, from, length)
      fetch_units(ids)
    end
    local count_ids = #ids
    for index = 1, count_ids do
      local id = ids[index]
      local group = records[id] == false and units[id] == nil and groups[group_of(id)]
      local is_admitted
      if group and group[EXPIRES_AT] == 0 then
        is_admitted = admit_fresh(group)
      else
        -- It may be gone: the one before it may have failed their group.
        local unit = read_unit(id)
        is_admitted = unit and unit[STATE] == ENQUEUED and admit(unit)
      end
      if is_admitted then
        put(chosen, id)
        if chosen.n == limit then return chosen, 0 end
      end
    end
    if count_ids < length then return chosen, 0 end
    from, page = tonumber(call('ZSCORE', READY[stage].key, ids[count_ids])) + 1, nil
    seen, length = seen + count_ids, length * 4
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

-- Grants chosen units, as far as they are still there, and remembers that.
local function grant_all(chosen)
  local count_chosen, holder = chosen.n, request.holder
  local first = call('HINCRBY', COUNTERS, 'token', text_of(count_chosen)) - count_chosen + 1
  local token, count_new = first, 0
  local given = { request.id, now_text, string.format('%d', first) }
  request.deadline = string.format('%d', now + request.ttl)
  request.record_end = struct.pack('>I2c0I6I2', #holder, holder, now, 0)
  for index = 1, count_chosen do
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
  call('HSET', GRANTS, request.memory, table.concat(given, ' '))
end

-- Grants what is asked for, and writes what has changed. Repeated with the same id: the same
-- grant. `page` is the first page of the ready queue, if it was fetched.
local function lease(page)
  request.memory = request.holder .. '|' .. text_of(request.stage)
  begin_answer()
  local known, resume_at = call('HGET', GRANTS, request.memory), 0
  local id, given = string.match(known or '', '^(%S+) %d+ (.*)$')
  if id == request.id then
    answer_again(given)
  else
    if reap(request.stage, REAP_LIMIT) > 0 then page = nil end
    local chosen
    chosen, resume_at = choose(page)
    if chosen.n > 0 then grant_all(chosen) end
  end
  flush()
  end_answer(resume_at)
end
