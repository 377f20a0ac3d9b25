-- RECLAIM node boot_id process agent_prefix
-- Hands back, from their last checkpoint, all units that other boots of this node or other agent
-- processes of it still hold; answers how many.
local node, boot, process, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local reclaimed = 0
for _, unit in ipairs(redis.call('ZRANGE', LEASE, 0, -1)) do
  local record = read(UNITS, unit)
  local holder = record and record[HOLDER] or ''
  local of_node, of_boot, of_process = string.match(holder, '^([^/]*)/([^/]*)/([^/]*)$')
  local is_agent = string.sub(of_process or '', 1, #prefix) == prefix
  local is_other_agent = is_agent and of_process ~= process
  if of_node == node and (of_boot ~= boot or is_other_agent) then
    hand_back(unit, record, read(GROUPS, group_of(unit)), 'agent_restart')
    reclaimed = reclaimed + 1
  end
end
return reclaimed
