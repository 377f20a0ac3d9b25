-- SET_VERSION version
-- Raises the policy version; a lower one changes nothing. Answers the version that now holds.
local version = math.max(current, tonumber(ARGV[1]))
redis.call('SET', VERSION, string.format('%.0f', version))
return version
