-- SET_VERSION version
-- Raises the policy version; a lower one changes nothing and is counted, for the alarm. Answers the
-- version that now holds.
register('set_version', 'finishes', function()
  local version = tonumber(ARGV[1])
  if version < current then
    count('versions_refused', 1)
    flush()
    return current
  end
  call('SET', VERSION, string.format('%.0f', version))
  return version
end)
