-- READ KEYS records...
-- Answers the server's time and every record, all of one moment.
local clock = redis.call('TIME')
local records = {}
for index, key in ipairs(KEYS) do records[index] = redis.call('HGETALL', key) end
return { clock[1] * 1000 + math.floor(clock[2] / 1000), records }
