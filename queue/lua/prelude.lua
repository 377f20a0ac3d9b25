-- What every script of a shard shares: keys, records, and how slots and groups end.
-- A client sends '#!lua' and its flags, then this file, then one of the others. Every script
-- declares the same keys in the same order, all with the hash tag of one shard. Times are
-- milliseconds of the Redis server's clock. `queue/src/memory` states the same rules in Rust.

local READY, LEASE, UNITS, SPECS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local GROUPS, CHUNKS, OUT, FAILED = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local COUNTERS, VERSION, GRANTS, TOMBS = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local TRAINERS = 'trainers'

-- Fields of a unit's record, a msgpack array in the hash UNITS.
local STATE, TOKEN, HOLDER, TOKENS, PARTS, FIRST, LAST = 1, 2, 3, 4, 5, 6, 7
local ATTEMPTS, INFRA, HAND_BACKS, SEQUENCE, ENQUEUED_AT = 8, 9, 10, 11, 12
local LEASED_AT, PROGRESS_AT, WAITING_SINCE = 13, 14, 15
local AT_LEASE, PRESERVED, RESTARTED, FINISH = 16, 17, 18, 19

-- States of a slot.
local ENQUEUED, LEASED, STREAMING, COMPLETED, DEAD, EXPIRED, CANCELLED = 0, 1, 2, 3, 4, 5, 6

-- Fields of a group's record, a msgpack array in the hash GROUPS.
local SIZE, FEWEST, MAX_LAG, RESUME, MIN_VERSION, PRIORITY = 1, 2, 3, 4, 5, 6
local MAX_ATTEMPTS, MAX_INFRA = 7, 8
local MAX_LEASED, EXPIRES_AT, MAX_TOKENS, SEALED = 9, 10, 11, 12
local CONTINUE_MIXED, RESTART_IF_NEWER, MASK_OLD = 0, 1, 2

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local current = tonumber(redis.call('GET', VERSION) or '0')

-- The consumer group of the buffer; it begins with the first entry, whenever it is made.
local function ensure_trainers()
  redis.pcall('XGROUP', 'CREATE', OUT, TRAINERS, '0', 'MKSTREAM')
end

local function count(name, by)
  if by > 0 then redis.call('HINCRBY', COUNTERS, name, by) end
end

local function group_of(unit)
  return string.sub(unit, 1, -6)
end

local function unit_of(group, slot)
  return string.format('%s.%04x', group, slot)
end

local function read(hash, field)
  local packed = redis.call('HGET', hash, field)
  return packed and cmsgpack.unpack(packed)
end

local function write(hash, field, record)
  redis.call('HSET', hash, field, cmsgpack.pack(record))
end

local function is_leased(state) return state == LEASED or state == STREAMING end
local function is_final(state) return state >= COMPLETED end

-- Resumed before fresh, then priority, then age: 1 + 12 + 40 bits, exact in a double.
local function score(record, group)
  local fresh = record[TOKENS] > 0 and 0 or 1
  return fresh * 2 ^ 52 + (group[PRIORITY] + 2048) * 2 ^ 40 + record[SEQUENCE] % 2 ^ 40
end

local function lag(version) return math.max(0, current - version) end

-- Whether tokens whose first span was made under `first` are too old by now.
local function is_stale(group, first)
  return group[RESUME] ~= MASK_OLD and lag(first) > group[MAX_LAG]
end

local function drop_chunks(unit, record)
  for part = 0, record[PARTS] - 1 do
    redis.call('HDEL', CHUNKS, unit .. '/' .. part)
  end
end

local function make_ready(unit, record, group)
  record[STATE] = ENQUEUED
  write(UNITS, unit, record)
  redis.call('ZREM', LEASE, unit)
  redis.call('ZADD', READY, string.format('%.0f', score(record, group)), unit)
end

-- Removes a group's records and leaves a tombstone, so that repeated calls are answered.
local function bury(id, group)
  for slot = 0, group[SIZE] - 1 do
    local unit = unit_of(id, slot)
    local record = read(UNITS, unit)
    if record then drop_chunks(unit, record) end
    redis.call('HDEL', UNITS, unit)
  end
  redis.call('HDEL', GROUPS, id)
  redis.call('HDEL', SPECS, id)
  local window = tonumber(redis.call('HGET', COUNTERS, 'dedup_window_ms') or '86400000')
  redis.call('ZADD', TOMBS, now + window, id)
end

local function record_failure(id, group, reason, tally, wasted)
  count('groups_failed', 1)
  redis.call('XADD', FAILED, 'MAXLEN', '~', 10000, '*', 'group', id, 'reason', reason,
    'size', group[SIZE], 'completed', tally[COMPLETED], 'dead', tally[DEAD],
    'expired', tally[EXPIRED], 'cancelled', tally[CANCELLED], 'wasted', wasted)
end

local function new_tally()
  return { [COMPLETED] = 0, [DEAD] = 0, [EXPIRED] = 0, [CANCELLED] = 0 }
end

-- Ends a group as FAILED: what is not final is cancelled, every token is wasted.
local function fail(id, group, reason)
  local tally, complete, partial = new_tally(), 0, 0
  for slot = 0, group[SIZE] - 1 do
    local unit = unit_of(id, slot)
    local record = read(UNITS, unit)
    if not is_final(record[STATE]) then
      redis.call('ZREM', READY, unit)
      redis.call('ZREM', LEASE, unit)
      partial = partial + record[TOKENS]
      record[STATE] = CANCELLED
    elseif record[STATE] == COMPLETED then
      complete = complete + record[TOKENS]
    end
    tally[record[STATE]] = tally[record[STATE]] + 1
  end
  count('cancelled', tally[CANCELLED])
  count(reason == 'stale' and 'wasted:stale' or 'wasted:group_failed', complete)
  count('wasted:cancelled', partial)
  record_failure(id, group, reason, tally, complete + partial)
  bury(id, group)
end

-- Seals or fails a group whose slots are all final.
local function settle(id, group)
  local done, tokens, oldest = 0, 0, math.huge
  for slot = 0, group[SIZE] - 1 do
    local record = read(UNITS, unit_of(id, slot))
    if not is_final(record[STATE]) then return end
    if record[STATE] == COMPLETED then
      done, tokens = done + 1, tokens + record[TOKENS]
      if record[PARTS] > 0 then oldest = math.min(oldest, record[FIRST]) end
    end
  end
  if is_stale(group, oldest) then return fail(id, group, 'stale') end
  if done < group[FEWEST] then return fail(id, group, 'too_few_samples') end
  group[SEALED] = 1
  write(GROUPS, id, group)
  count('tokens_accepted', tokens)
  count('groups_sealed', 1)
  redis.call('XADD', OUT, '*', 'group', id)
end

-- Ends a slot without a sample; its tokens are wasted, and its group settles.
local function end_slot(unit, record, group, state, cause)
  local id = group_of(unit)
  redis.call('ZREM', READY, unit)
  redis.call('ZREM', LEASE, unit)
  count(state == DEAD and 'dead' or 'expired', 1)
  count('wasted:' .. cause, record[TOKENS])
  drop_chunks(unit, record)
  record[STATE], record[TOKENS], record[PARTS] = state, 0, 0
  write(UNITS, unit, record)
  if group[FEWEST] < group[SIZE] then settle(id, group) else fail(id, group, cause) end
end

local function hand_back(unit, record, group, cause)
  count('hand_backs:' .. cause, 1)
  record[HAND_BACKS] = record[HAND_BACKS] + 1
  make_ready(unit, record, group)
end

-- A model or engine fault: back to the queue, or DEAD when the attempts are used up.
local function fault(unit, record, group)
  record[ATTEMPTS] = record[ATTEMPTS] + 1
  if record[ATTEMPTS] >= group[MAX_ATTEMPTS] then
    end_slot(unit, record, group, DEAD, 'dead')
  else
    make_ready(unit, record, group)
  end
end

-- A lost holder: never an attempt.
local function lose_holder(unit, record, group)
  record[INFRA] = record[INFRA] + 1
  if group[MAX_INFRA] > 0 and record[INFRA] >= group[MAX_INFRA] then
    end_slot(unit, record, group, DEAD, 'dead')
  else
    make_ready(unit, record, group)
  end
end

local function reap(limit)
  local reaped = 0
  for _, unit in ipairs(redis.call('ZRANGE', LEASE, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
    local record = read(UNITS, unit)
    if record and is_leased(record[STATE]) then
      count('lease_expiries', 1)
      reaped = reaped + 1
      lose_holder(unit, record, read(GROUPS, group_of(unit)))
    else
      redis.call('ZREM', LEASE, unit)
    end
  end
  return reaped
end

-- The holder goes on from what others stored: those tokens are preserved, each once.
local function count_preserved(record)
  count('tokens_preserved', record[AT_LEASE] - record[PRESERVED])
  record[PRESERVED] = math.max(record[PRESERVED], record[AT_LEASE])
end
