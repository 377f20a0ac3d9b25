-- WRITE holder {unit token then detail chunks {offset tokens version bytes}...}...
-- Stores tokens, then does what `then` says: CONTINUE, COMPLETE, HANDBACK or FAULT. Answers for
-- each unit OK, ALREADY_DONE, FENCED, OFFSET n, UNKNOWN or BAD_VERSION; but for OK nothing changes.
local holder, replies, at = ARGV[1], {}, 2

-- Index of the first chunk that is not stored yet: repeated ones are equal to a stored one.
local function skip_repeated(unit, record, chunks)
  for index, chunk in ipairs(chunks) do
    local is_known = false
    if chunk.offset < record[TOKENS] then
      for part = record[PARTS] - 1, 0, -1 do
        is_known = redis.call('HGET', CHUNKS, unit .. '/' .. part) == chunk.bytes
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

local function store(unit, record, chunks, first)
  if first > #chunks then return end
  count_preserved(record)
  local before = record[TOKENS]
  for index = first, #chunks do
    local chunk = chunks[index]
    redis.call('HSET', CHUNKS, unit .. '/' .. record[PARTS], chunk.bytes)
    if record[PARTS] == 0 then record[FIRST] = chunk.version end
    record[LAST], record[PARTS] = chunk.version, record[PARTS] + 1
    record[TOKENS] = record[TOKENS] + chunk.tokens
  end
  count('tokens_generated', record[TOKENS] - before)
  record[PROGRESS_AT], record[STATE] = now, STREAMING
end

local function complete(unit, record, group, finish)
  count_preserved(record)
  if record[PARTS] > 0 and is_stale(group, record[FIRST]) then
    return end_slot(unit, record, group, EXPIRED, 'stale')
  end
  redis.call('ZREM', LEASE, unit)
  count('completed', 1)
  record[STATE], record[FINISH] = COMPLETED, finish
  write(UNITS, unit, record)
  settle(group_of(unit), group)
end

local function write_unit(unit, token, verb, detail, chunks)
  local record = read(UNITS, unit)
  if not record then
    return redis.call('ZSCORE', TOMBS, group_of(unit)) and 'ALREADY_DONE' or 'UNKNOWN'
  end
  if record[TOKEN] ~= token or record[HOLDER] ~= holder then return 'FENCED' end
  if is_final(record[STATE]) then return 'ALREADY_DONE' end
  if record[STATE] == ENQUEUED then
    -- Given back under this very token: by a repeated call, or by the reaper.
    return (verb == 'HANDBACK' or verb == 'FAULT') and 'ALREADY_DONE' or 'FENCED'
  end
  local group = read(GROUPS, group_of(unit))
  local first = skip_repeated(unit, record, chunks)
  local refused = refusal(record, group, chunks, first)
  if refused then return refused end
  store(unit, record, chunks, first)
  if verb == 'COMPLETE' then complete(unit, record, group, detail)
  elseif verb == 'HANDBACK' then hand_back(unit, record, group, detail)
  elseif verb == 'FAULT' then fault(unit, record, group)
  else write(UNITS, unit, record) end
  return 'OK'
end

while at <= #ARGV do
  local unit, token, verb, detail = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local chunks, parts = {}, tonumber(ARGV[at + 4])
  at = at + 5
  for part = 1, parts do
    chunks[part] = { offset = tonumber(ARGV[at]), tokens = tonumber(ARGV[at + 1]),
      version = tonumber(ARGV[at + 2]), bytes = ARGV[at + 3] }
    at = at + 4
  end
  replies[#replies + 1] = write_unit(unit, token, verb, detail, chunks)
end
return replies
