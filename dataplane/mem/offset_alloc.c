#include "dataplane/mem/offset_alloc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "dataplane/base/check.h"

#define NIL       UINT32_MAX
#define MANT_BITS 3
#define MANT_NR   (1u << MANT_BITS)
#define TOP_NR    32
#define BIN_NR    (TOP_NR * MANT_NR)
#define SCAN      32u /* ranges of a bin that are looked at */

struct node {
	uint32_t off, len;
	uint32_t bin_prev, bin_next; /* free nodes of one bin */
	uint32_t left, right;        /* neighbours in the arena */
	bool used;
};

struct rv_offset_alloc {
	uint32_t free_gr;
	uint32_t top_mask;
	uint8_t leaf_mask[TOP_NR];
	uint32_t bin[BIN_NR];
	struct node *node;
	uint32_t node_max;
	uint32_t node_fresh;
	uint32_t node_free; /* list through bin_next */
};

/* Exponent and mantissa of @v as a bin number; below MANT_NR they are exact. */
static uint32_t bin_floor(uint32_t v)
{
	uint32_t high, shift;

	if (v < MANT_NR)
		return v;
	high = 31u - (uint32_t)__builtin_clz(v);
	shift = high - MANT_BITS;
	return (shift + 1) << MANT_BITS | (v >> shift & (MANT_NR - 1));
}

static uint32_t bin_size(uint32_t bin)
{
	uint32_t exp = bin >> MANT_BITS, mant = bin & (MANT_NR - 1);

	return exp ? (mant | MANT_NR) << (exp - 1) : mant;
}

static uint32_t bin_ceil(uint32_t v)
{
	uint32_t b = bin_floor(v);

	return bin_size(b) < v ? b + 1 : b;
}

static uint32_t node_take(struct rv_offset_alloc *a)
{
	uint32_t n = a->node_free;

	if (n != NIL) {
		a->node_free = a->node[n].bin_next;
		return n;
	}
	RV_CHECK(a->node_fresh < a->node_max);
	return a->node_fresh++;
}

static void node_give(struct rv_offset_alloc *a, uint32_t n)
{
	a->node[n].used = false;
	a->node[n].bin_next = a->node_free;
	a->node_free = n;
}

static void bin_insert(struct rv_offset_alloc *a, uint32_t n)
{
	uint32_t b = bin_floor(a->node[n].len);

	a->node[n].used = false;
	a->node[n].bin_prev = NIL;
	a->node[n].bin_next = a->bin[b];
	if (a->bin[b] != NIL)
		a->node[a->bin[b]].bin_prev = n;
	a->bin[b] = n;
	a->leaf_mask[b >> MANT_BITS] |= (uint8_t)(1u << (b & (MANT_NR - 1)));
	a->top_mask |= 1u << (b >> MANT_BITS);
	a->free_gr += a->node[n].len;
}

static void bin_remove(struct rv_offset_alloc *a, uint32_t n)
{
	struct node *nd = &a->node[n];
	uint32_t b = bin_floor(nd->len);

	a->free_gr -= nd->len;
	if (nd->bin_next != NIL)
		a->node[nd->bin_next].bin_prev = nd->bin_prev;
	if (nd->bin_prev != NIL) {
		a->node[nd->bin_prev].bin_next = nd->bin_next;
		return;
	}
	a->bin[b] = nd->bin_next;
	if (a->bin[b] != NIL)
		return;
	a->leaf_mask[b >> MANT_BITS] &= (uint8_t) ~(1u << (b & (MANT_NR - 1)));
	if (!a->leaf_mask[b >> MANT_BITS])
		a->top_mask &= ~(1u << (b >> MANT_BITS));
}

/* The first non-empty bin at or above @b, or NIL. */
static uint32_t bin_search(const struct rv_offset_alloc *a, uint32_t b)
{
	uint32_t top = b >> MANT_BITS, leaf, tops;

	if (b >= BIN_NR)
		return NIL;
	leaf = a->leaf_mask[top] & (0xffu << (b & (MANT_NR - 1)));
	if (leaf)
		return top << MANT_BITS | (uint32_t)__builtin_ctz(leaf);
	tops = top + 1 < TOP_NR ? a->top_mask & (UINT32_MAX << (top + 1)) : 0;
	if (!tops)
		return NIL;
	top = (uint32_t)__builtin_ctz(tops);
	return top << MANT_BITS | (uint32_t)__builtin_ctz(a->leaf_mask[top]);
}

/* Of the first free ranges of bin @b the one that fits @len_gr most closely, or NIL. */
static uint32_t best_of_bin(const struct rv_offset_alloc *a, uint32_t b, uint32_t len_gr)
{
	uint32_t best = NIL, n = a->bin[b];

	for (unsigned i = 0; i < SCAN && n != NIL; i++, n = a->node[n].bin_next) {
		uint32_t len = a->node[n].len;

		if (len >= len_gr && (best == NIL || len < a->node[best].len))
			best = n;
		if (len == len_gr)
			break;
	}
	return best;
}

/* A free range that holds @len_gr, or NIL. A range of just that size hangs in a bin that promises less. */
static uint32_t find(const struct rv_offset_alloc *a, uint32_t len_gr)
{
	uint32_t floor = bin_floor(len_gr), n = best_of_bin(a, floor, len_gr), b;

	if (n != NIL)
		return n;
	b = bin_search(a, bin_ceil(len_gr));
	return b == NIL ? NIL : best_of_bin(a, b, len_gr);
}

struct rv_offset_alloc *rv_offset_alloc_create(uint32_t size_gr)
{
	struct rv_offset_alloc *a = calloc(1, sizeof(*a));
	void *mem;
	uint32_t n;

	RV_CHECK(size_gr > 0 && size_gr < NIL);
	if (!a)
		return NULL;
	a->node_max = size_gr + 1;
	mem = mmap(NULL, sizeof(struct node) * a->node_max, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED) {
		free(a);
		return NULL;
	}
	a->node = mem;
	a->node_free = NIL;
	for (uint32_t b = 0; b < BIN_NR; b++)
		a->bin[b] = NIL;
	n = node_take(a);
	a->node[n] = (struct node){.len = size_gr, .left = NIL, .right = NIL};
	bin_insert(a, n);
	return a;
}

void rv_offset_alloc_destroy(struct rv_offset_alloc *a)
{
	if (!a)
		return;
	munmap(a->node, sizeof(struct node) * a->node_max);
	free(a);
}

int rv_offset_alloc_get(struct rv_offset_alloc *a, uint32_t len_gr, struct rv_offset_slice *out)
{
	uint32_t n, rest;

	if (!len_gr)
		return -EINVAL;
	n = find(a, len_gr);
	if (n == NIL)
		return -ENOSPC;
	bin_remove(a, n);
	a->node[n].used = true;
	if (a->node[n].len > len_gr) {
		rest = node_take(a);
		a->node[rest] = (struct node){
			.off = a->node[n].off + len_gr,
			.len = a->node[n].len - len_gr,
			.left = n,
			.right = a->node[n].right,
		};
		if (a->node[n].right != NIL)
			a->node[a->node[n].right].left = rest;
		a->node[n].right = rest;
		a->node[n].len = len_gr;
		bin_insert(a, rest);
	}
	*out = (struct rv_offset_slice){a->node[n].off, n};
	return 0;
}

/* Let @n swallow its right neighbour @r, which is free. */
static void merge_right(struct rv_offset_alloc *a, uint32_t n, uint32_t r)
{
	bin_remove(a, r);
	a->node[n].len += a->node[r].len;
	a->node[n].right = a->node[r].right;
	if (a->node[n].right != NIL)
		a->node[a->node[n].right].left = n;
	node_give(a, r);
}

void rv_offset_alloc_put(struct rv_offset_alloc *a, struct rv_offset_slice s)
{
	uint32_t n = s.node, l, r;

	RV_CHECK(n < a->node_fresh && a->node[n].used && a->node[n].off == s.off_gr);
	r = a->node[n].right;
	if (r != NIL && !a->node[r].used)
		merge_right(a, n, r);
	l = a->node[n].left;
	if (l != NIL && !a->node[l].used) {
		bin_remove(a, l);
		a->node[l].len += a->node[n].len;
		a->node[l].right = a->node[n].right;
		if (a->node[l].right != NIL)
			a->node[a->node[l].right].left = l;
		node_give(a, n);
		n = l;
	}
	bin_insert(a, n);
}

uint32_t rv_offset_alloc_free_gr(const struct rv_offset_alloc *a)
{
	return a->free_gr;
}

uint32_t rv_offset_alloc_largest_gr(const struct rv_offset_alloc *a)
{
	uint32_t top;

	if (!a->top_mask)
		return 0;
	top = 31u - (uint32_t)__builtin_clz(a->top_mask);
	return bin_size(top << MANT_BITS | (31u - (uint32_t)__builtin_clz(a->leaf_mask[top])));
}
