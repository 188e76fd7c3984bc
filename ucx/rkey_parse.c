#include "ucx/rkey_parse.h"

#include "dataplane/base/bytes.h"

#define MEM_TYPE_HOST 0u
#define MEM_TYPE_NR   10u
#define MARK_NONE     0xffu /* sys_dev: unknown; distances: the end */

/* The key of each memory domain in the map; the order does not matter for the framing. */
static void skip_domain_keys(struct rv_cursor *c, uint64_t md_map)
{
	for (; md_map && !c->bad; md_map &= md_map - 1)
		rv_take_bytes(c, rv_take_u8(c));
}

static enum rv_rkey_verdict walk_distances(struct rv_cursor *c)
{
	while (rv_take_u8(c) != MARK_NONE) {
		rv_take_bytes(c, 2);
		if (c->bad)
			return RV_RKEY_NO_END;
	}
	return RV_RKEY_OK;
}

enum rv_rkey_verdict rv_rkey_parse(const uint8_t *key, size_t len, bool host_only)
{
	struct rv_cursor c = rv_cursor(key, len);
	uint64_t md_map = rv_take_le64(&c);
	uint8_t mem_type = rv_take_u8(&c);
	uint8_t sys_dev;

	if (len > RV_RKEY_MAX)
		return RV_RKEY_TOO_LONG;
	if (c.bad)
		return RV_RKEY_TRUNCATED;
	if (mem_type >= MEM_TYPE_NR || (host_only && mem_type != MEM_TYPE_HOST))
		return RV_RKEY_MEM_TYPE;
	if (md_map == 0)
		return RV_RKEY_OK;

	skip_domain_keys(&c, md_map);
	sys_dev = rv_take_u8(&c);
	if (c.bad)
		return RV_RKEY_TRUNCATED;
	if (sys_dev == MARK_NONE)
		return RV_RKEY_OK;
	return walk_distances(&c);
}

const char *rv_rkey_verdict_name(enum rv_rkey_verdict v)
{
	static const char *const names[RV_RKEY_VERDICT_NR] = {
		[RV_RKEY_OK] = "ok",
		[RV_RKEY_TRUNCATED] = "truncated",
		[RV_RKEY_TOO_LONG] = "too_long",
		[RV_RKEY_MEM_TYPE] = "mem_type",
		[RV_RKEY_NO_END] = "no_end",
	};

	return (unsigned)v < RV_RKEY_VERDICT_NR ? names[v] : "unknown";
}
