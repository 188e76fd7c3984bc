/*
 * alloc - the offset allocator: what an alloc and a free cost at each fill, and how full an arena gets.
 *
 *   alloc
 *
 * Workload: an arena of 1 GiB; sizes as payloads have them: a power of two from 4 KiB to 1 MiB, each as likely, times 1 to
 * 2, in granules of 4 KiB. At each fill random blocks are freed and others allocated to keep it; timed are batches in which
 * a random block is freed and one of its size allocated. Prints "fill SHARE pair_ns MEDIAN": one free and one alloc
 * together. Then, after 20,000 exchanges of random blocks at 0.9, filled until the first refusal: "utilisation SHARE",
 * the mean of 20 rounds.
 */
#include <stdint.h>
#include <stdio.h>

#include "dataplane/base/units.h"
#include "dataplane/mem/offset_alloc.h"
#include "tests/bench/measure.h"

#define ARENA_GR ((uint32_t)(RV_GIB(1) / RV_GRANULE))
#define BLOCKS   65536
#define BATCH    64
#define ROUNDS   2001

struct block {
	struct rv_offset_slice slice;
	uint32_t nr;
};

static struct rv_offset_alloc *arena;
static struct block block[BLOCKS];
static unsigned block_nr;
static uint64_t used_gr, seed = 88172645463325252ull;

static uint64_t random_u64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static uint32_t random_size_gr(void)
{
	uint32_t gr = 1u << random_u64() % 9;

	return gr + (uint32_t)(random_u64() % gr);
}

/* @return whether it could be had */
static int take(uint32_t nr)
{
	struct block *b = &block[block_nr];

	if (block_nr == BLOCKS || rv_offset_alloc_get(arena, nr, &b->slice))
		return 0;
	b->nr = nr;
	block_nr++;
	used_gr += nr;
	return 1;
}

static void give(unsigned i)
{
	rv_offset_alloc_put(arena, block[i].slice);
	used_gr -= block[i].nr;
	block[i] = block[--block_nr];
}

/* As full as that, again after each exchange. */
static void level(double share)
{
	while ((double)used_gr > share * ARENA_GR && block_nr)
		give((unsigned)(random_u64() % block_nr));
	while ((double)used_gr < share * ARENA_GR && take(random_size_gr()))
		;
}

/* Those freed last came back elsewhere, or not at all. */
static void put_back(const struct block *freed, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		used_gr -= block[--block_nr].nr;
	for (unsigned i = 0; i < nr; i++) {
		if (!freed[i].nr)
			continue;
		block[block_nr++] = freed[i];
		used_gr += freed[i].nr;
	}
}

/* The median over batches of one free and one alloc, without the choosing of which. */
static double pair_ns(double share)
{
	static double batch_ns[ROUNDS];

	for (unsigned round = 0; round < ROUNDS; round++) {
		struct block freed[BATCH];
		unsigned nr = 0;
		uint64_t began;

		level(share);
		for (; nr < BATCH && block_nr > nr; nr++) { /* the last ones are those that go */
			unsigned i = (unsigned)(random_u64() % (block_nr - nr));
			struct block last = block[block_nr - 1 - nr];

			block[block_nr - 1 - nr] = block[i];
			block[i] = last;
		}
		for (unsigned i = 0; i < nr; i++)
			freed[i].nr = block[block_nr - 1 - i].nr;
		began = now_ns();
		for (unsigned i = 0; i < nr; i++) {
			rv_offset_alloc_put(arena, block[block_nr - 1 - i].slice);
			if (rv_offset_alloc_get(arena, freed[i].nr, &freed[i].slice))
				freed[i].nr = 0; /* bins are coarse: what was freed need not fit */
		}
		batch_ns[round] = (double)(now_ns() - began) / nr;
		put_back(freed, nr);
	}
	sort_times(batch_ns, ROUNDS);
	return batch_ns[ROUNDS / 2];
}

static double utilisation(void)
{
	double sum = 0;

	for (unsigned round = 0; round < 20; round++) {
		level(0.9);
		for (unsigned i = 0; i < 20000; i++) {
			give((unsigned)(random_u64() % block_nr));
			take(random_size_gr());
		}
		while (take(random_size_gr()))
			;
		sum += (double)used_gr / ARENA_GR;
	}
	return sum / 20;
}

int main(void)
{
	static const double fills[] = {0.1, 0.5, 0.8, 0.9};

	arena = rv_offset_alloc_create(ARENA_GR);
	if (!arena)
		return 1;
	for (unsigned i = 0; i < RV_ARRAY_NR(fills); i++)
		printf("fill %.2f pair_ns %.1f\n", fills[i], pair_ns(fills[i]));
	printf("utilisation %.4f\n", utilisation());
	rv_offset_alloc_destroy(arena);
	return 0;
}
