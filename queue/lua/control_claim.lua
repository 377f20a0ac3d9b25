-- CLAIM KEYS newest claims; ARGV generation action
-- Grants an action once, and never to a generation older than the newest that claimed anything.
register_control('control_claim', 'finishes', function(keys, arguments)
  local generation = tonumber(arguments[1])
  if generation < tonumber(call('GET', keys[1]) or '0') then return 0 end
  call('SET', keys[1], arguments[1])
  local clock = call('TIME')
  call('ZREMRANGEBYSCORE', keys[2], '-inf', clock[1] - 86400)
  return call('ZADD', keys[2], 'NX', clock[1], arguments[2])
end)
