-- Storing tokens and moving units on: what a call does for its writes.

local list_written, write_all
do
  -- Index of the first chunk that is not stored yet: repeated ones are equal to a stored one. A
  -- stored chunk is its origin's number in two bytes, then its bytes.
  local function skip_repeated(unit, chunks)
    for index, chunk in ipairs(chunks) do
      local is_known = false
      if chunk.offset < unit[TOKENS] then
        flush_list('HSET', CHUNKS, chunks_to_write)
        for part = unit[PARTS] - 1, 0, -1 do
          local stored = call('HGET', CHUNKS, unit[ID] .. '/' .. part) or ''
          is_known = string.sub(stored, 3) == chunk.bytes
          if is_known then break end
        end
      end
      if not is_known then return index end
    end
    return #chunks + 1
  end

  local function refusal(unit, chunks, first)
    local stored, version = unit[TOKENS], unit[PARTS] > 0 and unit[LAST] or 0
    local limit = unit[GROUP][MAX_TOKENS]
    for index = first, #chunks do
      local chunk = chunks[index]
      if chunk.offset ~= stored or chunk.tokens == 0 or stored + chunk.tokens > limit then
        return 'OFFSET ' .. unit[TOKENS]
      end
      if chunk.version < version then return 'BAD_VERSION' end
      stored, version = stored + chunk.tokens, chunk.version
    end
  end

  -- The number of the chunk's origin (lease, engine, fabric verdict), stored once for a run of
  -- chunks.
  local function origin_of(unit, chunk)
    local origin = unit[TOKEN] .. ' ' .. chunk.fabric .. ' ' .. chunk.engine
    if unit[ORIGIN] ~= origin then
      put_pair(chunks_to_write, unit[ID] .. '/o' .. unit[ORIGINS],
        pack({ unit[HOLDER], unit[TOKEN], chunk.engine, chunk.fabric }))
      unit[ORIGIN], unit[ORIGINS] = origin, unit[ORIGINS] + 1
    end
    return struct.pack('<H', unit[ORIGINS] - 1)
  end

  local function store(unit, chunks, first)
    if first > #chunks then return end
    count_preserved(unit)
    local before = unit[TOKENS]
    for index = first, #chunks do
      local chunk = chunks[index]
      local origin = origin_of(unit, chunk)
      put_pair(chunks_to_write, unit[ID] .. '/' .. text_of(unit[PARTS]), origin .. chunk.bytes)
      if unit[PARTS] == 0 then unit[FIRST] = chunk.version end
      unit[LAST], unit[PARTS] = chunk.version, unit[PARTS] + 1
      unit[TOKENS] = unit[TOKENS] + chunk.tokens
    end
    count('tokens_generated', unit[TOKENS] - before)
    unit[PROGRESS_AT], unit[STATE] = now, STREAMING
  end

  -- The end of a stage: of the last one, or the unit waits for its score.
  local function complete(unit)
    local group = unit[GROUP]
    if unit[PARTS] > 0 and is_stale(group, unit[FIRST]) then
      return end_slot(unit, EXPIRED, 'stale')
    end
    if unit[STAGE] + 1 == group[STAGES] then return complete_slot(unit) end
    unit[STAGE], unit[GENERATED], unit[WAITING_SINCE] = REWARD, unit[TOKEN], 0
    remember(unit, 'generated', '')
    make_ready(unit)
  end

  local STAGE_OF = { COMPLETE = GENERATE, SCORE = REWARD }

  local function write_unit(holder, id, token, verb, detail, chunks)
    local unit = read_unit(id)
    if not unit then return call('ZSCORE', TOMBS, group_of(id)) and 'ALREADY_DONE' or 'UNKNOWN' end
    if unit[STAGE] == REWARD and unit[GENERATED] == token then return 'ALREADY_DONE' end
    if unit[TOKEN] ~= token or unit[HOLDER] ~= holder then return 'FENCED' end
    if is_final(unit[STATE]) then return 'ALREADY_DONE' end
    if unit[STATE] == ENQUEUED then
      -- Given back under this very token: by this very call, or by the reaper without these tokens.
      local is_back = verb == 'HANDBACK' or verb == 'FAULT'
      return is_back and skip_repeated(unit, chunks) > #chunks and 'ALREADY_DONE' or 'FENCED'
    end
    local is_wrong_verb = STAGE_OF[verb] and STAGE_OF[verb] ~= unit[STAGE]
    if is_wrong_verb or (unit[STAGE] == REWARD and #chunks > 0) then return 'WRONG_STAGE' end
    if #chunks > 0 then
      local first = skip_repeated(unit, chunks)
      local refused = refusal(unit, chunks, first)
      if refused then return refused end
      store(unit, chunks, first)
    end
    touch(unit)
    if verb == 'COMPLETE' then
      count_preserved(unit)
      unit[FINISH] = detail
      complete(unit)
    elseif verb == 'SCORE' then
      unit[SCORE] = detail
      complete(unit)
    elseif verb == 'HANDBACK' then hand_back(unit, detail)
    elseif verb == 'FAULT' then fault(unit, detail) end
    return 'OK'
  end

  local NO_CHUNKS = {}

  -- COMPLETE of a unit that was leased once and has no tokens, in a run without scores: from record
  -- to record. Answers OK, or nothing for any other unit.
  local function complete_plain(holder, id, token, finish)
    local record, group = records[id], groups[group_of(id)]
    if units[id] ~= nil or not record or not group or group[STAGES] ~= 1 then return nil end
    local leased = struct.pack('>BBI7I2c0', LEASED, GENERATE, token, #holder, holder)
    local length = #leased
    -- Behind that a plain record has when it was leased, in six bytes, and an empty finish, in two.
    if #record ~= length + 8 or sub(record, 1, length) ~= leased then return nil end
    record = struct.pack('>Bc0I2c0', COMPLETED, sub(record, 2, length + 6), #finish, finish)
    records[id] = record
    put_pair(units_to_write, id, record)
    put(LEASE[GENERATE].to_drop, id)
    hold(node_of_holder(holder), -1)
    count_complete(group)
    return 'OK'
  end

  -- Adds the units of so many writes that begin at ARGV[at] to `ids`; answers where they end.
  function list_written(at, writes, ids)
    for _ = 1, writes do
      put(ids, ARGV[at])
      at = at + 5 + 6 * tonumber(ARGV[at + 4])
    end
    return at
  end

  -- Carries out so many writes {unit token verb detail chunks {offset tokens version engine fabric
  -- bytes}...} that begin at ARGV[at]; adds a reply for each.
  function write_all(holder, at, writes, replies)
    for _ = 1, writes do
      local id, token, verb, detail = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
      local parts = tonumber(ARGV[at + 4])
      local chunks = parts > 0 and {} or NO_CHUNKS
      at = at + 5
      for part = 1, parts do
        chunks[part] = { offset = tonumber(ARGV[at]), tokens = tonumber(ARGV[at + 1]),
          version = tonumber(ARGV[at + 2]), engine = ARGV[at + 3], fabric = ARGV[at + 4],
          bytes = ARGV[at + 5] }
        at = at + 6
      end
      local reply = verb == 'COMPLETE' and parts == 0 and complete_plain(holder, id, token, detail)
      put(replies, reply or write_unit(holder, id, token, verb, detail, chunks))
    end
  end
end
