#!lua
-- Floor of a lease: pop up to ARGV[1] units, give each the next token, set a deadline ARGV[2] ms
-- from now. KEYS: ready (sorted set), lease (sorted set), token (hash) and, where specifications
-- are read too, specs (hash). Returns { { unit, token, ... }, { spec, ... } }.
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
if #popped == 0 then return { {}, {} } end
local clock = redis.call('TIME')
local deadline = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[2]
local granted, deadlines, units = {}, {}, {}
for i = 1, #popped, 2 do
  local unit = popped[i]
  granted[i], granted[i + 1] = unit, redis.call('HINCRBY', KEYS[3], unit, 1)
  deadlines[i], deadlines[i + 1] = deadline, unit
  units[#units + 1] = unit
end
redis.call('ZADD', KEYS[2], unpack(deadlines))
return { granted, KEYS[4] and redis.call('HMGET', KEYS[4], unpack(units)) or {} }
