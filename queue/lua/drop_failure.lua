-- DROP_FAILURE record
-- Deletes a record of a failure; answers how many it deleted.
return call('XDEL', FAILED, ARGV[1])
