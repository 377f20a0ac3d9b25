-- REQUEUE unit token
-- Takes a leased unit from its holder, whose token is worth nothing from then on; no attempt.
-- Answers OK, ALREADY_DONE when nobody holds it under that token, or UNKNOWN.
register('requeue', 'finishes', function()
  local id = ARGV[1]
  local unit = read_unit(id)
  if not unit then return call('ZSCORE', TOMBS, group_of(id)) and 'ALREADY_DONE' or 'UNKNOWN' end
  if not is_leased(unit[STATE]) or unit[TOKEN] ~= tonumber(ARGV[2]) then return 'ALREADY_DONE' end
  hand_back(unit, 'operator')
  flush()
  return 'OK'
end)
