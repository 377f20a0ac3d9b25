-- RECLAIM node boot_id process agent_prefix
-- Hands back, from their last checkpoint, all units that other boots of this node or other agent
-- processes of it still hold; answers how many.

local function is_earlier(holder)
  local of_claimant, boot, process, prefix = unpack(ARGV)
  local of_node, of_boot, of_process = string.match(holder, '^([^/]*)/([^/]*)/([^/]*)$')
  local is_agent = string.sub(of_process or '', 1, #prefix) == prefix
  return of_node == of_claimant and (of_boot ~= boot or (is_agent and of_process ~= process))
end

register('reclaim', FINISHES, function()
  local reclaimed = 0
  for stage = GENERATE, REWARD do
    for _, unit in ipairs(call('ZRANGE', LEASE[stage], 0, -1)) do
      local record = read_unit(unit)
      if record and is_leased(record[STATE]) and is_earlier(record[HOLDER]) then
        hand_back(unit, record, 'agent_restart')
        reclaimed = reclaimed + 1
      end
    end
  end
  flush()
  return reclaimed
end)
