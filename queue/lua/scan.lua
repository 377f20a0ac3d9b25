-- SCAN cursor
-- Answers {cursor, units}, group by group, for audits; a group may appear in two pages when the
-- shard changes meanwhile.
register('scan', 'reads', function()
  local page = call('HSCAN', GROUPS, ARGV[1], 'COUNT', 64)
  local found = {}
  for index = 1, #page[2], 2 do
    for _, unit in ipairs(snapshots_of_group(page[2][index])) do found[#found + 1] = unit end
  end
  return { page[1], found }
end)
