-- CANCEL_RUN cursor reason
-- Ends the groups of one page that are not sealed as FAILED. Answers {cursor, how many}; cursor 0
-- is the end.
register('cancel_run', 'finishes', function()
  local page = call('HSCAN', GROUPS, ARGV[1], 'COUNT', 64)
  local ended = 0
  for index = 1, #page[2], 2 do
    local id = page[2][index]
    local group = read_group(id)
    if group and group[ENTRY] == '' then
      fail(group, ARGV[2])
      ended = ended + 1
    end
  end
  flush()
  return { page[1], ended }
end)
