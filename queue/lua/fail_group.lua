-- FAIL_GROUP group reason
-- Ends a group as FAILED. Answers OK, ALREADY_DONE or UNKNOWN.
local group = read(GROUPS, ARGV[1])
if group and group[SEALED] == 0 then
  fail(ARGV[1], group, ARGV[2])
  return 'OK'
end
return (group or redis.call('ZSCORE', TOMBS, ARGV[1])) and 'ALREADY_DONE' or 'UNKNOWN'
