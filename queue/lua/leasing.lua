-- Granting units: what LEASE and EXCHANGE share.

local request

-- Answers {version, resume_at, grants, specs}; a grant is {unit, token, parts, origins, attempts,
-- finish}, `specs` pairs each group with its spec. Of what was given {request, at, unit, token...}
-- only what the holder still has: a group may have failed since, even by a later unit of this call.
local function describe_grants(given, resume_at)
  local grants, ids, has_id = {}, {}, {}
  local attempts = request.stage == REWARD and SCORE_ATTEMPTS or ATTEMPTS
  for index = 3, #given, 2 do
    local unit = given[index]
    local record = read_unit(unit)
    if record and is_leased(record[STATE]) and record[TOKEN] == given[index + 1] then
      grants[#grants + 1] = { unit, record[TOKEN], record[PARTS], record[ORIGINS],
        record[attempts], record[FINISH] }
      local id = group_of(unit)
      if not has_id[id] then has_id[id], ids[#ids + 1] = true, id end
    end
  end
  local specs = {}
  for index, spec in ipairs(#ids > 0 and call('HMGET', SPECS, unpack(ids)) or {}) do
    specs[2 * index - 1], specs[2 * index] = ids[index], spec
  end
  return { current, string.format('%.0f', resume_at), grants, specs }
end

local function is_fresh_enough(group) return lag(request.worker_version) <= group[MAX_LAG] end

local function admit_fresh(record, group)
  local worker = request.worker_version
  if not request.allow_fresh or worker < group[MIN_VERSION] or not is_fresh_enough(group) then
    return false
  end
  return record[RESTARTED] == 0 or worker >= current
end

-- Whether this worker may have the unit; ends or resets it where that is due for everybody.
local function admit(unit, record, group)
  if group[EXPIRES_AT] > 0 and group[EXPIRES_AT] <= now then
    end_slot(unit, record, group, EXPIRED, 'expired')
    return false
  end
  local is_scored = request.stage == REWARD
  if not is_scored and record[TOKENS] == 0 then return admit_fresh(record, group) end
  if not is_scored and group[RESUME] == RESTART_IF_NEWER and current > record[LAST] then
    count('wasted:restarted', record[TOKENS])
    remember(unit, record, 'restarted', '')
    drop_chunks(unit, record)
    record[PRESERVED], record[RESTARTED], moved[unit] = 0, 1, true
    return admit_fresh(record, group)
  end
  if record[PARTS] > 0 and is_stale(group, record[FIRST]) then
    end_slot(unit, record, group, EXPIRED, 'stale')
    return false
  end
  return is_scored or (request.worker_version >= record[LAST] and is_fresh_enough(group))
end

local function grant(unit, record, token)
  record[STATE], record[HOLDER], record[TOKEN] = LEASED, request.holder, token
  record[LEASED_AT], deadlines[unit] = now, now + request.ttl
  if record[WAITING_SINCE] > 0 then record[WAITING_SINCE] = 0 end
  if record[TOKENS] > 0 or record[AT_LEASE] > 0 then record[AT_LEASE] = record[TOKENS] end
  changed[unit] = true
end

-- Looks at ready units, few at first, until enough are admitted. Answers them, and where to go on:
-- 0 when the queue was seen to its end or enough was found.
local function choose()
  local limit, ready_set = request.limit, READY[request.stage]
  local from, seen, page, chosen = request.start_at, 0, limit, {}
  while #chosen < limit and seen < request.scan_limit do
    page = math.min(page, request.scan_limit - seen)
    local ids = call('ZRANGE', ready_set, from, '+inf', 'BYSCORE', 'LIMIT', 0, page)
    read_units(ids)
    for _, unit in ipairs(ids) do
      if #chosen == limit then break end
      -- The unit may be gone: the one before it may have failed their group.
      local record, group = units[unit], groups[group_of(unit)]
      if group and record and record[STATE] == ENQUEUED and admit(unit, record, group) then
        chosen[#chosen + 1] = unit
      end
    end
    if #ids < page then return chosen, 0 end
    seen, from, page = seen + #ids, tonumber(call('ZSCORE', ready_set, ids[#ids])) + 1, page * 4
  end
  return chosen, #chosen < limit and from or 0
end

-- Grants what `wanted` asks for. Repeated with the same id: the same grant.
local function lease(wanted)
  request = wanted
  local memory = request.holder .. '|' .. request.stage
  local known = call('HGET', GRANTS, memory)
  known = known and unpacked(known)
  if known and known[1] == request.id then return describe_grants(known, 0) end

  reap(request.stage, request.reap_limit)
  local chosen, resume_at = choose()
  local given = { request.id, now }
  if #chosen > 0 then
    local token = call('HINCRBY', COUNTERS, 'token', #chosen) - #chosen
    for index, unit in ipairs(chosen) do
      local record = units[unit]
      if record and record[STATE] == ENQUEUED then
        grant(unit, record, token + index)
        given[#given + 1] = unit
        given[#given + 1] = token + index
      end
    end
    call('HSET', GRANTS, memory, pack(given))
  end
  flush()
  return describe_grants(given, resume_at)
end
