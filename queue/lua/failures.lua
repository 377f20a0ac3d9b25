-- FAILURES after limit
-- Answers the records of failed groups and dead units after the record `after` ('' begins), oldest
-- first.
register('failures', 'reads', function()
  local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
  return call('XRANGE', FAILED, from, '+', 'COUNT', ARGV[2])
end)
