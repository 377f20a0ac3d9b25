-- What every function on a shard shares: keys, records, and how slots and groups end.
--
-- The files of this folder are one Redis library: a client joins them in the order of
-- `queue/lua/ORDER` (those behind the empty line each between 'do' and 'end'), puts the line
-- '#!lua name=' and one that sets PREFIX before them, loads that, and calls FCALL with the prefix. Everything is defined once, when it is loaded; `begin` sets what belongs to
-- one call. Every function of a shard declares the same keys in the same order, all with the hash
-- tag of that shard. Times are milliseconds of the Redis server's clock. `queue/src/memory` states
-- the same rules in Rust.
--
-- Records are read once, changed in place, and written by `flush` at the end of the call: the sorted
-- set that a unit stands in, and the number of units that its node holds, follow from its record
-- there and nowhere else.

local GENERATE, REWARD = 0, 1
local TRAINERS = 'trainers'

-- Fields of a unit's record, a msgpack table in the hash UNITS that holds only what differs from the
-- default. A unit that was never leased has no record at all. One that was leased once and has no
-- tokens has a brief one, the text L<token>|<holder>|<leased at>, and C<the same>|<finish> when it
-- was completed like that: most units are leased, and in short texts that is quickly done.
local STATE, STAGE, TOKEN, HOLDER, LEASED_AT, PROGRESS_AT, WAITING_SINCE = 1, 2, 3, 4, 5, 6, 7
local TOKENS, PARTS, ORIGINS, FIRST, LAST, ORIGIN = 8, 9, 10, 11, 12, 13
local AT_LEASE, PRESERVED, RESTARTED, HAND_BACKS, ATTEMPTS, INFRA = 14, 15, 16, 17, 18, 19
local FINISH, GENERATED, SCORE, SCORE_ATTEMPTS = 20, 21, 22, 23
local UNIT = { __index = { 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, '', 0, '', 0 } }

-- States of a slot.
local ENQUEUED, LEASED, STREAMING, COMPLETED, DEAD, EXPIRED, CANCELLED = 0, 1, 2, 3, 4, 5, 6

-- Fields of a group's record, a msgpack table in the hash GROUPS that holds only what differs from
-- the default: how far it is, and its terms as one packed array that most groups of a run share.
local TERMS, SEQUENCE, ENQUEUED_AT, ENDED, DONE, DONE_TOKENS, OLDEST, ENTRY = 1, 2, 3, 4, 5, 6, 7, 8
-- Fields of the terms; a group answers them as if they were its own.
local SIZE, FEWEST, STAGES, MAX_LAG, RESUME, MIN_VERSION, PRIORITY = 11, 12, 13, 14, 15, 16, 17
local MAX_ATTEMPTS, MAX_INFRA, MAX_LEASED, EXPIRES_AT, MAX_TOKENS, REMEMBER = 18, 19, 20, 21, 22, 23
local CONTINUE_MIXED, RESTART_IF_NEWER, MASK_OLD = 0, 1, 2

-- How long a lease lasts whose entry was lost.
local LOST_LEASE_MS = 15000

-- Events that a unit's history keeps: its first and its last ones.
local HISTORY_LIMIT = 32

-- Set at each call: they are not there yet while the library is loaded.
local call, pack, unpacked

-- The keys, arguments and moment of the call, and the policy version that holds.
local READY, LEASE = {}, {}
local UNITS, GROUPS, SPECS, CHUNKS, HISTORY, OUT, FAILED, COUNTERS, VERSION, GRANTS, TOMBS, EXPIRY
local KEYS, ARGV, now, now_text, current

-- Records of the call; `false` stands for none. `stored` has units as they are stored; `group_id`
-- knows the group of each, `place` and `node` where it stood when it was read; `changed` and `moved`
-- tell what `flush` has to write, `deadlines` the ends of leases that were granted or renewed.
local stored, units, groups, group_id, place, node, deadlines
local changed, moved, changed_groups, counts, held
-- What `flush` will do: records to write, members to add to the sorted sets, members to drop.
local to_write, to_add, to_drop

-- What packed terms mean, and the node of a holder: found out once, and kept from call to call. They
-- follow from the text alone, so they are never out of date.
local terms_known, node_known, known_count, number_texts = {}, {}, 0, {}
local KNOWN_LIMIT = 4096

local function enter()
  call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
end

local function server_time()
  local clock = call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function begin_changes()
  changed, moved, changed_groups, counts, held = {}, {}, {}, {}, {}
  to_write, to_add, to_drop = { n = 0 }, {}, {}
end

local function begin(keys, arguments)
  KEYS, ARGV = keys, arguments
  READY[GENERATE], READY[REWARD], LEASE[GENERATE], LEASE[REWARD] = unpack(keys, 1, 4)
  UNITS, GROUPS, SPECS, CHUNKS, HISTORY, OUT, FAILED, COUNTERS, VERSION, GRANTS, TOMBS, EXPIRY =
    unpack(keys, 5, 16)
  now, current = server_time(), tonumber(call('GET', VERSION) or '0')
  now_text = string.format('%d', now)
  stored, units, groups, group_id, place, node, deadlines = {}, {}, {}, {}, {}, {}, {}
  begin_changes()
end

-- What a function that frees or finishes work declares: it must run even when memory is full. One
-- that adds work declares nothing and is refused then.
local FINISHES, ADDS, READS = { 'allow-oom' }, {}, { 'no-writes' }

local function register(name, flags, body)
  redis.register_function({ function_name = PREFIX .. name, flags = flags,
    callback = function(keys, arguments)
      enter()
      begin(keys, arguments)
      return body()
    end })
end

-- A function on control keys, which are other ones for each.
local function register_control(name, flags, body)
  redis.register_function({ function_name = PREFIX .. name, flags = flags,
    callback = function(keys, arguments)
      enter()
      return body(keys, arguments)
    end })
end

-- A whole number as text: Redis would print it with seventeen digits, which takes long.
local function text_of(number)
  if number < 0 or number > 4096 then return string.format('%d', number) end
  local text = number_texts[number]
  if not text then
    text = string.format('%d', number)
    number_texts[number] = text
  end
  return text
end

local function count(name, by)
  counts[name] = (counts[name] or 0) + by
end

local function group_of(unit)
  local id = group_id[unit]
  if not id then
    id = string.sub(unit, 1, -6)
    group_id[unit] = id
  end
  return id
end

local function slot_of(unit) return tonumber(string.sub(unit, -4), 16) end
local function unit_of(group, slot) return string.format('%s.%04x', group, slot) end

local function is_leased(state) return state == LEASED or state == STREAMING end
local function is_final(state) return state >= COMPLETED end
local function lag(version) return math.max(0, current - version) end

local function note_known()
  known_count = known_count + 1
  if known_count > KNOWN_LIMIT then terms_known, node_known, known_count = {}, {}, 0 end
end

-- A group's record: what it does not hold itself comes from its terms, and what those do not hold
-- from the defaults of a new group.
local function group_from(record)
  local packed = record[TERMS]
  local kind = terms_known[packed]
  if not kind then
    local defaults = { '', 0, 0, 0, 0, 0, -1, '' }
    for index, term in ipairs(unpacked(packed)) do defaults[SIZE + index - 1] = term end
    kind = { __index = defaults }
    note_known()
    terms_known[packed] = kind
  end
  return setmetatable(record, kind)
end

local function read_group(id)
  local group = groups[id]
  if group == nil then
    local packed = call('HGET', GROUPS, id)
    group = packed and group_from(unpacked(packed))
    groups[id] = group
  end
  return group
end

local function place_of(record)
  local state = record[STATE]
  if state == ENQUEUED then return READY[record[STAGE]] end
  if state <= STREAMING then return LEASE[record[STAGE]] end
end

local function node_of(record)
  local state, holder = record[STATE], record[HOLDER]
  if state ~= LEASED and state ~= STREAMING then return nil end
  local found = node_known[holder]
  if not found then
    found = string.match(holder, '^[^/]*')
    note_known()
    node_known[holder] = found
  end
  return found
end

local function unit_from(packed)
  local first = string.byte(packed)
  if first == 76 then
    local token, holder, leased_at = string.match(packed, '^L(%d+)|([^|]*)|(%d+)$')
    return setmetatable({ [STATE] = LEASED, [TOKEN] = tonumber(token), [HOLDER] = holder,
      [LEASED_AT] = tonumber(leased_at) }, UNIT)
  elseif first == 67 then
    local token, holder, leased_at, finish = string.match(packed, '^C(%d+)|([^|]*)|(%d+)|(.*)$')
    return setmetatable({ [STATE] = COMPLETED, [TOKEN] = tonumber(token), [HOLDER] = holder,
      [LEASED_AT] = tonumber(leased_at), [FINISH] = finish }, UNIT)
  end
  return setmetatable(unpacked(packed), UNIT)
end

local function adopt(unit, packed)
  local record = false
  if packed then
    record = unit_from(packed)
  else
    local group = read_group(group_of(unit))
    if group and slot_of(unit) < group[SIZE] then record = setmetatable({}, UNIT) end
  end
  units[unit] = record
  if record then place[unit], node[unit] = place_of(record), node_of(record) end
  return record
end

local function read_unit(unit)
  local record = units[unit]
  if record ~= nil then return record end
  local packed = stored[unit]
  if packed == nil then
    packed = call('HGET', UNITS, unit)
    stored[unit] = packed
  end
  return adopt(unit, packed)
end

-- Fetches many units, and the groups of those, in two calls.
local function fetch_units(ids)
  if #ids == 0 then return end
  local wanted, count_wanted, last = {}, 0, nil
  for _, unit in ipairs(ids) do
    local id = group_of(unit)
    if id ~= last and groups[id] == nil then
      count_wanted, last = count_wanted + 1, id
      wanted[count_wanted] = id
    end
  end
  if count_wanted > 0 then
    local packed = call('HMGET', GROUPS, unpack(wanted))
    for index, id in ipairs(wanted) do
      if groups[id] == nil then
        groups[id] = packed[index] and group_from(unpacked(packed[index]))
      end
    end
  end
  local packed = call('HMGET', UNITS, unpack(ids))
  for index, unit in ipairs(ids) do
    if stored[unit] == nil then stored[unit] = packed[index] end
  end
end

-- Resumed before fresh, then priority, then age: 1 + 12 + 40 bits, exact in a double.
local function score(unit, record)
  local group = read_group(group_of(unit))
  local fresh = record[TOKENS] > 0 and 0 or 1
  local sequence = (group[SEQUENCE] + slot_of(unit)) % 2 ^ 40
  return fresh * 2 ^ 52 + (group[PRIORITY] + 2048) * 2 ^ 40 + sequence
end

-- Lists know their length, for Lua would count anew each time.
local function put(list, first, second)
  local n = list.n
  list[n + 1], list[n + 2] = first, second
  list.n = n + 2
end

local function list_of(lists, key)
  local list = lists[key]
  if not list then
    list = { n = 0 }
    lists[key] = list
  end
  return list
end

local function drop(set, unit)
  local list = list_of(to_drop, set)
  local n = list.n + 1
  list[n], list.n = unit, n
end

-- Calls `command` on a key, at most a thousand arguments at a time.
local function call_on(command, key, list)
  local length = list.n or #list
  for from = 1, length, 1000 do
    call(command, key, unpack(list, from, math.min(from + 999, length)))
  end
end

local function call_each(command, lists)
  for key, list in pairs(lists) do call_on(command, key, list) end
end

local function hold(of_node, by) held[of_node] = (held[of_node] or 0) + by end

-- Where a unit belongs in its queue.
local function rank(unit, record)
  if record[STATE] == ENQUEUED then return score(unit, record) end
  -- A lease that was found without its entry: nobody knows how long it was to last.
  return deadlines[unit] or now + LOST_LEASE_MS
end

local function flush_unit(unit, record)
  local before, after = place[unit], record and place_of(record) or nil
  if before and before ~= after then drop(before, unit) end
  if after and (before ~= after or moved[unit]) then
    put(list_of(to_add, after), rank(unit, record), unit)
  end
  local held_before, held_after = node[unit], record and node_of(record) or nil
  if held_before ~= held_after then
    if held_before then hold(held_before, -1) end
    if held_after then hold(held_after, 1) end
  end
  place[unit], node[unit] = after, held_after
  if record then put(to_write, unit, pack(record)) end
end

-- Whether `flush` will make a unit ready.
local function changed_ready()
  for unit in pairs(changed) do
    if units[unit] and units[unit][STATE] == ENQUEUED then return true end
  end
  return false
end

local function flush_counts()
  for name, by in pairs(counts) do
    if by ~= 0 then call('HINCRBY', COUNTERS, name, text_of(by)) end
  end
  for of_node, by in pairs(held) do
    local name = 'held:' .. of_node
    if by ~= 0 and call('HINCRBY', COUNTERS, name, text_of(by)) == 0 then
      call('HDEL', COUNTERS, name)
    end
  end
end

-- Writes what has changed. Every script that changes records calls it last.
local function flush()
  local gone, groups_to_write = { n = 0 }, { n = 0 }
  for unit in pairs(changed) do
    flush_unit(unit, units[unit])
    if not units[unit] then gone.n = gone.n + 1; gone[gone.n] = unit end
  end
  for id in pairs(changed_groups) do
    if groups[id] then put(groups_to_write, id, pack(groups[id])) end
  end
  call_each('ZREM', to_drop)
  call_each('ZADD', to_add)
  call_on('HSET', UNITS, to_write)
  call_on('HSET', GROUPS, groups_to_write)
  call_on('HDEL', UNITS, gone)
  flush_counts()
  begin_changes()
end

local function remember(unit, record, event, detail)
  local packed = call('HGET', HISTORY, unit)
  local events = packed and unpacked(packed) or {}
  if #events >= HISTORY_LIMIT then table.remove(events, 2) end
  events[#events + 1] = { now, event, detail, record[HOLDER], record[TOKEN], record[TOKENS] }
  call('HSET', HISTORY, unit, pack(events))
end

-- Whether tokens whose first span was made under `first` are too old by now.
local function is_stale(group, first)
  return group[RESUME] ~= MASK_OLD and lag(first) > group[MAX_LAG]
end

local function drop_chunks(unit, record)
  local fields = {}
  for part = 0, record[PARTS] - 1 do fields[#fields + 1] = unit .. '/' .. part end
  for origin = 0, record[ORIGINS] - 1 do fields[#fields + 1] = unit .. '/o' .. origin end
  call_on('HDEL', CHUNKS, fields)
  record[TOKENS], record[PARTS], record[ORIGINS], record[ORIGIN] = 0, 0, 0, ''
  changed[unit] = true
end

local function make_ready(unit, record)
  record[STATE] = ENQUEUED
  changed[unit] = true
end

-- Removes a group's records and leaves a tombstone, so that repeated calls are answered.
local function bury(id, group)
  local history = {}
  for slot = 0, group[SIZE] - 1 do
    local unit = unit_of(id, slot)
    local record = read_unit(unit)
    if record then drop_chunks(unit, record) end
    units[unit], changed[unit] = false, true
    history[#history + 1] = unit
  end
  call_on('HDEL', HISTORY, history)
  if group[EXPIRES_AT] > 0 then call('ZREM', EXPIRY, id) end
  groups[id] = false
  call('HDEL', GROUPS, id)
  call('HDEL', SPECS, id)
  call('ZADD', TOMBS, now + group[REMEMBER], id)
end

-- Records a group that failed, or a unit that died in a group that goes on without it.
local function record_failure(id, group, reason, culprit, detail, wasted)
  local tally, slots = { [COMPLETED] = 0, [DEAD] = 0, [EXPIRED] = 0, [CANCELLED] = 0 }, {}
  for slot = 0, group[SIZE] - 1 do
    local record = read_unit(unit_of(id, slot))
    local state = record[STATE]
    if tally[state] then tally[state] = tally[state] + 1 end
    slots[slot + 1] = { state, record[TOKENS], record[ATTEMPTS] + record[SCORE_ATTEMPTS],
      record[INFRA], record[HAND_BACKS], record[HOLDER] }
  end
  call('XADD', FAILED, 'MAXLEN', '~', 10000, '*', 'group', id, 'reason', reason,
    'unit', culprit, 'detail', detail, 'ends_group', wasted and 1 or 0, 'size', group[SIZE],
    'completed', tally[COMPLETED], 'dead', tally[DEAD], 'expired', tally[EXPIRED],
    'cancelled', tally[CANCELLED], 'wasted', wasted or 0, 'slots', pack(slots),
    'history', culprit ~= '' and call('HGET', HISTORY, culprit) or '',
    'spec', call('HGET', SPECS, id) or '')
end

-- Ends a group as FAILED: what is not final is cancelled, every token is wasted.
local function fail(id, group, reason, culprit, detail)
  local cancelled, complete, partial = 0, 0, 0
  for slot = 0, group[SIZE] - 1 do
    local unit = unit_of(id, slot)
    local record = read_unit(unit)
    if not is_final(record[STATE]) then
      cancelled, partial = cancelled + 1, partial + record[TOKENS]
      record[STATE] = CANCELLED
    elseif record[STATE] == COMPLETED then
      complete = complete + record[TOKENS]
    end
  end
  count('cancelled', cancelled)
  count(reason == 'stale' and 'wasted:stale' or 'wasted:group_failed', complete)
  count('wasted:cancelled', partial)
  count('groups_failed', 1)
  record_failure(id, group, reason, culprit or '', detail or '', complete + partial)
  bury(id, group)
end

-- Seals or fails a group whose slots are all final.
local function settle(id, group)
  changed_groups[id] = true
  if group[ENDED] < group[SIZE] then return end
  if group[OLDEST] >= 0 and is_stale(group, group[OLDEST]) then return fail(id, group, 'stale') end
  if group[DONE] < group[FEWEST] then return fail(id, group, 'too_few_samples') end
  count('tokens_accepted', group[DONE_TOKENS])
  count('groups_sealed', 1)
  if group[EXPIRES_AT] > 0 then call('ZREM', EXPIRY, id) end
  group[ENTRY] = call('XADD', OUT, '*', 'group', id)
end

-- Ends a slot without a sample; its tokens are wasted, and its group settles.
local function end_slot(unit, record, group, state, cause, detail)
  local id = group_of(unit)
  count(state == DEAD and 'dead' or 'expired', 1)
  count('wasted:' .. cause, record[TOKENS])
  remember(unit, record, cause, detail or '')
  drop_chunks(unit, record)
  record[STATE] = state
  group[ENDED] = group[ENDED] + 1
  if group[FEWEST] == group[SIZE] then return fail(id, group, cause, unit, detail) end
  if state == DEAD then record_failure(id, group, cause, unit, detail or '', nil) end
  settle(id, group)
end

-- One more slot of a group is complete.
local function end_complete(id, group)
  count('completed', 1)
  group[ENDED], group[DONE] = group[ENDED] + 1, group[DONE] + 1
  settle(id, group)
end

local function complete_slot(unit, record, group)
  record[STATE] = COMPLETED
  changed[unit] = true
  if record[TOKENS] > 0 then group[DONE_TOKENS] = group[DONE_TOKENS] + record[TOKENS] end
  if record[PARTS] > 0 and (group[OLDEST] < 0 or record[FIRST] < group[OLDEST]) then
    group[OLDEST] = record[FIRST]
  end
  end_complete(group_of(unit), group)
end

local function hand_back(unit, record, cause)
  count('hand_backs:' .. cause, 1)
  record[HAND_BACKS] = record[HAND_BACKS] + 1
  remember(unit, record, 'handed_back', cause)
  make_ready(unit, record)
end

-- A model or engine fault: back to the queue, or DEAD when the attempts are used up. Generation
-- and scoring have their attempts apart.
local function fault(unit, record, group, detail)
  local attempts = record[STAGE] == REWARD and SCORE_ATTEMPTS or ATTEMPTS
  record[attempts] = record[attempts] + 1
  remember(unit, record, 'fault', detail)
  if record[attempts] >= group[MAX_ATTEMPTS] then
    end_slot(unit, record, group, DEAD, 'dead', detail)
  else
    make_ready(unit, record)
  end
end

-- A lost holder: never an attempt.
local function lose_holder(unit, record, group)
  count('lease_expiries', 1)
  record[INFRA] = record[INFRA] + 1
  remember(unit, record, 'lease_expired', '')
  if group[MAX_INFRA] > 0 and record[INFRA] >= group[MAX_INFRA] then
    end_slot(unit, record, group, DEAD, 'dead', 'holders lost')
  else
    make_ready(unit, record)
  end
end

-- Ends what is still open of groups whose time is over.
local function expire_due(limit)
  for _, id in ipairs(call('ZRANGE', EXPIRY, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
    call('ZREM', EXPIRY, id)
    local group = read_group(id)
    for slot = 0, group and group[SIZE] - 1 or -1 do
      local unit = unit_of(id, slot)
      local record = groups[id] and read_unit(unit)
      if record and not is_final(record[STATE]) then
        end_slot(unit, record, group, EXPIRED, 'expired')
      end
    end
  end
end

local function reap(stage, limit)
  local expired = call('ZRANGE', LEASE[stage], '-inf', now_text, 'BYSCORE', 'LIMIT', '0',
    text_of(limit))
  local reaped = 0
  fetch_units(expired)
  for _, unit in ipairs(expired) do
    local record = read_unit(unit)
    if record and is_leased(record[STATE]) and record[STAGE] == stage then
      reaped = reaped + 1
      lose_holder(unit, record, groups[group_of(unit)])
    elseif place[unit] ~= LEASE[stage] then
      call('ZREM', LEASE[stage], unit)
    end
  end
  if #expired > 0 then flush() end
  return reaped
end

-- The holder goes on from what others stored: those tokens are preserved, each once.
local function count_preserved(record)
  if record[AT_LEASE] > record[PRESERVED] then
    count('tokens_preserved', record[AT_LEASE] - record[PRESERVED])
    record[PRESERVED] = record[AT_LEASE]
  end
end

-- The consumer group of the buffer; it begins with the first entry, whenever it is made.
local function ensure_trainers()
  redis.pcall('XGROUP', 'CREATE', OUT, TRAINERS, '0', 'MKSTREAM')
end
