-- PUT KEYS record index [newest_generation]; ARGV [generation] member mode stamp {field value}...
-- Writes a record and lists it in its index. `stamp` is the field that gets the server's time,
-- '' for none. Mode replace writes the whole record, merge keeps other fields, raise does nothing
-- unless the field `version` rises. Answers the server's time, or 0 when nothing was written, -1 to
-- a leader that was followed by another.
register_control('control_put', 'finishes', function(keys, arguments)
  if keys[3] and is_outdated(keys[3], table.remove(arguments, 1)) then return -1 end
  local member, mode, stamp = arguments[1], arguments[2], arguments[3]
  local now = server_time()
  if mode == 'raise' then
    local version = tonumber(call('HGET', keys[1], 'version') or '0')
    for at = 4, #arguments, 2 do
      if arguments[at] == 'version' and tonumber(arguments[at + 1]) <= version then return 0 end
    end
  end
  if mode ~= 'merge' then call('DEL', keys[1]) end
  for at = 4, #arguments, 2 do call('HSET', keys[1], arguments[at], arguments[at + 1]) end
  if stamp ~= '' then call('HSET', keys[1], stamp, string.format('%.0f', now)) end
  if member ~= '' then call('SADD', keys[2], member) end
  return now
end)
