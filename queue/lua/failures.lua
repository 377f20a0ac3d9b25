-- FAILURES after limit
-- Answers the records of failed groups after the record `after` ('' begins), oldest first.
local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
return redis.call('XRANGE', FAILED, from, '+', 'COUNT', ARGV[2])
