-- REPORT KEYS reports; ARGV name {field value}...
-- Adds a closing report to the newest thousand or so. `name` names it: a repeated call adds nothing.

local REPORTS_KEPT, REPEATS_WITHIN = 1000, 200

register_control('control_report', 'finishes', function(keys, arguments)
  for _, entry in ipairs(call('XREVRANGE', keys[1], '+', '-', 'COUNT', REPEATS_WITHIN)) do
    if entry[2][2] == arguments[1] then return 0 end
  end
  local fields = { 'name', arguments[1], 'at', string.format('%.0f', server_time()) }
  for at = 2, #arguments do fields[#fields + 1] = arguments[at] end
  call('XADD', keys[1], 'MAXLEN', '~', REPORTS_KEPT, '*', unpack(fields))
  return 1
end)
