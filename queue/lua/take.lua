-- TAKE consumer limit [own|new]
-- Takes sealed groups for a trainer, its own unacknowledged ones first, or only those, or only new
-- ones. Answers {version, groups}; a group is {is_redelivered, id, spec, slots}, a slot {state,
-- parts, origins, finish, score, attempts, infra, hand_backs}. A group that has become too old
-- fails instead, redelivered ones too, and never reaches the trainer.

local function describe_sealed(group, is_redelivered)
  local slots, name = {}, group[ID]
  for slot = 0, group[SIZE] - 1 do
    local unit = read_unit(unit_of(name, slot))
    slots[slot + 1] = { unit[STATE], unit[PARTS], unit[ORIGINS], unit[FINISH], unit[SCORE],
      unit[ATTEMPTS] + unit[SCORE_ATTEMPTS], unit[INFRA], unit[HAND_BACKS] }
  end
  return { is_redelivered, name, call('HGET', SPECS, name), slots }
end

-- SEALED to FAILED(stale): its slots stay COMPLETED, its tokens go from accepted to wasted.
local function expire_if_stale(group)
  if group[OLDEST] < 0 or not is_stale(group, group[OLDEST]) then return false end
  count('tokens_accepted', -group[DONE_TOKENS])
  count('wasted:stale', group[DONE_TOKENS])
  count('groups_failed', 1)
  record_failure(group, 'stale', '', '', group[DONE_TOKENS])
  bury(group)
  return true
end

-- Adds to `batch` what the consumer is given from `from` on; answers how many entries there were,
-- and whether some of them were dropped.
local function read_buffer(consumer, limit, from, batch)
  local reply = call('XREADGROUP', 'GROUP', TRAINERS, consumer, 'COUNT', limit - #batch,
    'STREAMS', OUT, from)
  local entries, has_dropped = reply and reply[1][2] or {}, false
  for _, entry in ipairs(entries) do
    local name = entry[2] and entry[2][2]
    local group = name and read_group(name)
    if not group or group[ENTRY] ~= entry[1] or expire_if_stale(group) then
      call('XACK', OUT, TRAINERS, entry[1])
      call('XDEL', OUT, entry[1])
      has_dropped = true
    else
      batch[#batch + 1] = describe_sealed(group, from == '0' and 1 or 0)
    end
  end
  return #entries, has_dropped
end

register('take', 'finishes', function()
  ensure_trainers()
  local consumer, limit = ARGV[1], tonumber(ARGV[2])
  local which, batch = ARGV[3], {}
  while which ~= 'new' do
    local _, has_dropped = read_buffer(consumer, limit, '0', batch)
    if not has_dropped then break end
    batch = {}
  end
  while which ~= 'own' and #batch < limit and read_buffer(consumer, limit, '>', batch) > 0 do end
  flush()
  return { current, batch }
end)
