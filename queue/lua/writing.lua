-- Storing tokens and moving units on: what WRITE and EXCHANGE share.

-- Index of the first chunk that is not stored yet: repeated ones are equal to a stored one. A
-- stored chunk is its origin's number in two bytes, then its bytes.
local function skip_repeated(unit, record, chunks)
  for index, chunk in ipairs(chunks) do
    local is_known = false
    if chunk.offset < record[TOKENS] then
      for part = record[PARTS] - 1, 0, -1 do
        is_known = string.sub(call('HGET', CHUNKS, unit .. '/' .. part) or '', 3) == chunk.bytes
        if is_known then break end
      end
    end
    if not is_known then return index end
  end
  return #chunks + 1
end

local function refusal(record, group, chunks, first)
  local stored, version = record[TOKENS], record[PARTS] > 0 and record[LAST] or 0
  for index = first, #chunks do
    local chunk = chunks[index]
    if chunk.offset ~= stored or chunk.tokens == 0 or stored + chunk.tokens > group[MAX_TOKENS] then
      return 'OFFSET ' .. record[TOKENS]
    end
    if chunk.version < version then return 'BAD_VERSION' end
    stored, version = stored + chunk.tokens, chunk.version
  end
end

-- The number of the chunk's origin (lease, engine, fabric verdict), stored once for a run of chunks.
local function origin_of(unit, record, chunk, fields)
  local origin = record[TOKEN] .. ' ' .. chunk.fabric .. ' ' .. chunk.engine
  if record[ORIGIN] ~= origin then
    fields[#fields + 1] = unit .. '/o' .. record[ORIGINS]
    fields[#fields + 1] = pack({ record[HOLDER], record[TOKEN], chunk.engine, chunk.fabric })
    record[ORIGIN], record[ORIGINS] = origin, record[ORIGINS] + 1
  end
  return struct.pack('<H', record[ORIGINS] - 1)
end

local function store(unit, record, chunks, first)
  if first > #chunks then return end
  count_preserved(record)
  local before, fields = record[TOKENS], {}
  for index = first, #chunks do
    local chunk = chunks[index]
    local origin = origin_of(unit, record, chunk, fields)
    fields[#fields + 1] = unit .. '/' .. record[PARTS]
    fields[#fields + 1] = origin .. chunk.bytes
    if record[PARTS] == 0 then record[FIRST] = chunk.version end
    record[LAST], record[PARTS] = chunk.version, record[PARTS] + 1
    record[TOKENS] = record[TOKENS] + chunk.tokens
  end
  call_on('HSET', CHUNKS, fields)
  count('tokens_generated', record[TOKENS] - before)
  record[PROGRESS_AT], record[STATE] = now, STREAMING
end

-- The end of a stage: of the last one, or the unit waits for its score.
local function complete(unit, record, group)
  if record[PARTS] > 0 and is_stale(group, record[FIRST]) then
    return end_slot(unit, record, group, EXPIRED, 'stale')
  end
  if record[STAGE] + 1 == group[STAGES] then return complete_slot(unit, record, group) end
  record[STAGE], record[GENERATED], record[WAITING_SINCE] = REWARD, record[TOKEN], 0
  remember(unit, record, 'generated', '')
  make_ready(unit, record)
end

local STAGE_OF = { COMPLETE = GENERATE, SCORE = REWARD }

local function write_unit(holder, unit, token, verb, detail, chunks)
  local record = read_unit(unit)
  if not record then
    return call('ZSCORE', TOMBS, group_of(unit)) and 'ALREADY_DONE' or 'UNKNOWN'
  end
  if record[STAGE] == REWARD and record[GENERATED] == token then return 'ALREADY_DONE' end
  if record[TOKEN] ~= token or record[HOLDER] ~= holder then return 'FENCED' end
  if is_final(record[STATE]) then return 'ALREADY_DONE' end
  if record[STATE] == ENQUEUED then
    -- Given back under this very token: by a repeated call, or by the reaper.
    return (verb == 'HANDBACK' or verb == 'FAULT') and 'ALREADY_DONE' or 'FENCED'
  end
  local is_wrong_verb = STAGE_OF[verb] and STAGE_OF[verb] ~= record[STAGE]
  if is_wrong_verb or (record[STAGE] == REWARD and #chunks > 0) then return 'WRONG_STAGE' end
  local group = read_group(group_of(unit))
  local first = skip_repeated(unit, record, chunks)
  local refused = refusal(record, group, chunks, first)
  if refused then return refused end
  store(unit, record, chunks, first)
  changed[unit] = true
  if verb == 'COMPLETE' then
    count_preserved(record)
    record[FINISH] = detail
    complete(unit, record, group)
  elseif verb == 'SCORE' then
    record[SCORE] = detail
    complete(unit, record, group)
  elseif verb == 'HANDBACK' then hand_back(unit, record, detail)
  elseif verb == 'FAULT' then fault(unit, record, group, detail) end
  return 'OK'
end

-- COMPLETE of a unit that was leased once and has no tokens, in a run without scores: without making
-- a record of it. Answers OK, or nothing when it is another unit.
local function complete_brief(holder, unit, token, finish)
  local packed = stored[unit]
  if not packed or units[unit] ~= nil then return nil end
  local id = group_of(unit)
  local group = groups[id]
  if not group or group[STAGES] ~= 1
      or string.find(packed, 'L' .. token .. '|' .. holder .. '|', 1, true) ~= 1 then
    return nil
  end
  packed = 'C' .. string.sub(packed, 2) .. '|' .. finish
  stored[unit] = packed
  put(to_write, unit, packed)
  drop(LEASE[GENERATE], unit)
  hold(string.match(holder, '^[^/]*'), -1)
  end_complete(id, group)
  return 'OK'
end

local NO_CHUNKS = {}

-- Carries out the writes {unit token verb detail chunks {offset tokens version engine fabric
-- bytes}...}... that begin at ARGV[at]; answers one reply for each.
local function write_all(holder, at)
  local ahead, ids, count_ids = at, {}, 0
  local last = #ARGV
  while ahead <= last do
    count_ids = count_ids + 1
    ids[count_ids] = ARGV[ahead]
    ahead = ahead + 5 + 6 * tonumber(ARGV[ahead + 4])
  end
  fetch_units(ids)
  local replies, count_replies = {}, 0
  while at <= last do
    local unit, token, verb, detail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local parts = tonumber(ARGV[at + 4])
    local chunks = parts > 0 and {} or NO_CHUNKS
    at = at + 5
    for part = 1, parts do
      chunks[part] = { offset = tonumber(ARGV[at]), tokens = tonumber(ARGV[at + 1]),
        version = tonumber(ARGV[at + 2]), engine = ARGV[at + 3], fabric = ARGV[at + 4],
        bytes = ARGV[at + 5] }
      at = at + 6
    end
    local reply = verb == 'COMPLETE' and parts == 0 and complete_brief(holder, unit, token, detail)
    count_replies = count_replies + 1
    replies[count_replies] =
      reply or write_unit(holder, unit, tonumber(token), verb, detail, chunks)
  end
  return replies
end
