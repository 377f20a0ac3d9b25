-- Granting units: what LEASE and EXCHANGE share.

local request

-- The answer to a LEASE: {version, resume_at, grants, specs}; a grant is {unit, token, parts, origins,
-- attempts, finish}, `specs` pairs each group with its spec.
local function answer(grants, resume_at)
  local ids, has_id, specs = {}, {}, {}
  for _, granted in ipairs(grants) do
    local id = group_of(granted[1])
    if not has_id[id] then has_id[id], ids[#ids + 1] = true, id end
  end
  for index, spec in ipairs(#ids > 0 and call('HMGET', SPECS, unpack(ids)) or {}) do
    specs[2 * index - 1], specs[2 * index] = ids[index], spec
  end
  return { current, resume_at == 0 and '0' or string.format('%d', resume_at), grants, specs }
end

local function describe(unit, record)
  local attempts = request.stage == REWARD and SCORE_ATTEMPTS or ATTEMPTS
  return { unit, record[TOKEN], record[PARTS], record[ORIGINS], record[attempts], record[FINISH] }
end

-- Of what was given {request, at, unit, token...} only what the holder still has.
local function answer_again(given)
  local grants = {}
  for index = 3, #given, 2 do
    local record = read_unit(given[index])
    if record and is_leased(record[STATE]) and record[TOKEN] == given[index + 1] then
      grants[#grants + 1] = describe(given[index], record)
    end
  end
  return answer(grants, 0)
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

-- Whether a unit that was never leased may be granted; nothing when it needs a closer look. The answer
-- is the same for all units of a group.
local function admit_new(unit)
  if stored[unit] ~= false or units[unit] ~= nil then return nil end
  local group = groups[group_of(unit)]
  if not group or group[EXPIRES_AT] > 0 then return nil end
  return request.allow_fresh and request.worker_version >= group[MIN_VERSION]
    and is_fresh_enough(group)
end

local function grant(unit, record, token)
  record[STATE], record[HOLDER], record[TOKEN] = LEASED, request.holder, token
  record[LEASED_AT], deadlines[unit] = now, request.deadline
  if record[WAITING_SINCE] > 0 then record[WAITING_SINCE] = 0 end
  if record[TOKENS] > 0 or record[AT_LEASE] > 0 then record[AT_LEASE] = record[TOKENS] end
  changed[unit] = true
  return describe(unit, record)
end

-- The first lease of a unit, without making a record of it.
local function grant_new(unit, token)
  local packed = 'L' .. token .. request.brief
  stored[unit] = packed
  put(to_write, unit, packed)
  drop(READY[GENERATE], unit)
  put(list_of(to_add, LEASE[GENERATE]), request.deadline, unit)
  return { unit, token, 0, 0, 0, '' }
end

-- Looks at ready units, few at first, until enough are admitted. Answers them, and where to go on:
-- 0 when the queue was seen to its end or enough was found.
local function choose()
  local limit, ready_set = request.limit, READY[request.stage]
  local from, seen, page, chosen, count_chosen = request.start_at, 0, limit, {}, 0
  while count_chosen < limit and seen < request.scan_limit do
    page = math.min(page, request.scan_limit - seen)
    local ids = call('ZRANGE', ready_set, from, '+inf', 'BYSCORE', 'LIMIT', '0', text_of(page))
    fetch_units(ids)
    for _, unit in ipairs(ids) do
      if count_chosen == limit then break end
      local is_admitted = admit_new(unit)
      if is_admitted == nil then
        -- The unit may be gone: the one before it may have failed their group.
        local record, group = read_unit(unit), read_group(group_of(unit))
        is_admitted = group and record and record[STATE] == ENQUEUED and admit(unit, record, group)
      end
      if is_admitted then
        count_chosen = count_chosen + 1
        chosen[count_chosen] = unit
      end
    end
    if count_chosen == limit or #ids < page then return chosen, 0 end
    seen, from, page = seen + #ids, tonumber(call('ZSCORE', ready_set, ids[#ids])) + 1, page * 4
  end
  return chosen, from
end

-- Grants chosen units, as far as they are still there. Answers the grants.
local function grant_all(chosen)
  local token = call('HINCRBY', COUNTERS, 'token', text_of(#chosen)) - #chosen
  local grants, count_grants, given, count_new = {}, 0, { request.id, now }, 0
  for index, unit in ipairs(chosen) do
    local granted
    if admit_new(unit) then
      granted, count_new = grant_new(unit, token + index), count_new + 1
    else
      local record = read_unit(unit)
      granted = record and record[STATE] == ENQUEUED and grant(unit, record, token + index)
    end
    if granted then
      count_grants = count_grants + 1
      grants[count_grants] = granted
      given[2 * count_grants + 1], given[2 * count_grants + 2] = unit, token + index
    end
  end
  if count_new > 0 then hold(request.node, count_new) end
  call('HSET', GRANTS, request.memory, pack(given))
  return grants
end

-- Grants what `wanted` asks for. Repeated with the same id: the same grant.
local function lease(wanted)
  request = wanted
  request.memory = request.holder .. '|' .. request.stage
  local known = call('HGET', GRANTS, request.memory)
  known = known and unpacked(known)
  if known and known[1] == request.id then return answer_again(known) end

  request.node = string.match(request.holder, '^[^/]*')
  request.deadline = string.format('%d', now + request.ttl)
  request.brief = '|' .. request.holder .. '|' .. now_text
  reap(request.stage, request.reap_limit)
  local chosen, resume_at = choose()
  local grants = #chosen > 0 and grant_all(chosen) or {}
  flush()
  return answer(grants, resume_at)
end
