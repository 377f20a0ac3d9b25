-- TAKE consumer limit
-- Takes sealed groups for a trainer, its own unacknowledged ones first. Answers {version, groups};
-- a group is {is_redelivered, id, spec, slots}, a slot {state, parts, finish, attempts, infra,
-- hand_backs}. A group that has become too old fails instead and never reaches the trainer.
ensure_trainers()
local consumer, limit = ARGV[1], tonumber(ARGV[2])
local batch = {}

local function describe(id, group, is_redelivered)
  local slots = {}
  for slot = 0, group[SIZE] - 1 do
    local record = read(UNITS, unit_of(id, slot))
    slots[slot + 1] = { record[STATE], record[PARTS], record[FINISH], record[ATTEMPTS],
      record[INFRA], record[HAND_BACKS] }
  end
  return { is_redelivered, id, redis.call('HGET', SPECS, id), slots }
end

-- SEALED to FAILED(stale): its slots stay COMPLETED, its tokens go from accepted to wasted.
local function expire_if_stale(id, group)
  local tally, tokens, oldest = new_tally(), 0, math.huge
  for slot = 0, group[SIZE] - 1 do
    local record = read(UNITS, unit_of(id, slot))
    tally[record[STATE]] = tally[record[STATE]] + 1
    tokens = tokens + record[TOKENS]
    if record[PARTS] > 0 then oldest = math.min(oldest, record[FIRST]) end
  end
  if not is_stale(group, oldest) then return false end
  redis.call('HINCRBY', COUNTERS, 'tokens_accepted', -tokens)
  count('wasted:stale', tokens)
  record_failure(id, group, 'stale', tally, tokens)
  bury(id, group)
  return true
end

local function read_stream(from, is_redelivered)
  local reply = redis.call('XREADGROUP', 'GROUP', TRAINERS, consumer,
    'COUNT', limit - #batch, 'STREAMS', OUT, from)
  if not reply then return 0 end
  local entries = reply[1][2]
  for _, entry in ipairs(entries) do
    local id = entry[2] and entry[2][2]
    local group = id and read(GROUPS, id)
    if not group or (is_redelivered == 0 and expire_if_stale(id, group)) then
      redis.call('XACK', OUT, TRAINERS, entry[1])
      redis.call('XDEL', OUT, entry[1])
    else
      batch[#batch + 1] = describe(id, group, is_redelivered)
    end
  end
  return #entries
end

read_stream('0', 1)
while #batch < limit and read_stream('>', 0) > 0 do end
return { current, batch }
