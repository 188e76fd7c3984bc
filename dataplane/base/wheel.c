#include "dataplane/base/wheel.h"

#include "dataplane/base/units.h"

void rv_wheel_init(struct rv_wheel *w, uint64_t now_ns)
{
	*w = (struct rv_wheel){.tick = now_ns / RV_WHEEL_TICK_NS};
	for (size_t i = 0; i < RV_WHEEL_BUCKETS; i++)
		rv_list_init(&w->bucket[i]);
	rv_list_init(&w->due);
}

void rv_wheel_del(struct rv_wheel *w, struct rv_timer *t)
{
	if (!t->armed)
		return;
	rv_list_del(&t->link);
	if (t->bucket < RV_WHEEL_BUCKETS && rv_list_empty(&w->bucket[t->bucket]))
		w->occupied[t->bucket / 64] &= ~(1ULL << t->bucket % 64);
	t->armed = false;
	w->armed_nr--;
}

void rv_wheel_add(struct rv_wheel *w, struct rv_timer *t, uint64_t deadline_ns)
{
	uint64_t tick;

	rv_wheel_del(w, t);
	t->deadline_ns = deadline_ns;
	if (deadline_ns == RV_NEVER)
		return;
	t->armed = true;
	w->armed_nr++;
	tick = deadline_ns / RV_WHEEL_TICK_NS + (deadline_ns % RV_WHEEL_TICK_NS != 0);
	if (tick <= w->tick) {
		t->bucket = RV_WHEEL_BUCKETS;
		rv_list_push(&w->due, &t->link);
		return;
	}
	t->bucket = (uint32_t)(tick % RV_WHEEL_BUCKETS);
	rv_list_push(&w->bucket[t->bucket], &t->link);
	w->occupied[t->bucket / 64] |= 1ULL << t->bucket % 64;
}

static void collect(struct rv_wheel *w, uint32_t b, uint64_t now_ns)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &w->bucket[b])
	{
		struct rv_timer *t = RV_LIST_ENTRY(it, struct rv_timer, link);

		if (t->deadline_ns > now_ns)
			continue;
		rv_list_del(&t->link);
		t->bucket = RV_WHEEL_BUCKETS;
		rv_list_push(&w->due, &t->link);
	}
	if (rv_list_empty(&w->bucket[b]))
		w->occupied[b / 64] &= ~(1ULL << b % 64);
}

static void advance(struct rv_wheel *w, uint64_t now_ns)
{
	uint64_t now_tick = now_ns / RV_WHEEL_TICK_NS;
	uint64_t steps;

	if (now_tick <= w->tick)
		return;
	steps = rv_min_u64(now_tick - w->tick, RV_WHEEL_BUCKETS);
	for (uint64_t i = 1; i <= steps; i++) {
		uint32_t b = (uint32_t)((w->tick + i) % RV_WHEEL_BUCKETS);

		if (w->occupied[b / 64] & 1ULL << b % 64)
			collect(w, b, now_ns);
	}
	w->tick = now_tick;
}

struct rv_timer *rv_wheel_pop(struct rv_wheel *w, uint64_t now_ns)
{
	struct rv_timer *t;

	if (rv_list_empty(&w->due)) {
		if (!w->armed_nr) {
			w->tick = rv_max_u64(w->tick, now_ns / RV_WHEEL_TICK_NS);
			return NULL;
		}
		advance(w, now_ns);
		if (rv_list_empty(&w->due))
			return NULL;
	}
	t = RV_LIST_ENTRY(w->due.next, struct rv_timer, link);
	if (t->deadline_ns > now_ns)
		return NULL; /* armed within the current tick: a moment still */
	rv_wheel_del(w, t);
	return t;
}

uint64_t rv_wheel_next_ns(const struct rv_wheel *w)
{
	if (!w->armed_nr)
		return RV_NEVER;
	if (!rv_list_empty(&w->due))
		return RV_LIST_ENTRY(w->due.next, struct rv_timer, link)->deadline_ns;
	for (uint64_t i = 1; i <= RV_WHEEL_BUCKETS;) {
		uint32_t b = (uint32_t)((w->tick + i) % RV_WHEEL_BUCKETS);
		uint64_t word = w->occupied[b / 64] >> b % 64;

		if (!word) {
			i += 64 - b % 64;
			continue;
		}
		i += (uint64_t)__builtin_ctzll(word);
		return (w->tick + i) * RV_WHEEL_TICK_NS;
	}
	return RV_NEVER;
}
