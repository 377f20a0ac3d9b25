-- AUDIT part cursor repair
-- Recomputes what must hold from the raw keys of one page; with `repair` 1 mends what does not, and
-- throws away no more than what is damaged. Parts: groups, units, specs, history, chunks,
-- ready:generate, ready:reward, lease:generate, lease:reward, held. Answers {cursor, findings}; a
-- finding is {subject, problem}; cursor 0 is the end of the part.

-- What belongs to one call, and the functions: one name for all, since Lua has room for 200 in all.
local audit = {}

function audit.find(subject, problem, repair)
  audit.findings[#audit.findings + 1] = { subject, problem }
  if audit.repairs and repair then repair() end
end

-- A number in LEB128, and where the next one begins.
function audit.number_at(bytes, at)
  local number, scale = 0, 1
  for place = at, at + 9 do
    local byte = string.byte(bytes, place)
    if not byte then return nil, at end
    number = number + byte % 128 * scale
    if byte < 128 then return number, place + 1 end
    scale = scale * 128
  end
  return nil, at
end

-- Whether bytes hold a table with no other fields than the first `fields`.
function audit.is_table(bytes, fields)
  local is_read, found = pcall(unpacked, bytes or '')
  if not is_read or type(found) ~= 'table' then return false end
  for field in pairs(found) do
    if type(field) ~= 'number' or field < 1 or field > fields then return false end
  end
  return true
end

-- What bytes hold in a format of `struct`, the last value being where the next one begins; nothing
-- when they are too short.
function audit.fields_of(bytes, format, at)
  local found = { pcall(struct.unpack, format, bytes or '', at or 1) }
  if found[1] then return { unpack(found, 2) } end
end

function audit.is_unit(bytes)
  local lease = audit.fields_of(bytes, UNIT_LEASE)
  if not lease or lease[1] > CANCELLED or lease[2] > REWARD then return false end
  local ends = lease[7]
  for _, format in ipairs({ UNIT_TOKENS, UNIT_REST }) do
    local part = ends <= #bytes and audit.fields_of(bytes, format, ends)
    ends = part and part[#part] or ends
  end
  return ends == #bytes + 1
end

function audit.is_group(bytes)
  local record = audit.fields_of(bytes, GROUP_RECORD)
  return record and record[9] == #bytes + 1 and audit.is_table(record[7], REMEMBER - SIZE + 1)
end

-- The record of a group if it can be read; otherwise whether there is one.
function audit.sound_group(id)
  local packed = groups[id] or call('HGET', GROUPS, id)
  if groups[id] or audit.is_group(packed) then return read_group(id) end
  return nil, packed
end

-- Where a stored chunk begins, its version and its tokens; nothing when it, or its origin, is gone
-- or damaged. Token by token only when it is to be mended: whoever checks reads them anyway.
function audit.chunk_of(unit, index)
  local bytes = call('HGET', CHUNKS, unit .. '/' .. index)
  if not bytes or #bytes < 8 or string.byte(bytes, 3) ~= 1 then return end
  local origin, at, numbers = struct.unpack('<H', bytes), 4, {}
  for field = 1, 5 do numbers[field], at = audit.number_at(bytes, at) end
  local offset, version, count = numbers[1], numbers[2], numbers[5]
  local ids = count and #bytes + 1 - at - 4 * count
  if not ids or ids < count or ids > 5 * count then return end
  if not audit.is_table(call('HGET', CHUNKS, unit .. '/o' .. origin), 4) then return end
  if audit.repairs then
    local _, ends = string.gsub(string.sub(bytes, at, at + ids - 1), '[%z\1-\127]', '')
    if ends ~= count then return end
  end
  return offset, version, count
end

-- How many of the first `limit` chunks are whole and follow each other; their tokens and versions.
function audit.whole_part(unit, limit)
  local parts, tokens, first, last = 0, 0, 0, 0
  while parts < limit do
    local offset, version, count = audit.chunk_of(unit, parts)
    if offset ~= tokens or version < last then break end
    if parts == 0 then first = version end
    parts, tokens, last = parts + 1, tokens + count, version
  end
  return parts, tokens, first, last
end

function audit.is_taken(group)
  local pending = redis.pcall('XPENDING', OUT, TRAINERS, group[ENTRY], group[ENTRY], 1)
  return not pending.err and #pending == 1
end

-- Takes a sealed group that no trainer has out of the buffer again: it goes on until it is whole.
function audit.unseal(group)
  if group[ENTRY] == '' then return end
  call('XDEL', OUT, group[ENTRY])
  count('tokens_accepted', -group[DONE_TOKENS])
  count('groups_sealed', -1)
  group[ENTRY] = ''
  touch_group(group)
  if group[EXPIRES_AT] > 0 then call('ZADD', EXPIRY, group[EXPIRES_AT], group[ID]) end
end

-- Ends a group that cannot go on; the record of its failure tells the trainer.
function audit.fail_damaged(group)
  if group[ENTRY] ~= '' then
    redis.pcall('XACK', OUT, TRAINERS, group[ENTRY])
    call('XDEL', OUT, group[ENTRY])
    count('tokens_accepted', -group[DONE_TOKENS])
  end
  fail(group, 'damaged')
end

-- A sample of a group that a trainer has already: it is missing if the group is delivered again.
function audit.give_up(unit)
  count('completed', -1)
  count('dead', 1)
  count('tokens_accepted', -unit[TOKENS])
  count('wasted:damaged', unit[TOKENS])
  drop_chunks(unit)
  unit[STATE] = DEAD
end

-- Takes a unit back to its chunks that are whole; another holder goes on from there.
function audit.rewind(unit, parts, tokens, first, last)
  if unit[STATE] == COMPLETED then count('completed', -1) end
  count('wasted:damaged', unit[TOKENS] - tokens)
  remember(unit, 'damaged', '')
  local rest = {}
  for index = parts, unit[PARTS] - 1 do rest[#rest + 1] = unit[ID] .. '/' .. index end
  call_on('HDEL', CHUNKS, rest)
  if parts == 0 then drop_chunks(unit) end
  unit[TOKENS], unit[PARTS], unit[FIRST], unit[LAST] = tokens, parts, first, last
  unit[AT_LEASE], unit[PRESERVED] = 0, math.min(unit[PRESERVED], tokens)
  unit[STAGE], unit[FINISH], unit[GENERATED], unit[SCORE] = GENERATE, '', 0, ''
  move(unit)
  make_ready(unit)
end

-- Whether the stored tokens of a unit are not those of its record.
function audit.check_chunks(unit)
  local parts, tokens, first, last = audit.whole_part(unit[ID], unit[PARTS])
  local is_whole, group = parts == unit[PARTS], unit[GROUP]
  if is_whole and tokens == unit[TOKENS]
      and (parts == 0 or (first == unit[FIRST] and last == unit[LAST])) then
    return false
  end
  local problem = is_whole and 'counts its tokens wrongly' or 'has lost stored tokens'
  audit.find(unit[ID], problem, function()
    if is_whole then
      unit[TOKENS], unit[FIRST], unit[LAST] = tokens, first, last
      touch(unit)
    elseif audit.is_taken(group) then
      audit.give_up(unit)
    else
      audit.unseal(group)
      audit.rewind(unit, parts, tokens, first, last)
    end
  end)
  return true
end

-- A unit that stands nowhere, in the wrong set, or at the wrong place of the right one.
function audit.check_place(unit)
  local id, stands = unit[ID], place_of(unit)
  for set, name in pairs(audit.SETS) do
    local is_at = call('ZSCORE', set.key, id)
    if set == stands then
      if not is_at or (unit[STATE] == ENQUEUED and tonumber(is_at) ~= score_of(unit)) then
        audit.find(id, is_at and 'stands at the wrong place of ' .. name or 'is in no queue',
          function()
            -- Its holder is most likely there, and renews the lease in time.
            unit[DEADLINE] = now + LOST_LEASE_MS
            move(unit)
          end)
      end
    elseif is_at then
      audit.find(id, 'is also in ' .. name, function() call('ZREM', set.key, id) end)
    end
  end
end

-- A unit without a record was never leased; this tells one that was and has lost it.
function audit.has_lived(unit)
  local id = unit[ID]
  if unit[STATE] ~= ENQUEUED or unit[TOKEN] > 0 then return false end
  if call('HEXISTS', CHUNKS, id .. '/0') + call('HEXISTS', HISTORY, id) > 0 then return true end
  if call('ZSCORE', READY[GENERATE].key, id) then return false end
  return call('ZSCORE', LEASE[GENERATE].key, id) or call('ZSCORE', LEASE[REWARD].key, id)
    or call('ZSCORE', READY[REWARD].key, id)
end

-- Makes a new record from what is left, chunks and history; answers whether the response had ended.
function audit.restore(unit)
  local id, has_ended, origins = unit[ID], false, 0
  while call('HEXISTS', CHUNKS, id .. '/o' .. origins) == 1 do origins = origins + 1 end
  unit[PARTS], unit[TOKENS], unit[FIRST], unit[LAST] = audit.whole_part(id, math.huge)
  unit[ORIGINS] = origins
  unit[TOKEN], unit[LEASED_AT] = math.max(audit.last_token, 1), now
  local events = call('HGET', HISTORY, id)
  for _, event in ipairs(events and unpacked(events) or {}) do
    local what = event[2]
    if what == 'fault' then unit[ATTEMPTS] = unit[ATTEMPTS] + 1 end
    if what == 'lease_expired' then unit[INFRA] = unit[INFRA] + 1 end
    if what == 'handed_back' then unit[HAND_BACKS] = unit[HAND_BACKS] + 1 end
    if what == 'dead' then unit[STATE] = DEAD end
    if what == 'expired' or what == 'stale' then unit[STATE] = EXPIRED end
    has_ended = has_ended or what == 'generated'
  end
  for set in pairs(audit.SETS) do call('ZREM', set.key, id) end
  remember(unit, 'damaged', '')
  move(unit)
  touch(unit)
  return has_ended
end

-- How many slots are open and how many complete, the tokens of those and their oldest version.
function audit.count_slots(group)
  local open, done, tokens, oldest = 0, 0, 0, -1
  for slot = 0, group[SIZE] - 1 do
    local unit = read_unit(unit_of(group[ID], slot))
    if not is_final(unit[STATE]) then open = open + 1 end
    if unit[STATE] == COMPLETED then
      done, tokens = done + 1, tokens + unit[TOKENS]
      local first = unit[FIRST]
      if unit[PARTS] > 0 and (oldest < 0 or first < oldest) then oldest = first end
    end
  end
  return open, done, tokens, oldest
end

-- Restores the records of a group's units. Where more had been complete than still are, nobody
-- knows any more which: the responses of all of them are begun anew.
function audit.restore_all(group, lost)
  local _, done, tokens = audit.count_slots(group)
  local gone, gone_tokens = group[DONE] - done, group[DONE_TOKENS] - tokens
  local stays = audit.is_taken(group)
  if not stays then audit.unseal(group) end
  count('completed', -gone)
  if stays then
    count('dead', gone)
    count('tokens_accepted', -gone_tokens)
    count('wasted:damaged', gone_tokens)
  end
  for id in pairs(lost) do
    local unit = read_unit(id)
    local has_ended = audit.restore(unit) or gone > 0
    if not stays and has_ended then count('wasted:damaged', unit[TOKENS]) end
    if stays or has_ended then drop_chunks(unit) end
    if stays and unit[STATE] == ENQUEUED then unit[STATE] = DEAD end
  end
end

-- The units of a group whose record is gone or cannot be read.
function audit.check_records(group)
  local lost = {}
  for slot = 0, group[SIZE] - 1 do
    local id = unit_of(group[ID], slot)
    local record = call('HGET', UNITS, id)
    local is_damaged = record and not audit.is_unit(record)
    local unit = units[id] or adopt(id, group, not is_damaged and record)
    if is_damaged or audit.has_lived(unit) then
      audit.find(id, is_damaged and 'has a damaged record' or 'has lost its record')
      lost[id] = true
    end
  end
  if audit.repairs and next(lost) then audit.restore_all(group, lost) end
  return lost
end

function audit.check_progress(group, is_known_wrong)
  local id = group[ID]
  local open, done, tokens, oldest = audit.count_slots(group)
  local function correct()
    if open > 0 and not audit.is_taken(group) then audit.unseal(group) end
    group[ENDED], group[DONE] = group[SIZE] - open, done
    group[DONE_TOKENS], group[OLDEST] = tokens, oldest
    touch_group(group)
  end
  if is_known_wrong then
    if audit.repairs then correct() end
  elseif open ~= group[SIZE] - group[ENDED] or done ~= group[DONE] or tokens ~= group[DONE_TOKENS]
      or oldest ~= group[OLDEST] then
    audit.find(id, 'counts its slots wrongly', correct)
  end
  local due = group[ENTRY] == '' and group[EXPIRES_AT] or 0
  if due > 0 and tonumber(call('ZSCORE', EXPIRY, id) or 0) ~= due then
    audit.find(id, 'would not expire', function() call('ZADD', EXPIRY, due, id) end)
  end
  if group[ENTRY] == '' then
    if open > 0 then return end
    audit.find(id, 'is complete and was not sealed', function() settle(group) end)
  elseif #call('XRANGE', OUT, group[ENTRY], group[ENTRY]) == 0 then
    -- A trainer that has it can still acknowledge it; in the buffer it would come a second time.
    if audit.is_taken(group) then
      return audit.find(id, 'is taken and would not be delivered again')
    end
    audit.find(id, 'is sealed and not in the buffer', function()
      group[ENTRY] = call('XADD', OUT, '*', 'group', id)
      touch_group(group)
    end)
  end
end

-- Numbers that are given once must never be given again.
function audit.check_counter(name, highest)
  if highest <= tonumber(call('HGET', COUNTERS, name) or '0') then return end
  audit.find('counter ' .. name, 'counts less than was given', function()
    call('HSET', COUNTERS, name, highest)
  end)
end

-- A group whose record is gone or damaged, while its prompt is there: it fails, so that the trainer
-- learns of it and may enqueue it again.
function audit.fail_fallen(id, size)
  local terms = {}
  for field = SIZE, REMEMBER do terms[field - SIZE + 1] = 0 end
  terms[1], terms[EXPIRES_AT - SIZE + 1], terms[#terms] = size, 1, 24 * 3600 * 1000
  local group = new_group(id, 0, pack(terms))
  groups[id] = group
  for slot = 0, group[SIZE] - 1 do
    local unit_id = unit_of(id, slot)
    local record = call('HGET', UNITS, unit_id)
    local unit = adopt(unit_id, group, audit.is_unit(record) and record)
    if unit[STATE] == COMPLETED then group[DONE_TOKENS] = group[DONE_TOKENS] + unit[TOKENS] end
    for set in pairs(audit.SETS) do call('ZREM', set.key, unit_id) end
  end
  for _, entry in ipairs(call('XRANGE', OUT, '-', '+')) do
    if entry[2][2] == id then group[ENTRY] = entry[1] end
  end
  audit.fail_damaged(group)
end

-- The number of slots by a group's prompt. The rest of it Redis cannot decode: it knows no bytes.
function audit.size_of(spec)
  local _, key_ends = string.find(spec, '\170group_size', 1, true)
  local is_read, _, size = pcall(cmsgpack.unpack_one, spec, key_ends or #spec)
  return is_read and type(size) == 'number' and size or nil
end

-- The group if it is there; what is left of one that is not is removed, or makes it fail.
function audit.owner(id, left, remove)
  if audit.fallen[id] then return end
  local group, is_damaged = audit.sound_group(id)
  if group then return group end
  local size = audit.size_of(call('HGET', SPECS, id) or '')
  if size then
    audit.fallen[id] = true
    audit.find(id, is_damaged and 'has a damaged record' or 'has lost its record',
      function() audit.fail_fallen(id, size) end)
  else
    audit.find(left, 'belongs to no group', remove)
  end
end

function audit.check_group(id)
  local group = audit.owner(id, id, function() call('HDEL', GROUPS, id) end)
  if not group then return end
  if call('HEXISTS', SPECS, id) == 0 then
    return audit.find(id, 'has lost its prompt', function() audit.fail_damaged(group) end)
  end
  local lost = audit.check_records(group)
  local is_known_wrong, highest = next(lost) ~= nil, 0
  for slot = 0, group[SIZE] - 1 do
    local unit = read_unit(unit_of(id, slot))
    highest = math.max(highest, unit[TOKEN])
    if lost[unit[ID]] or audit.check_chunks(unit) then
      is_known_wrong = true
    else
      audit.check_place(unit)
    end
  end
  audit.check_counter('token', highest)
  audit.check_counter('sequence', group[SEQUENCE] + group[SIZE] - 1)
  audit.check_progress(group, is_known_wrong)
end

-- Fields of a hash that belong to no group, to no slot of theirs, or to none of its stored chunks.
function audit.check_fields(hash, count_hint)
  local page = call('HSCAN', hash, audit.cursor, 'COUNT', count_hint)
  for index = 1, #page[2], 2 do
    local field = page[2][index]
    local function remove() call('HDEL', hash, field) end
    local unit, kind, number = string.match(field, '^([^/]*)/?(o?)(%d*)$')
    local group = audit.owner(hash == SPECS and field or group_of(unit or ''), field, remove)
    if group and hash ~= SPECS then
      local slot, limit = slot_of(unit), math.huge
      if hash == CHUNKS and slot and audit.is_unit(call('HGET', UNITS, unit)) then
        limit = read_unit(unit)[kind == 'o' and ORIGINS or PARTS]
      end
      if not slot or slot >= group[SIZE] or (number ~= '' and tonumber(number) >= limit) then
        audit.find(field, 'belongs to nothing', remove)
      end
    end
  end
  return page[1]
end

-- Members of a queue that are no unit; units in the wrong one are found with their group.
function audit.check_members(set)
  local page = call('ZSCAN', set.key, audit.cursor, 'COUNT', 256)
  for index = 1, #page[2], 2 do
    local unit = page[2][index]
    local function remove() call('ZREM', set.key, unit) end
    local group = audit.owner(group_of(unit), unit, remove)
    local slot = slot_of(unit)
    if group and not (slot and slot < group[SIZE]) then
      audit.find(unit, 'belongs to nothing', remove)
    end
  end
  return page[1]
end

function audit.check_held()
  local held, counted = {}, call('HGETALL', COUNTERS)
  for stage = GENERATE, REWARD do
    for _, unit in ipairs(call('ZRANGE', LEASE[stage].key, 0, -1)) do
      local is_read, found = pcall(read_unit, unit)
      local of_node = is_read and found and node_of(found)
      if of_node then held['held:' .. of_node] = (held['held:' .. of_node] or 0) + 1 end
    end
  end
  for index = 1, #counted, 2 do
    local name = counted[index]
    if string.sub(name, 1, 5) == 'held:' and not held[name] then held[name] = 0 end
  end
  for name, units_held in pairs(held) do
    if tonumber(call('HGET', COUNTERS, name) or '0') ~= units_held then
      audit.find(string.sub(name, 6), 'holds another number of units than counted', function()
        if units_held == 0 then call('HDEL', COUNTERS, name) end
        if units_held > 0 then call('HSET', COUNTERS, name, units_held) end
      end)
    end
  end
end

function audit.for_each(hash, is_sound, act)
  local fields = call('HKEYS', hash)
  for from = 1, #fields, 1000 do
    local to = math.min(from + 999, #fields)
    for index, packed in ipairs(call('HMGET', hash, unpack(fields, from, to))) do
      if is_sound(packed) then act(fields[from + index - 1], packed) end
    end
  end
end

-- Makes the counters of slots and tokens agree with what is there, at one moment. A shard that is
-- too large for one step is left alone.
function audit.settle_counters()
  if call('HLEN', UNITS) + call('HLEN', GROUPS) > 100000 then return end
  local open, tokens, is_sealed, counters, wasted = 0, 0, {}, {}, 0
  audit.for_each(GROUPS, audit.is_group, function(id, record)
    local group = group_from(id, record)
    open, is_sealed[id] = open + group[SIZE] - group[ENDED], group[ENTRY] ~= ''
  end)
  audit.for_each(UNITS, audit.is_unit, function(id, record)
    local is_open = is_sealed[group_of(id)] == false
    if is_open then tokens = tokens + unit_from(id, nil, record)[TOKENS] end
  end)
  local all = call('HGETALL', COUNTERS)
  for index = 1, #all, 2 do
    counters[all[index]] = tonumber(all[index + 1])
    if string.sub(all[index], 1, 7) == 'wasted:' then wasted = wasted + tonumber(all[index + 1]) end
  end
  local function settle_sum(subject, enters, leaves, names, here)
    local entered, found = counters[enters] or 0, here
    for _, name in ipairs(names) do found = found + (counters[name] or 0) end
    if entered ~= found then
      local problem = string.format('%.0f counted, %.0f accounted for', entered, found)
      audit.find(subject, problem, function()
        count(entered > found and leaves or enters, math.abs(entered - found))
      end)
    end
  end
  local ends = { 'completed', 'dead', 'expired', 'cancelled' }
  settle_sum('slots', 'enqueued', 'cancelled', ends, open)
  settle_sum('tokens', 'tokens_generated', 'wasted:damaged', { 'tokens_accepted' }, tokens + wasted)
end

register('audit', 'finishes', function()
  local part, next_cursor = ARGV[1], '0'
  audit.cursor, audit.repairs, audit.findings, audit.fallen = ARGV[2], ARGV[3] == '1', {}, {}
  audit.last_token = tonumber(call('HGET', COUNTERS, 'token') or '0')
  audit.SETS = { [READY[GENERATE]] = 'ready:generate', [READY[REWARD]] = 'ready:reward',
    [LEASE[GENERATE]] = 'lease:generate', [LEASE[REWARD]] = 'lease:reward' }
  if part == 'groups' then
    local page = call('HSCAN', GROUPS, audit.cursor, 'COUNT', 16)
    next_cursor = page[1]
    for index = 1, #page[2], 2 do audit.check_group(page[2][index]) end
  elseif part == 'units' then next_cursor = audit.check_fields(UNITS, 256)
  elseif part == 'specs' then next_cursor = audit.check_fields(SPECS, 256)
  elseif part == 'history' then next_cursor = audit.check_fields(HISTORY, 256)
  elseif part == 'chunks' then next_cursor = audit.check_fields(CHUNKS, 256)
  elseif part == 'held' then
    audit.check_held()
    if audit.repairs then audit.settle_counters() end
  else
    for set, name in pairs(audit.SETS) do
      if name == part then next_cursor = audit.check_members(set) end
    end
  end
  flush()
  return { next_cursor, audit.findings }
end)
