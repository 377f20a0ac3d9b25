-- MARK KEYS mark
-- Writes something, so that a WAIT behind it speaks of a write; allowed when memory is full, which
-- no plain command is that always writes.
register_control('control_mark', 'finishes', function(keys)
  return call('SET', keys[1], '1')
end)
