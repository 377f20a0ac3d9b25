-- REAP limit
-- Returns units whose lease has expired to the ready queue; answers how many.
return reap(tonumber(ARGV[1]))
