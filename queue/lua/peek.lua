-- PEEK stage limit
-- Answers the units at the head of the ready queue, in the order in which they would be leased.
register('peek', 'reads', function()
  local found = {}
  for _, unit in ipairs(call('ZRANGE', READY[tonumber(ARGV[1])].key, 0, tonumber(ARGV[2]) - 1)) do
    found[#found + 1] = snapshot(unit)
  end
  return found
end)
