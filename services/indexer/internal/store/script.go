package store

import "github.com/redis/go-redis/v9"

// fieldRev is the field of meta with the revision, which the scripts set.
const fieldRev = "rev"

// acquireScript takes a fencing token: Redis's time in microseconds, or one more
// than the last token should the clock have gone back. A plain counter would
// begin again in a Redis that was wiped, and give two writers one token. Lua's
// numbers are exact up to 2^53, which is the year 2255.
//
// KEYS: meta.
var acquireScript = redis.NewScript(`
local now = redis.call('TIME')
local last = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
local token = string.format('%.0f', math.max(now[1] * 1000000 + now[2], last + 1))
redis.call('HSET', KEYS[1], 'fence', token)
return token
`)

// fenceCheck is common to the scripts that write. A copy that was wiped has no
// fence; the first writer to come puts its own there, and a newer one replaces it.
const fenceCheck = `
local meta, blocks = KEYS[1], KEYS[2]
local token = tonumber(ARGV[1])
if tonumber(redis.call('HGET', meta, 'fence') or '0') > token then return 'fenced' end

-- each calls f with pieces of ARGV[first..first+n-1] that Lua's stack can take.
local function each(first, n, f)
  local last = first + n - 1
  for i = first, last, 1000 do f(unpack(ARGV, i, math.min(i + 999, last))) end
end
`

// changeScript applies a delta.
//
// KEYS: meta, blocks. ARGV: token, expected revision, new revision, 1 to clear
// first, lengths of the three lists that follow: meta fields and values, hashes
// to delete, hashes and records to set. The lists of pairs have even lengths, as
// have the pieces they are cut into.
var changeScript = redis.NewScript(fenceCheck + `
local rev = redis.call('HGET', meta, 'rev') or ''
if rev == ARGV[3] then return 'repeated' end
if rev ~= ARGV[2] then return 'mismatch' end

local nmeta, ndel, nset = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local first = 8
if ARGV[4] == '1' then redis.call('UNLINK', blocks) end
each(first + nmeta, ndel, function(...) redis.call('HDEL', blocks, ...) end)
each(first + nmeta + ndel, nset, function(...) redis.call('HSET', blocks, ...) end)
each(first, nmeta, function(...) redis.call('HSET', meta, ...) end)
redis.call('HSET', meta, 'fence', ARGV[1], 'rev', ARGV[3])
return 'written'
`)

// replaceScript puts a staged set in the place of the present one. Where staging
// does not hold what was put there (it expired, or Redis lost it), nothing is
// changed.
//
// KEYS: meta, blocks, staging. ARGV: token, new revision, number of records
// staged, length of the list of meta fields and values that follows.
var replaceScript = redis.NewScript(fenceCheck + `
local staged, count = KEYS[3], tonumber(ARGV[3])
if redis.call('HLEN', staged) ~= count then
  redis.call('UNLINK', staged)
  return 'mismatch'
end
redis.call('UNLINK', blocks)
if count > 0 then
  redis.call('RENAME', staged, blocks)
  redis.call('PERSIST', blocks)
end
each(5, tonumber(ARGV[4]), function(...) redis.call('HSET', meta, ...) end)
redis.call('HSET', meta, 'fence', ARGV[1], 'rev', ARGV[2])
return 'written'
`)
