-- ACKNOWLEDGE consumer group...
-- Deletes groups that this trainer has taken; answers how many.
ensure_trainers()
local wanted, acknowledged = {}, 0
for index = 2, #ARGV do wanted[ARGV[index]] = true end
local reply = redis.call('XREADGROUP', 'GROUP', TRAINERS, ARGV[1],
  'COUNT', 1000, 'STREAMS', OUT, '0')
for _, entry in ipairs(reply and reply[1][2] or {}) do
  local id = entry[2] and entry[2][2]
  if id and wanted[id] then
    redis.call('XACK', OUT, TRAINERS, entry[1])
    redis.call('XDEL', OUT, entry[1])
    local group = read(GROUPS, id)
    if group then bury(id, group) end
    acknowledged = acknowledged + 1
  end
end
return acknowledged
