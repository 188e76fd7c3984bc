/* Many short payloads, copied into one buffer. */
#include "dataplane/mem/pieces.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "dataplane/mem/region.h"
#include "tests/unit/exact.h"

#define NR      400u
#define LEN     (NR * RV_GRANULE)
#define ROOM    (NR * 1088u)
#define SLOT(i) ((i) * (uint64_t)RV_GRANULE)

static struct rv_arena arena[3]; /* a session's, the daemon's own, a region */
static struct rv_region region;
static uint8_t buf[ROOM], want[ROOM];

static uint8_t byte_of(unsigned a, uint64_t at)
{
	return (uint8_t)(a * 80 + at / RV_GRANULE + at % 251);
}

static int setup(void **state)
{
	static const enum rv_arena_kind kind[] = {RV_ARENA_SESSION, RV_ARENA_STAGING,
						  RV_ARENA_REGION};

	(void)state;
	for (unsigned a = 0; a < 3; a++) {
		arena[a] = (struct rv_arena){.cls = {.kind = kind[a]}};
		assert_int_equal(rv_pages_create(&arena[a].pages, LEN, true, RV_HUGEPAGES_NO), 0);
		for (uint64_t i = 0; i < LEN; i++)
			((uint8_t *)arena[a].pages.base)[i] = byte_of(a, i);
	}
	region = (struct rv_region){.fd = arena[2].pages.memfd, .arena = &arena[2]};
	arena[2].region = &region;
	memset(buf, 0x5a, sizeof(buf));
	return 0;
}

static int finish(void **state)
{
	(void)state;
	for (unsigned a = 0; a < 3; a++)
		rv_pages_destroy(&arena[a].pages);
	return 0;
}

/* What each of @nr is, one behind the other at multiples of 64. @return how much of `buf` is theirs */
static size_t lay_out(struct rv_piece *p, struct rv_block *b, unsigned nr,
		      unsigned (*which)(unsigned), uint64_t (*len)(unsigned))
{
	size_t at = 0;

	memset(want, 0, sizeof(want));
	for (unsigned i = 0; i < nr; i++) {
		at = rv_align_up(at, 64);
		b[i] = (struct rv_block){.arena = &arena[which(i)], .off = SLOT(i), .len = len(i)};
		p[i] = (struct rv_piece){len(i) ? &b[i] : NULL, buf + at, len(i), 77};
		for (uint64_t k = 0; k < len(i); k++)
			want[at + k] = byte_of(which(i), SLOT(i) + k);
		at += len(i);
	}
	return at;
}

static unsigned sessions(unsigned i)
{
	(void)i;
	return 0;
}

static unsigned by_turns(unsigned i)
{
	return i % 7 == 3 ? 2 : i % 2;
}

static unsigned regions(unsigned i)
{
	(void)i;
	return 2;
}

static uint64_t a_kib(unsigned i)
{
	(void)i;
	return 1024;
}

static uint64_t any(unsigned i)
{
	return i % 5 == 1 ? 0 : 1 + i * 37 % 1000;
}

static void each_piece_is_in_its_place_with_zeros_between(void **state)
{
	static unsigned (*const which[])(unsigned) = {sessions, by_turns, regions};
	static uint64_t (*const len[])(unsigned) = {a_kib, any};
	static struct rv_piece p[NR];
	static struct rv_block b[NR];

	(void)state;
	for (unsigned w = 0; w < RV_ARRAY_NR(which); w++) {
		for (unsigned l = 0; l < RV_ARRAY_NR(len); l++) {
			for (unsigned nr = 0; nr <= NR; nr = nr < 4 ? nr + 1 : nr * 2) {
				size_t end = lay_out(p, b, nr, which[w], len[l]);

				memset(buf, 0, end);
				memset(buf + end, 0x5a, sizeof(buf) - end);
				rv_pieces_read(p, nr);
				for (unsigned i = 0; i < nr; i++)
					assert_int_equal(p[i].rc, 0);
				assert_memory_equal(buf, want, end);
				for (size_t i = end; i < sizeof(buf); i++)
					assert_int_equal(buf[i], 0x5a);
			}
		}
	}
	/* A region that was let go is no longer looked at. */
	lay_out(p, b, 8, by_turns, a_kib);
	rv_copy_latch(&region.gate);
	rv_pieces_read(p, 8);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(p[i].rc, by_turns(i) == 2 ? -ESHUTDOWN : 0);
}

/* Between two of them was what another answer left: it does not stay, where they are copied at once. */
static void what_lies_between_them_is_zeroed(void **state)
{
	struct rv_piece p[20];
	struct rv_block b[20];
	size_t end = lay_out(p, b, 20, sessions, any);

	(void)state;
	rv_pieces_read(p, 20);
	assert_memory_equal(buf, want, end);
}

static unsigned fifth_and_last(unsigned i)
{
	return i == 4 || i == 9;
}

/* Pages that are not there cost one piece, and no signal. */
static void what_cannot_be_read_is_an_error_of_its_piece(void **state)
{
	struct rv_pages *gone = &arena[1].pages;
	int fd = gone->memfd;
	struct rv_piece p[10];
	struct rv_block b[10];
	size_t end = lay_out(p, b, 10, fifth_and_last, a_kib);

	(void)state;
	arena[1].cls.kind = RV_ARENA_SESSION;
	/* The mapping is torn: the file has it. */
	assert_int_equal(mprotect(gone->base, LEN, PROT_NONE), 0);
	rv_pieces_read(p, 10);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(p[i].rc, 0);
	assert_memory_equal(buf, want, end);
	memset(buf, 0, end);
	gone->memfd = -1;
	rv_pieces_read(p, 10);
	gone->memfd = fd;
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(p[i].rc, fifth_and_last(i) ? -EIO : 0);
		if (!p[i].rc)
			assert_memory_equal(p[i].dst, want + i * 1024, 1024);
	}
}

#define PIECES(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PIECES(each_piece_is_in_its_place_with_zeros_between),
		PIECES(what_lies_between_them_is_zeroed),
		PIECES(what_cannot_be_read_is_an_error_of_its_piece),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
