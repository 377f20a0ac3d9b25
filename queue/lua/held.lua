-- HELD node
-- Answers how many units are leased to holders of a node; a lease that has run out counts until it
-- is reaped.
register('held', 'reads', function()
  return tonumber(call('HGET', COUNTERS, 'held:' .. ARGV[1]) or '0')
end)
