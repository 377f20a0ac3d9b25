-- What every function on a shard shares: keys, records, and how slots and groups end.
--
-- The files of this folder are one Redis library: a client joins them in the order of
-- `queue/lua/ORDER` (behind the empty line, those of each line between 'do' and 'end'), puts the
-- line '#!lua name=' and one that sets PREFIX before them, loads that, and calls FCALL with the
-- prefix. Everything is defined once, when it is loaded; `begin` sets what belongs to one call.
-- Every function of a shard declares the same keys in the same order, all with the hash tag of that
-- shard. Times are milliseconds of the Redis server's clock. `queue/src/memory` states the same
-- rules in Rust.
--
-- Units and groups are read once into tables, changed in place, and written by `flush` at the end
-- of the call: the sorted set that a unit stands in, and the number of units that its node holds,
-- follow from its fields there and nowhere else. Tables are made whole, with a place for every
-- field: in a call of some microseconds, one that grows is what takes the time.

local GENERATE, REWARD = 0, 1
local TRAINERS = 'trainers'

-- Fields of a unit. The first ones belong to the call: its id, whether `flush` has to write it, its
-- group, the sorted set and the node that it stood in and was held by when it was read, the end of
-- a lease that was granted or renewed, and whether to move it within its set.
local ID, CHANGED, GROUP, PLACE, NODE, DEADLINE, MOVED = 1, 2, 3, 4, 5, 6, 7
-- The others are its record in the hash UNITS, in three parts: of the lease, of the tokens, and
-- what seldom happens. The last ones are left out where all of them is 0 or ''. A unit that was
-- never leased has no record at all.
local STATE, STAGE, TOKEN, HOLDER, LEASED_AT, FINISH = 8, 9, 10, 11, 12, 13
local PROGRESS_AT, TOKENS, PARTS, ORIGINS, FIRST, LAST = 14, 15, 16, 17, 18, 19
local AT_LEASE, PRESERVED, ORIGIN = 20, 21, 22
local WAITING_SINCE, RESTARTED, HAND_BACKS, ATTEMPTS, INFRA = 23, 24, 25, 26, 27
local GENERATED, SCORE_ATTEMPTS, SCORE = 28, 29, 30
local UNIT_LEASE, UNIT_TOKENS = '>BBI7I2c0I6I2c0', '>I6I4I4I4I7I7I4I4I2c0'
local UNIT_REST = '>I6BI4I4I4I7I4I4c0'

-- States of a slot.
local ENQUEUED, LEASED, STREAMING, COMPLETED, DEAD, EXPIRED, CANCELLED = 0, 1, 2, 3, 4, 5, 6
-- Its group has ended in this call, and its record goes with it.
local GONE = -1

-- Fields of a group, behind ID and CHANGED: whether its spec is in the answer; then its record in
-- the hash GROUPS: how far it is, and its terms as one packed array that most groups of a run
-- share.
local ANSWERED = 3
local SEQUENCE, ENQUEUED_AT, ENDED, DONE, DONE_TOKENS, OLDEST = 4, 5, 6, 7, 8, 9
local TERMS, ENTRY = 10, 11
local GROUP_RECORD = '>I6I6I2I2I6i7Bc0Bc0'
-- Fields of the terms; a group answers them as if they were its own.
local SIZE, FEWEST, STAGES, MAX_LAG, RESUME, MIN_VERSION, PRIORITY = 21, 22, 23, 24, 25, 26, 27
local MAX_ATTEMPTS, MAX_INFRA, MAX_LEASED, EXPIRES_AT, MAX_TOKENS, REMEMBER = 28, 29, 30, 31, 32, 33
-- Resume policies; the third, continue mixed, needs no name here.
local RESTART_IF_NEWER, MASK_OLD = 1, 2

-- How long a lease lasts whose entry was lost.
local LOST_LEASE_MS = 15000

-- Events that a unit's history keeps: its first and its last ones.
local HISTORY_LIMIT = 32

-- Set at each call: they are not there yet while the library is loaded.
local call, pack, unpacked, sub, format

-- The sorted sets, as their keys are declared, and by stage: the key of each, the members that
-- `flush` will drop and those it will add. Tables that every call needs are made once.
local SETS = {}
for index = 1, 4 do SETS[index] = { key = '', to_drop = { n = 0 }, to_add = { n = 0 } } end
local READY = { [GENERATE] = SETS[1], [REWARD] = SETS[2] }
local LEASE = { [GENERATE] = SETS[3], [REWARD] = SETS[4] }

-- The other keys, the arguments and the moment of the call, and the policy version that holds.
local UNITS, GROUPS, SPECS, CHUNKS, HISTORY, OUT, FAILED, COUNTERS, VERSION, GRANTS, TOMBS, EXPIRY
local ARGV, now, now_text, current

-- Units and groups of the call by id, `false` where there is none; and records of units as they are
-- stored, or as `flush` will write them, `false` for those never leased.
local units, groups, records
-- What `flush` will do besides: units and groups to look at, records to write and to drop, counters
-- to raise.
local dirty_units, dirty_groups, counts, held = { n = 0 }, { n = 0 }, {}, {}
local units_to_write, chunks_to_write = { n = 0 }, { n = 0 }

local function enter()
  call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
  sub, format = string.sub, string.format
end

local function server_time()
  local clock = call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function begin(keys, arguments)
  ARGV = arguments
  for index = 1, 4 do SETS[index].key = keys[index] end
  UNITS, GROUPS, SPECS, CHUNKS, HISTORY, OUT, FAILED, COUNTERS, VERSION, GRANTS, TOMBS, EXPIRY =
    unpack(keys, 5, 16)
  now, current = server_time(), tonumber(call('GET', VERSION) or '0')
  now_text = format('%d', now)
  units, groups, records = {}, {}, {}
end

-- A whole number as text: Redis would print it with seventeen digits, which takes long.
local number_texts = {}
local function text_of(number)
  if number < 0 or number > 4096 then return format('%d', number) end
  local text = number_texts[number]
  if not text then
    text = format('%d', number)
    number_texts[number] = text
  end
  return text
end

-- Lists know their length, for Lua would count anew each time.
local function put(list, item)
  local n = list.n + 1
  list[n], list.n = item, n
end

local function put_pair(list, first, second)
  local n = list.n
  list[n + 1], list[n + 2], list.n = first, second, n + 2
end

-- Calls `command` on a key, at most a thousand arguments at a time.
local function call_on(command, key, list)
  local length = list.n or #list
  if length == 0 then return end
  if length <= 1000 then
    call(command, key, unpack(list, 1, length))
    return
  end
  for from = 1, length, 1000 do
    call(command, key, unpack(list, from, math.min(from + 999, length)))
  end
end

local function flush_list(command, key, list)
  if list.n == 0 then return end
  call_on(command, key, list)
  list.n = 0
end

local function count(name, by)
  counts[name] = (counts[name] or 0) + by
end

local function hold(of_node, by) held[of_node] = (held[of_node] or 0) + by end

local function group_of(id) return sub(id, 1, -6) end
local function slot_of(id) return tonumber(sub(id, -4), 16) end
local function unit_of(group, slot) return format('%s.%04x', group, slot) end

local function is_leased(state) return state == LEASED or state == STREAMING end
local function is_final(state) return state >= COMPLETED end
local function lag(version) return math.max(0, current - version) end

local terms_of, node_of_holder
do
  -- What packed terms mean, and the node of a holder: found out once, and kept from call to call.
  -- They follow from the text alone, so they are never out of date.
  local terms_known, node_known, known_count = {}, {}, 0
  local KNOWN_LIMIT = 4096

  local function note_known()
    known_count = known_count + 1
    if known_count > KNOWN_LIMIT then terms_known, node_known, known_count = {}, {}, 0 end
  end

  function terms_of(packed)
    local kind = terms_known[packed]
    if not kind then
      local fields = {}
      for index, term in ipairs(unpacked(packed)) do fields[SIZE + index - 1] = term end
      kind = { __index = fields }
      note_known()
      terms_known[packed] = kind
    end
    return kind
  end

  function node_of_holder(holder)
    local found = node_known[holder]
    if not found then
      found = string.match(holder, '^[^/]*')
      note_known()
      node_known[holder] = found
    end
    return found
  end
end

local function group_from(name, record)
  local group = { name, false, false, struct.unpack(GROUP_RECORD, record) }
  return setmetatable(group, terms_of(group[TERMS]))
end

local function new_group(name, sequence, terms)
  local group = { name, false, false, sequence, now, 0, 0, 0, -1, terms, '', 0 }
  return setmetatable(group, terms_of(terms))
end

local function read_group(name)
  local group = groups[name]
  if group == nil then
    local record = call('HGET', GROUPS, name)
    group = record and group_from(name, record)
    groups[name] = group
  end
  return group
end

local function place_of(unit)
  local state = unit[STATE]
  if state == ENQUEUED then return READY[unit[STAGE]] end
  if state == LEASED or state == STREAMING then return LEASE[unit[STAGE]] end
end

local function node_of(unit)
  if is_leased(unit[STATE]) then return node_of_holder(unit[HOLDER]) end
end

local function unit_from(id, group, record)
  local length = #record
  local state, stage, token, holder, leased_at, finish, at = struct.unpack(UNIT_LEASE, record)
  local progress_at, tokens, parts, origins, first, last, at_lease, preserved, origin =
    0, 0, 0, 0, 0, 0, 0, 0, ''
  local waiting_since, restarted, hand_backs, attempts, infra, generated, score_attempts, score =
    0, 0, 0, 0, 0, 0, 0, ''
  if at <= length then
    progress_at, tokens, parts, origins, first, last, at_lease, preserved, origin, at =
      struct.unpack(UNIT_TOKENS, record, at)
    if at <= length then
      waiting_since, restarted, hand_backs, attempts, infra, generated, score_attempts, score =
        struct.unpack(UNIT_REST, record, at)
    end
  end
  local unit = { id, false, group, false, false, false, false,
    state, stage, token, holder, leased_at, finish,
    progress_at, tokens, parts, origins, first, last, at_lease, preserved, origin,
    waiting_since, restarted, hand_backs, attempts, infra, generated, score_attempts, score }
  unit[PLACE], unit[NODE] = place_of(unit), node_of(unit)
  return unit
end

local function new_unit(id, group)
  return { id, false, group, READY[GENERATE], false, false, false,
    ENQUEUED, GENERATE, 0, '', 0, '',
    0, 0, 0, 0, 0, 0, 0, 0, '',
    0, 0, 0, 0, 0, 0, 0, '' }
end

-- Takes in a unit of a group that is there, from its record or `false`.
local function adopt(id, group, record)
  local unit = false
  if record then
    unit = unit_from(id, group, record)
  elseif slot_of(id) < group[SIZE] then
    unit = new_unit(id, group)
  end
  units[id] = unit
  return unit
end

-- The unit, or `false` when there is none.
local function read_unit(id)
  local unit = units[id]
  if unit ~= nil then return unit end
  local group = read_group(group_of(id))
  if not group then
    units[id] = false
    return false
  end
  local record = records[id]
  if record == nil then record = call('HGET', UNITS, id) end
  return adopt(id, group, record)
end

-- Fetches the records of many units, and those of their groups, in two calls.
local function fetch_units(ids)
  local count_ids = ids.n or #ids
  if count_ids == 0 then return end
  local wanted, count_wanted, last = {}, 0, nil
  for index = 1, count_ids do
    local name = sub(ids[index], 1, -6)
    if name ~= last then
      last = name
      if groups[name] == nil then
        count_wanted = count_wanted + 1
        wanted[count_wanted] = name
      end
    end
  end
  if count_wanted > 0 then
    local found = call('HMGET', GROUPS, unpack(wanted, 1, count_wanted))
    for index = 1, count_wanted do
      local name, record = wanted[index], found[index]
      if groups[name] == nil then groups[name] = record and group_from(name, record) end
    end
  end
  local found = call('HMGET', UNITS, unpack(ids, 1, count_ids))
  for index = 1, count_ids do
    local id = ids[index]
    if records[id] == nil then records[id] = found[index] end
  end
end

-- Resumed before fresh, then priority, then age: 1 + 12 + 40 bits, exact in a double.
local function rank_of(group, slot, tokens)
  local fresh = tokens > 0 and 0 or 1
  local sequence = (group[SEQUENCE] + slot) % 2 ^ 40
  return fresh * 2 ^ 52 + (group[PRIORITY] + 2048) * 2 ^ 40 + sequence
end

-- `flush` writes the unit's record.
local function touch(unit)
  if not unit[CHANGED] then
    if not unit[MOVED] then put(dirty_units, unit) end
    unit[CHANGED] = true
  end
end

-- `flush` gives the unit its place anew, in the set where it stands already.
local function move(unit)
  if not unit[MOVED] then
    if not unit[CHANGED] then put(dirty_units, unit) end
    unit[MOVED] = true
  end
end

local function touch_group(group)
  if group[CHANGED] then return end
  group[CHANGED] = true
  put(dirty_groups, group)
end

-- Where a unit belongs in its sorted set.
local function score_of(unit)
  if unit[STATE] == ENQUEUED then
    return rank_of(unit[GROUP], slot_of(unit[ID]), unit[TOKENS])
  end
  -- A lease that was found without its entry: nobody knows how long it was to last.
  return unit[DEADLINE] or now + LOST_LEASE_MS
end

-- Whether `flush` will make a unit ready.
local function changed_ready()
  for index = 1, dirty_units.n do
    if dirty_units[index][STATE] == ENQUEUED then return true end
  end
  return false
end

local flush, forget_changes
do
  local units_to_drop, groups_to_write = { n = 0 }, { n = 0 }

  local function group_record(group)
    local entry, terms = group[ENTRY], group[TERMS]
    return struct.pack(GROUP_RECORD, group[SEQUENCE], group[ENQUEUED_AT], group[ENDED], group[DONE],
      group[DONE_TOKENS], group[OLDEST], #terms, terms, #entry, entry)
  end

  -- What is not looked at here is 0 or '' as long as the fields are that are: tokens, for example,
  -- are progress, and only what was generated is scored.
  local function unit_record(unit)
    local holder, finish, origin, score = unit[HOLDER], unit[FINISH], unit[ORIGIN], unit[SCORE]
    local record = struct.pack(UNIT_LEASE, unit[STATE], unit[STAGE], unit[TOKEN], #holder, holder,
      unit[LEASED_AT], #finish, finish)
    local has_rest = unit[WAITING_SINCE] + unit[RESTARTED] + unit[HAND_BACKS] + unit[ATTEMPTS]
      + unit[INFRA] + unit[GENERATED] > 0
    if not has_rest and unit[PROGRESS_AT] + unit[PARTS] == 0 then return record end
    record = record .. struct.pack(UNIT_TOKENS, unit[PROGRESS_AT], unit[TOKENS], unit[PARTS],
      unit[ORIGINS], unit[FIRST], unit[LAST], unit[AT_LEASE], unit[PRESERVED], #origin, origin)
    if not has_rest then return record end
    return record .. struct.pack(UNIT_REST, unit[WAITING_SINCE], unit[RESTARTED],
      unit[HAND_BACKS], unit[ATTEMPTS], unit[INFRA], unit[GENERATED], unit[SCORE_ATTEMPTS],
      #score, score)
  end

  local function flush_unit(unit)
    local id, before, after = unit[ID], unit[PLACE], place_of(unit)
    if before and before ~= after then put(before.to_drop, id) end
    if after and (before ~= after or unit[MOVED]) then
      put_pair(after.to_add, score_of(unit), id)
    end
    local held_before, held_after = unit[NODE], node_of(unit)
    if held_before ~= held_after then
      if held_before then hold(held_before, -1) end
      if held_after then hold(held_after, 1) end
    end
    if unit[STATE] == GONE then
      put(units_to_drop, id)
    elseif unit[CHANGED] then
      put_pair(units_to_write, id, unit_record(unit))
    end
    unit[PLACE], unit[NODE], unit[CHANGED], unit[MOVED] = after, held_after, false, false
  end

  local function flush_counts()
    for name, by in pairs(counts) do
      if by ~= 0 then call('HINCRBY', COUNTERS, name, text_of(by)) end
    end
    counts = {}
  end

  local function flush_held()
    for of_node, by in pairs(held) do
      local name = 'held:' .. of_node
      if by ~= 0 and call('HINCRBY', COUNTERS, name, text_of(by)) == 0 then
        call('HDEL', COUNTERS, name)
      end
    end
    held = {}
  end

  function forget_changes()
    dirty_units.n, dirty_groups.n, counts, held = 0, 0, {}, {}
    units_to_write.n, units_to_drop.n, groups_to_write.n, chunks_to_write.n = 0, 0, 0, 0
    for _, set in ipairs(SETS) do set.to_drop.n, set.to_add.n = 0, 0 end
  end

  -- Writes what has changed. Every function that changes records calls it last.
  function flush()
    for index = 1, dirty_units.n do flush_unit(dirty_units[index]) end
    for index = 1, dirty_groups.n do
      local group = dirty_groups[index]
      group[CHANGED] = false
      if groups[group[ID]] then put_pair(groups_to_write, group[ID], group_record(group)) end
    end
    dirty_units.n, dirty_groups.n = 0, 0
    for index = 1, 4 do
      local set = SETS[index]
      if set.to_drop.n > 0 then flush_list('ZREM', set.key, set.to_drop) end
      if set.to_add.n > 0 then flush_list('ZADD', set.key, set.to_add) end
    end
    if chunks_to_write.n > 0 then
      flush_list('HSET', CHUNKS, chunks_to_write)
      -- It would keep the bytes.
      chunks_to_write = { n = 0 }
    end
    flush_list('HSET', UNITS, units_to_write)
    flush_list('HSET', GROUPS, groups_to_write)
    flush_list('HDEL', UNITS, units_to_drop)
    if next(counts) then flush_counts() end
    if next(held) then flush_held() end
  end
end

-- A call that failed has left changes behind that were not made.
local is_unfinished = false

-- What a function declares. One that frees or finishes work must run even when memory is full; one
-- that adds work is refused then.
local FLAGS = { finishes = { 'allow-oom' }, adds = {}, reads = { 'no-writes' } }

local function register(name, kind, body)
  redis.register_function({ function_name = PREFIX .. name, flags = FLAGS[kind],
    callback = function(keys, arguments)
      enter()
      if is_unfinished then forget_changes() end
      is_unfinished = true
      begin(keys, arguments)
      local answer = body()
      is_unfinished = false
      return answer
    end })
end

-- A function on control keys, which are other ones for each.
local function register_control(name, kind, body)
  redis.register_function({ function_name = PREFIX .. name, flags = FLAGS[kind],
    callback = function(keys, arguments)
      enter()
      return body(keys, arguments)
    end })
end

-- Whether a leader of this generation was followed by one that has claimed something; 0 is none.
local function is_outdated(newest_key, generation)
  generation = tonumber(generation)
  return generation ~= 0 and generation < tonumber(call('GET', newest_key) or '0')
end

local function remember(unit, event, detail)
  local packed = call('HGET', HISTORY, unit[ID])
  local events = packed and unpacked(packed) or {}
  if #events >= HISTORY_LIMIT then table.remove(events, 2) end
  events[#events + 1] = { now, event, detail, unit[HOLDER], unit[TOKEN], unit[TOKENS] }
  call('HSET', HISTORY, unit[ID], pack(events))
end

-- Whether tokens whose first span was made under `first` are too old by now.
local function is_stale(group, first)
  return group[RESUME] ~= MASK_OLD and lag(first) > group[MAX_LAG]
end

local function drop_chunks(unit)
  local id, fields = unit[ID], {}
  flush_list('HSET', CHUNKS, chunks_to_write)
  for part = 0, unit[PARTS] - 1 do fields[#fields + 1] = id .. '/' .. part end
  for origin = 0, unit[ORIGINS] - 1 do fields[#fields + 1] = id .. '/o' .. origin end
  call_on('HDEL', CHUNKS, fields)
  unit[TOKENS], unit[PARTS], unit[ORIGINS], unit[ORIGIN] = 0, 0, 0, ''
  touch(unit)
end

local function make_ready(unit)
  unit[STATE] = ENQUEUED
  touch(unit)
end

-- Removes a group's records and leaves a tombstone, so that repeated calls are answered.
local function bury(group)
  local name, history = group[ID], {}
  for slot = 0, group[SIZE] - 1 do
    local id = unit_of(name, slot)
    local unit = read_unit(id)
    drop_chunks(unit)
    unit[STATE], units[id] = GONE, false
    history[#history + 1] = id
  end
  call_on('HDEL', HISTORY, history)
  if group[EXPIRES_AT] > 0 then call('ZREM', EXPIRY, name) end
  groups[name] = false
  call('HDEL', GROUPS, name)
  call('HDEL', SPECS, name)
  call('ZADD', TOMBS, now + group[REMEMBER], name)
end

-- Records a group that failed, or a unit that died in a group that goes on without it.
local function record_failure(group, reason, culprit, detail, wasted)
  local tally, slots = { [COMPLETED] = 0, [DEAD] = 0, [EXPIRED] = 0, [CANCELLED] = 0 }, {}
  local name = group[ID]
  for slot = 0, group[SIZE] - 1 do
    local unit = read_unit(unit_of(name, slot))
    local state = unit[STATE]
    if tally[state] then tally[state] = tally[state] + 1 end
    slots[slot + 1] = { state, unit[TOKENS], unit[ATTEMPTS] + unit[SCORE_ATTEMPTS],
      unit[INFRA], unit[HAND_BACKS], unit[HOLDER] }
  end
  call('XADD', FAILED, 'MAXLEN', '~', 10000, '*', 'group', name, 'reason', reason,
    'unit', culprit, 'detail', detail, 'ends_group', wasted and 1 or 0, 'size', group[SIZE],
    'completed', tally[COMPLETED], 'dead', tally[DEAD], 'expired', tally[EXPIRED],
    'cancelled', tally[CANCELLED], 'wasted', wasted or 0, 'slots', pack(slots),
    'history', culprit ~= '' and call('HGET', HISTORY, culprit) or '',
    'spec', call('HGET', SPECS, name) or '')
end

-- Ends a group as FAILED: what is not final is cancelled, every token is wasted.
local function fail(group, reason, culprit, detail)
  local cancelled, complete, partial = 0, 0, 0
  for slot = 0, group[SIZE] - 1 do
    local unit = read_unit(unit_of(group[ID], slot))
    if not is_final(unit[STATE]) then
      cancelled, partial = cancelled + 1, partial + unit[TOKENS]
      unit[STATE] = CANCELLED
    elseif unit[STATE] == COMPLETED then
      complete = complete + unit[TOKENS]
    end
  end
  count('cancelled', cancelled)
  count(reason == 'stale' and 'wasted:stale' or 'wasted:group_failed', complete)
  count('wasted:cancelled', partial)
  count('groups_failed', 1)
  record_failure(group, reason, culprit or '', detail or '', complete + partial)
  bury(group)
end

-- Seals or fails a group whose slots are all final.
local function settle(group)
  touch_group(group)
  if group[ENDED] < group[SIZE] then return end
  if group[OLDEST] >= 0 and is_stale(group, group[OLDEST]) then return fail(group, 'stale') end
  if group[DONE] < group[FEWEST] then return fail(group, 'too_few_samples') end
  count('tokens_accepted', group[DONE_TOKENS])
  count('groups_sealed', 1)
  if group[EXPIRES_AT] > 0 then call('ZREM', EXPIRY, group[ID]) end
  group[ENTRY] = call('XADD', OUT, '*', 'group', group[ID])
end

-- Ends a slot without a sample; its tokens are wasted, and its group settles.
local function end_slot(unit, state, cause, detail)
  local group = unit[GROUP]
  count(state == DEAD and 'dead' or 'expired', 1)
  count('wasted:' .. cause, unit[TOKENS])
  remember(unit, cause, detail or '')
  drop_chunks(unit)
  unit[STATE] = state
  group[ENDED] = group[ENDED] + 1
  if group[FEWEST] == group[SIZE] then return fail(group, cause, unit[ID], detail) end
  if state == DEAD then record_failure(group, cause, unit[ID], detail or '', nil) end
  settle(group)
end

-- One more slot of a group is complete.
local function count_complete(group)
  count('completed', 1)
  group[ENDED], group[DONE] = group[ENDED] + 1, group[DONE] + 1
  settle(group)
end

local function complete_slot(unit)
  local group = unit[GROUP]
  unit[STATE] = COMPLETED
  touch(unit)
  group[DONE_TOKENS] = group[DONE_TOKENS] + unit[TOKENS]
  if unit[PARTS] > 0 and (group[OLDEST] < 0 or unit[FIRST] < group[OLDEST]) then
    group[OLDEST] = unit[FIRST]
  end
  count_complete(group)
end

-- `why` is the cause, behind which the reason and the deadline of a drain may stand.
local function hand_back(unit, why)
  count('hand_backs:' .. string.match(why, '^[^ ]*'), 1)
  unit[HAND_BACKS] = unit[HAND_BACKS] + 1
  remember(unit, 'handed_back', why)
  make_ready(unit)
end

-- A model or engine fault: back to the queue, or DEAD when the attempts are used up. Generation
-- and scoring have their attempts apart.
local function fault(unit, detail)
  local attempts = unit[STAGE] == REWARD and SCORE_ATTEMPTS or ATTEMPTS
  unit[attempts] = unit[attempts] + 1
  remember(unit, 'fault', detail)
  if unit[attempts] >= unit[GROUP][MAX_ATTEMPTS] then
    end_slot(unit, DEAD, 'dead', detail)
  else
    make_ready(unit)
  end
end

-- A lost holder: never an attempt.
local function lose_holder(unit)
  local limit = unit[GROUP][MAX_INFRA]
  count('lease_expiries', 1)
  unit[INFRA] = unit[INFRA] + 1
  remember(unit, 'lease_expired', '')
  if limit > 0 and unit[INFRA] >= limit then
    end_slot(unit, DEAD, 'dead', 'holders lost')
  else
    make_ready(unit)
  end
end

-- Ends leases that have run out, `limit` of them at most; answers how many.
local function reap(stage, limit)
  local expired = call('ZRANGE', LEASE[stage].key, '-inf', now_text, 'BYSCORE', 'LIMIT', '0',
    text_of(limit))
  if #expired == 0 then return 0 end
  local reaped = 0
  fetch_units(expired)
  for _, id in ipairs(expired) do
    local unit = read_unit(id)
    if unit and is_leased(unit[STATE]) and unit[STAGE] == stage then
      reaped = reaped + 1
      lose_holder(unit)
    elseif not unit or unit[PLACE] ~= LEASE[stage] then
      call('ZREM', LEASE[stage].key, id)
    end
  end
  flush()
  return reaped
end

-- The holder goes on from what others stored: those tokens are preserved, each once.
local function count_preserved(unit)
  if unit[AT_LEASE] > unit[PRESERVED] then
    count('tokens_preserved', unit[AT_LEASE] - unit[PRESERVED])
    unit[PRESERVED] = unit[AT_LEASE]
  end
end

-- The consumer group of the buffer; it begins with the first entry, whenever it is made.
local function ensure_trainers()
  redis.pcall('XGROUP', 'CREATE', OUT, TRAINERS, '0', 'MKSTREAM')
end
