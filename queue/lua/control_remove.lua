-- REMOVE KEYS record index [newest_generation]; ARGV [generation] member
-- Answers -1 to a leader that was followed by another.
register_control('control_remove', 'finishes', function(keys, arguments)
  if keys[3] and is_outdated(keys[3], table.remove(arguments, 1)) then return -1 end
  call('SREM', keys[2], arguments[1])
  return call('DEL', keys[1])
end)
