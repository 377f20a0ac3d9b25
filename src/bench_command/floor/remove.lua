#!lua
-- Floor of a completion: ARGV is unit, token, unit, token, ...; what carries its token is removed.
-- KEYS: lease (sorted set), token (hash), and the specifications (hash) where there are any.
local units = {}
for i = 1, #ARGV, 2 do units[#units + 1] = ARGV[i] end
local tokens = redis.call('HMGET', KEYS[2], unpack(units))
local done = {}
for i, unit in ipairs(units) do
  if tokens[i] == ARGV[2 * i] then done[#done + 1] = unit end
end
if #done == 0 then return 0 end
redis.call('ZREM', KEYS[1], unpack(done))
redis.call('HDEL', KEYS[2], unpack(done))
if KEYS[3] then redis.call('HDEL', KEYS[3], unpack(done)) end
return #done
