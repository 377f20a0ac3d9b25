-- JOURNAL KEYS journal newest_generation; ARGV generation line kept
-- Adds a leader's line and keeps about so many, the newest ones.
register_control('control_journal', 'adds', function(keys, arguments)
  if is_outdated(keys[2], arguments[1]) then return -1 end
  call('XADD', keys[1], 'MAXLEN', '~', arguments[3], '*', 'line', arguments[2])
  return 1
end)
