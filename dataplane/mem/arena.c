#include "dataplane/mem/arena.h"

const char *rv_arena_kind_name(enum rv_arena_kind k)
{
	static const char *const names[RV_ARENA_KINDS] = {"landing", "staging", "session", "plain",
							  "region"};

	return names[k];
}

uint64_t rv_arena_class_owner(const struct rv_arena_class *c)
{
	if (c->kind == RV_ARENA_SESSION)
		return 1ULL << 63 | (uint64_t)c->plain << 62 | c->session;
	return (uint64_t)c->kind << 40 | c->uid;
}
