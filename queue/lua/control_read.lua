-- READ KEYS records...
-- Answers the server's time and every record, all of one moment.
register_control('control_read', 'reads', function(keys, arguments)
  local records = {}
  for index, key in ipairs(keys) do records[index] = call('HGETALL', key) end
  return { server_time(), records }
end)
