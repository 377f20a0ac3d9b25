-- FAIL_GROUP group reason
-- Ends a group as FAILED. Answers OK, ALREADY_DONE or UNKNOWN.
register('fail_group', 'finishes', function()
  local id, reason = ARGV[1], ARGV[2]
  local group = read_group(id)
  if not group then return call('ZSCORE', TOMBS, id) and 'ALREADY_DONE' or 'UNKNOWN' end
  if group[ENTRY] ~= '' then return 'ALREADY_DONE' end
  fail(group, reason)
  flush()
  return 'OK'
end)
