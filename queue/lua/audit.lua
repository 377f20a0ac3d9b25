-- AUDIT part cursor repair
-- Recomputes what must hold from the raw keys of one page; with `repair` 1 mends what does not.
-- Parts: groups, units, specs, history, chunks, ready:generate, ready:reward, lease:generate,
-- lease:reward, held. Answers {cursor, findings}; a finding is {subject, problem}; cursor 0 is the
-- end of the part.
local part, cursor, repairs = ARGV[1], ARGV[2], ARGV[3] == '1'
local findings = {}

local function find(subject, problem, repair)
  findings[#findings + 1] = { subject, problem }
  if repairs and repair then repair() end
end

-- A unit that stands nowhere, in the wrong set, or at the wrong place of the right one.
local function check_place(unit, record)
  local stands = place_of(record)
  for _, set in ipairs({ READY[GENERATE], READY[REWARD], LEASE[GENERATE], LEASE[REWARD] }) do
    local is_at = call('ZSCORE', set, unit)
    if set == stands then
      local due = record[STATE] == ENQUEUED and score(unit, record) or record[DEADLINE]
      if tonumber(is_at) ~= due then
        find(unit, is_at and 'stands at the wrong place of its queue' or 'is in no queue',
          function() moved[unit], changed[unit] = true, true end)
      end
    elseif is_at then
      find(unit, 'is also in ' .. set, function() call('ZREM', set, unit) end)
    end
  end
end

local function has_chunks(unit, record)
  for index = 0, record[PARTS] - 1 do
    if call('HEXISTS', CHUNKS, unit .. '/' .. index) == 0 then return false end
  end
  for index = 0, record[ORIGINS] - 1 do
    if call('HEXISTS', CHUNKS, unit .. '/o' .. index) == 0 then return false end
  end
  return true
end

local function check_chunks(id, group, unit, record)
  if has_chunks(unit, record) then return end
  find(unit, 'has lost stored tokens', function()
    if is_final(record[STATE]) and group[ENTRY] == '' then return fail(id, group, 'damaged') end
    if is_final(record[STATE]) then return end
    count('wasted:damaged', record[TOKENS])
    remember(unit, record, 'damaged', '')
    drop_chunks(unit, record)
    record[FIRST], record[LAST], record[AT_LEASE], record[PRESERVED] = 0, 0, 0, 0
    record[STAGE] = GENERATE
    make_ready(unit, record)
    moved[unit] = true
  end)
end

local function check_progress(id, group)
  local open, done, tokens, oldest = 0, 0, 0, -1
  for slot = 0, group[SIZE] - 1 do
    local record = read_unit(unit_of(id, slot))
    if not is_final(record[STATE]) then open = open + 1 end
    if record[STATE] == COMPLETED then
      done, tokens = done + 1, tokens + record[TOKENS]
      if record[PARTS] > 0 and (oldest < 0 or record[FIRST] < oldest) then oldest = record[FIRST] end
    end
  end
  if open ~= group[OPEN] or done ~= group[DONE] or tokens ~= group[DONE_TOKENS]
      or oldest ~= group[OLDEST] then
    find(id, 'counts its slots wrongly', function()
      group[OPEN], group[DONE], group[DONE_TOKENS], group[OLDEST] = open, done, tokens, oldest
      changed_groups[id] = true
    end)
  end
  if open > 0 then return end
  if group[ENTRY] == '' then
    find(id, 'is complete and was not sealed', function() settle(id, group) end)
  elseif #call('XRANGE', OUT, group[ENTRY], group[ENTRY]) == 0 then
    find(id, 'is sealed and not in the buffer', function()
      group[ENTRY], changed_groups[id] = call('XADD', OUT, '*', 'group', id), true
    end)
  end
end

local function check_group(id)
  local group = read_group(id)
  if not group then return end
  if call('HEXISTS', SPECS, id) == 0 then
    return find(id, 'has lost its prompt', function() fail(id, group, 'damaged') end)
  end
  for slot = 0, group[SIZE] - 1 do
    local unit = unit_of(id, slot)
    local record = groups[id] and read_unit(unit)
    if record then
      check_place(unit, record)
      check_chunks(id, group, unit, record)
    end
  end
  if groups[id] then check_progress(id, group) end
end

-- Fields of a hash that belong to no group.
local function check_orphans(hash, count_hint, group_of_field)
  local page = call('HSCAN', hash, cursor, 'COUNT', count_hint)
  for index = 1, #page[2], 2 do
    local field = page[2][index]
    if not read_group(group_of_field(field)) then
      find(field, 'belongs to no group', function() call('HDEL', hash, field) end)
    end
  end
  return page[1]
end

-- Members of a queue that have no record, or one that says they stand elsewhere.
local function check_members(set)
  local page = call('ZSCAN', set, cursor, 'COUNT', 256)
  for index = 1, #page[2], 2 do
    local unit = page[2][index]
    local record = read_unit(unit)
    if not record or place_of(record) ~= set then
      find(unit, 'is in ' .. set .. ' without reason', function() call('ZREM', set, unit) end)
    end
  end
  return page[1]
end

local function check_held()
  local held, counted = {}, call('HGETALL', COUNTERS)
  for stage = GENERATE, REWARD do
    for _, unit in ipairs(call('ZRANGE', LEASE[stage], 0, -1)) do
      local record = read_unit(unit)
      local of_node = record and node_of(record)
      if of_node then held['held:' .. of_node] = (held['held:' .. of_node] or 0) + 1 end
    end
  end
  for index = 1, #counted, 2 do
    local name = counted[index]
    if string.sub(name, 1, 5) == 'held:' and not held[name] then held[name] = 0 end
  end
  for name, units_held in pairs(held) do
    if tonumber(call('HGET', COUNTERS, name) or '0') ~= units_held then
      find(string.sub(name, 6), 'holds another number of units than counted', function()
        if units_held == 0 then call('HDEL', COUNTERS, name) end
        if units_held > 0 then call('HSET', COUNTERS, name, units_held) end
      end)
    end
  end
  return '0'
end

local of_chunk = function(field) return group_of(string.match(field, '^[^/]*')) end
local itself = function(field) return field end
local next_cursor = '0'
if part == 'groups' then
  local page = call('HSCAN', GROUPS, cursor, 'COUNT', 16)
  next_cursor = page[1]
  for index = 1, #page[2], 2 do check_group(page[2][index]) end
elseif part == 'units' then next_cursor = check_orphans(UNITS, 256, group_of)
elseif part == 'specs' then next_cursor = check_orphans(SPECS, 256, itself)
elseif part == 'history' then next_cursor = check_orphans(HISTORY, 256, group_of)
elseif part == 'chunks' then next_cursor = check_orphans(CHUNKS, 256, of_chunk)
elseif part == 'ready:generate' then next_cursor = check_members(READY[GENERATE])
elseif part == 'ready:reward' then next_cursor = check_members(READY[REWARD])
elseif part == 'lease:generate' then next_cursor = check_members(LEASE[GENERATE])
elseif part == 'lease:reward' then next_cursor = check_members(LEASE[REWARD])
elseif part == 'held' then next_cursor = check_held() end
flush()
return { next_cursor, findings }
