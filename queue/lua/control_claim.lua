-- CLAIM KEYS newest claims; ARGV generation action
-- Grants an action once, and never to a generation older than the newest that claimed anything.
local generation = tonumber(ARGV[1])
if generation < tonumber(redis.call('GET', KEYS[1]) or '0') then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', clock[1] - 86400)
return redis.call('ZADD', KEYS[2], 'NX', clock[1], ARGV[2])
