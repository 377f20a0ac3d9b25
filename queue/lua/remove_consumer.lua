-- REMOVE_CONSUMER consumer
-- Forgets a trainer that has acknowledged everything; answers the groups that it still has, and
-- then removes nothing: they would be lost with it.
register('remove_consumer', 'finishes', function()
  ensure_trainers()
  local pending = call('XPENDING', OUT, TRAINERS, '-', '+', 1000, ARGV[1])
  if #pending == 0 then call('XGROUP', 'DELCONSUMER', OUT, TRAINERS, ARGV[1]) end
  return #pending
end)
