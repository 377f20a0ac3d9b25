-- EXCHANGE holder {lease request} {write}...
-- First the writes, then the lease; `limit` 0 leases nothing. One round trip for a whole cycle of a
-- worker. Answers {replies, leased}; `leased` is false without a lease. LEASE and WRITE are this
-- script with the other part empty.
local holder, request = ARGV[1], lease_request(2)
local replies = write_all(holder, 11)
return { replies, request.limit > 0 and lease(holder, request) or false }
