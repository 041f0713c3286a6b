"""The script that writes a batch of outputs, each if the store knows what comes before."""

from hashlib import sha1

from optimist_proposer.core.log_write import OTHER_OPENING, UNKNOWN
from optimist_proposer.core.stored_request import NUMBER_BYTES, OPENING_BYTES

# KEYS: requests. ARGV: time to live in ms, then for each request its opening, known tokens before
# and after, runs to append, and the whole request if it may be created. Answers the number of
# tokens known then, or why there is none, for each.
WRITE_SCRIPT = f"""
local answers = {{}}
for i, key in ipairs(KEYS) do
  local at = 5 * i - 3
  local head = redis.call('GETRANGE', key, 0, {OPENING_BYTES + NUMBER_BYTES - 1})
  local known
  if #head == 0 then
    if #ARGV[at + 4] > 0 then
      redis.call('SET', key, ARGV[at + 4], 'PX', ARGV[1])
      known = ARGV[at + 2]
    end
  elseif string.sub(head, 1, {OPENING_BYTES}) ~= ARGV[at] then
    answers[i] = {OTHER_OPENING}
  else
    known = string.sub(head, {OPENING_BYTES + 1})
    if known == ARGV[at + 1] and #ARGV[at + 3] > 0 then
      redis.call('APPEND', key, ARGV[at + 3])
      known = ARGV[at + 2]
      redis.call('SETRANGE', key, {OPENING_BYTES}, known)
    end
    redis.call('PEXPIRE', key, ARGV[1])
  end
  if known then
    answers[i] = struct.unpack('<I4', known)
  elseif not answers[i] then
    answers[i] = {UNKNOWN}
  end
end
return answers
"""

WRITE_SCRIPT_SHA = sha1(WRITE_SCRIPT.encode(), usedforsecurity=False).hexdigest()
"""How Redis names the script once it has run."""
