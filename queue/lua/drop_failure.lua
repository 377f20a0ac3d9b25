-- DROP_FAILURE record
-- Deletes a record of a failure; answers how many it deleted.
register('drop_failure', 'finishes', function()
  return call('XDEL', FAILED, ARGV[1])
end)
