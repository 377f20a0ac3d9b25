-- ACKNOWLEDGE consumer group...
-- Deletes groups that this trainer has taken; answers how many.
register('acknowledge', 'finishes', function()
  ensure_trainers()
  local consumer, acknowledged = ARGV[1], 0
  for index = 2, #ARGV do
    local id = ARGV[index]
    local group = read_group(id)
    local entry = group and group[ENTRY] or ''
    if entry ~= '' and #call('XPENDING', OUT, TRAINERS, entry, entry, 1, consumer) == 1 then
      call('XACK', OUT, TRAINERS, entry)
      call('XDEL', OUT, entry)
      bury(group)
      acknowledged = acknowledged + 1
    end
  end
  flush()
  return acknowledged
end)
