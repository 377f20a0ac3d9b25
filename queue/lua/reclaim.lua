-- RECLAIM node boot_id process agent_prefix
-- Hands back, from their last checkpoint, all units that other boots of this node or other agent
-- processes of it still hold; answers how many.

local function is_earlier(holder)
  local of_claimant, boot, process, prefix = unpack(ARGV)
  local of_node, of_boot, of_process = string.match(holder, '^([^/]*)/([^/]*)/([^/]*)$')
  local is_agent = string.sub(of_process or '', 1, #prefix) == prefix
  return of_node == of_claimant and (of_boot ~= boot or (is_agent and of_process ~= process))
end

register('reclaim', 'finishes', function()
  local reclaimed = 0
  for stage = GENERATE, REWARD do
    for _, id in ipairs(call('ZRANGE', LEASE[stage].key, 0, -1)) do
      local unit = read_unit(id)
      if unit and is_leased(unit[STATE]) and is_earlier(unit[HOLDER]) then
        hand_back(unit, 'agent_restart')
        reclaimed = reclaimed + 1
      end
    end
  end
  flush()
  return reclaimed
end)
