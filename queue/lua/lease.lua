-- LEASE holder request_id limit ttl_ms worker_version start_at allow_fresh reap_limit scan_limit
-- Grants up to `limit` units. Answers {version, resume_at, grants, specs}; a grant is {unit, token,
-- parts, attempts}, `specs` pairs each group with its spec. Repeated with the same request id: the
-- same grant, as far as it still holds.
local holder, request_id, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ttl, worker, start_at = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local allow_fresh, reap_limit, scan_limit = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])

local specs, has_spec = {}, {}
local function describe(unit, record)
  local id = group_of(unit)
  if not has_spec[id] then
    has_spec[id] = true
    specs[#specs + 1] = id
    specs[#specs + 1] = redis.call('HGET', SPECS, id)
  end
  return { unit, record[TOKEN], record[PARTS], record[ATTEMPTS] }
end

local function is_fresh_enough(group) return lag(worker) <= group[MAX_LAG] end

local function admit_fresh(record, group)
  if not allow_fresh or worker < group[MIN_VERSION] or not is_fresh_enough(group) then
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
  if record[TOKENS] == 0 then return admit_fresh(record, group) end
  if group[RESUME] == RESTART_IF_NEWER and current > record[LAST] then
    count('wasted:restarted', record[TOKENS])
    drop_chunks(unit, record)
    record[TOKENS], record[PARTS], record[PRESERVED], record[RESTARTED] = 0, 0, 0, 1
    make_ready(unit, record, group)
    return admit_fresh(record, group)
  end
  if is_stale(group, record[FIRST]) then
    end_slot(unit, record, group, EXPIRED, 'stale')
    return false
  end
  return worker >= record[LAST] and is_fresh_enough(group)
end

local function grant(unit, record)
  record[STATE], record[HOLDER] = LEASED, holder
  record[TOKEN] = redis.call('HINCRBY', COUNTERS, 'token', 1)
  record[LEASED_AT], record[PROGRESS_AT], record[WAITING_SINCE] = now, now, 0
  record[AT_LEASE] = record[TOKENS]
  write(UNITS, unit, record)
  redis.call('ZREM', READY, unit)
  redis.call('ZADD', LEASE, now + ttl, unit)
end

-- Describes those of a grant {request, unit, token...} that the holder still has: a group may have
-- failed since, even by a later unit of the same call.
local grants = {}
local function describe_held(known)
  for index = 2, #known, 2 do
    local record = read(UNITS, known[index])
    if record and is_leased(record[STATE]) and record[TOKEN] == known[index + 1] then
      grants[#grants + 1] = describe(known[index], record)
    end
  end
end

local known = read(GRANTS, holder)
if known and known[1] == request_id then
  describe_held(known)
  return { current, '0', grants, specs }
end

reap(reap_limit)
local ready = redis.call('ZRANGE', READY, start_at, '+inf', 'BYSCORE',
  'LIMIT', 0, scan_limit, 'WITHSCORES')
local resume_at, granted, given = 0, 0, { request_id }
for index = 1, #ready, 2 do
  if granted == limit then break end
  local unit = ready[index]
  resume_at = tonumber(ready[index + 1]) + 1
  -- The unit may be gone: the one before it may have failed their group.
  local record = read(UNITS, unit)
  local group = record and read(GROUPS, group_of(unit))
  if group and record[STATE] == ENQUEUED and admit(unit, record, group) then
    grant(unit, record)
    granted = granted + 1
    given[#given + 1] = unit
    given[#given + 1] = record[TOKEN]
  end
end
if #ready < 2 * scan_limit or granted == limit then resume_at = 0 end
write(GRANTS, holder, given)
describe_held(given)
return { current, string.format('%.0f', resume_at), grants, specs }
