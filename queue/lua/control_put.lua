-- PUT KEYS record index; ARGV member mode stamp {field value}...
-- Writes a record and lists it in its index. `stamp` is the field that gets the server's time,
-- '' for none. Mode replace writes the whole record, merge keeps other fields, raise does nothing
-- unless the field `version` rises.
local member, mode, stamp = ARGV[1], ARGV[2], ARGV[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if mode == 'raise' then
  local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
  for at = 4, #ARGV, 2 do
    if ARGV[at] == 'version' and tonumber(ARGV[at + 1]) <= version then return 0 end
  end
end
if mode ~= 'merge' then redis.call('DEL', KEYS[1]) end
for at = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
if stamp ~= '' then redis.call('HSET', KEYS[1], stamp, string.format('%.0f', now)) end
if member ~= '' then redis.call('SADD', KEYS[2], member) end
return 1
