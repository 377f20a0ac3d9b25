-- TAKE_OVER from to
-- Moves the unacknowledged groups of a lost trainer to another one; answers how many.
ensure_trainers()
local pending = redis.call('XPENDING', OUT, TRAINERS, '-', '+', 1000, ARGV[1])
for _, entry in ipairs(pending) do
  redis.call('XCLAIM', OUT, TRAINERS, ARGV[2], 0, entry[1], 'JUSTID')
end
return #pending
