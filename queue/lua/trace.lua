-- TRACE group
-- Answers {spec, units, parts, history, forgotten_at}: the group's spec ('' when it has ended), its
-- units, for each unit {parts, origins} and its packed history, and when its tombstone goes (0
-- without one).
register('trace', 'reads', function()
  local id = ARGV[1]
  local found, parts, history = snapshots_of_group(id), {}, {}
  for index, seen in ipairs(found) do
    local unit = read_unit(seen[1])
    parts[index] = { unit[PARTS], unit[ORIGINS] }
    history[index] = call('HGET', HISTORY, seen[1]) or ''
  end
  local spec = call('HGET', SPECS, id) or ''
  return { spec, found, parts, history, tonumber(call('ZSCORE', TOMBS, id) or '0') }
end)
