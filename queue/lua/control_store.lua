-- STORE KEYS meta; ARGV name
-- Names the store, once: the first name that is given stays. Answers the name that holds.
register_control('control_store', 'finishes', function(keys, arguments)
  if call('HSETNX', keys[1], 'store', arguments[1]) == 1 then
    call('HSET', keys[1], 'named_at', string.format('%.0f', server_time()))
  end
  return call('HGET', keys[1], 'store')
end)
