-- TAKE_OVER from to limit
-- Moves up to `limit` unacknowledged groups of a lost trainer to another one; answers how many.
register('take_over', 'finishes', function()
  ensure_trainers()
  local from, to, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
  local pending = call('XPENDING', OUT, TRAINERS, '-', '+', limit, from)
  for _, entry in ipairs(pending) do
    call('XCLAIM', OUT, TRAINERS, to, 0, entry[1], 'JUSTID')
  end
  return #pending
end)
