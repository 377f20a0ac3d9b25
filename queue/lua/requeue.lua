-- REQUEUE unit
-- Takes a leased unit from its holder, whose token is worth nothing from then on; no attempt.
-- Answers OK, ALREADY_DONE when nobody holds it, or UNKNOWN.
register('requeue', FINISHES, function()
  local unit = ARGV[1]
  local record = read_unit(unit)
  if not record then
    return call('ZSCORE', TOMBS, group_of(unit)) and 'ALREADY_DONE' or 'UNKNOWN'
  end
  if not is_leased(record[STATE]) then return 'ALREADY_DONE' end
  hand_back(unit, record, 'operator')
  flush()
  return 'OK'
end)
