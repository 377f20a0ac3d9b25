-- REMOVE KEYS record index; ARGV member
register_control('control_remove', 'finishes', function(keys, arguments)
  call('SREM', keys[2], arguments[1])
  return call('DEL', keys[1])
end)
