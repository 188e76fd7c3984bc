#include "dataplane/mem/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

/* Is @p readable, without dying of it? */
static bool readable(const void *p)
{
	char byte;
	struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)p, 1};

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static void pages_are_whole_zeroed_and_sealed(void **state)
{
	struct rv_pages p;
	int seals;

	(void)state;
	assert_int_equal(rv_pages_create(&p, 10000, false, RV_HUGEPAGES_NO), 0);
	assert_int_equal(p.len, 12288);
	for (uint64_t i = 0; i < p.len; i++)
		assert_int_equal(((uint8_t *)p.base)[i], 0);
	seals = fcntl(p.memfd, F_GET_SEALS);
	assert_true(seals & F_SEAL_SHRINK && seals & F_SEAL_GROW && seals & F_SEAL_SEAL);
	assert_int_equal(ftruncate(p.memfd, 4096), -1);
	assert_int_equal(ftruncate(p.memfd, 1 << 20), -1);
	rv_pages_destroy(&p);
	assert_int_equal(p.memfd, -1);
	assert_null(p.base);
}

static void only_session_pages_can_be_mapped_writable_by_others(void **state)
{
	for (int writable = 0; writable < 2; writable++) {
		struct rv_pages p;
		void *m;

		(void)state;
		assert_int_equal(rv_pages_create(&p, 4096, writable, RV_HUGEPAGES_NO), 0);
		m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.memfd, 0);
		assert_int_equal(m != MAP_FAILED, writable);
		if (m != MAP_FAILED)
			munmap(m, 4096);
		m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.memfd, 0);
		assert_true(m != MAP_FAILED);
		munmap(m, 4096);
		((uint8_t *)p.base)[0] = 1; /* our own mapping can */
		rv_pages_destroy(&p);
	}
}

/* What a program maps of its own arena costs no memory once the arena is gone; what it only reads cannot be taken so. */
static void a_mapping_that_is_kept_keeps_no_memory_of_session_pages(void **state)
{
	(void)state;
	for (unsigned way = 0; way < 3; way++) {
		bool writable = way > 0;
		unsigned char in_core[16] = {0};
		struct rv_pages p;
		uint8_t *m;
		int fd;

		assert_int_equal(rv_pages_create(&p, 16 * 4096, writable, RV_HUGEPAGES_NO), 0);
		fd = dup(p.memfd);
		m = mmap(NULL, p.len, PROT_READ, MAP_SHARED, fd, 0);
		assert_true(m != MAP_FAILED);
		((uint8_t *)p.base)[5000] = 7;
		if (way == 2) {
			rv_pages_hollow(&p);
			munmap(p.base, p.len);
		} else {
			rv_pages_destroy(&p);
		}
		assert_int_equal(mincore(m, 16 * 4096, in_core), 0);
		for (unsigned i = 0; i < 16; i++)
			assert_int_equal(in_core[i] & 1, !writable);
		assert_int_equal(m[5000], writable ? 0 : 7);
		munmap(m, 16 * 4096);
		close(fd);
	}
}

static void a_length_no_machine_has_is_out_of_memory(void **state)
{
	struct rv_pages p;

	(void)state;
	assert_int_equal(rv_pages_create(&p, UINT64_MAX, false, RV_HUGEPAGES_NO), -ENOMEM);
	assert_true(rv_pages_create(&p, 1ULL << 50, false, RV_HUGEPAGES_NO) < 0);
}

static void hollow_pages_read_as_zeros_and_hold_no_memory(void **state)
{
	struct rv_pages p;

	(void)state;
	assert_int_equal(rv_pages_create(&p, RV_MIB(1), false, RV_HUGEPAGES_NO), 0);
	memset(p.base, 0xff, RV_MIB(1));
	rv_pages_hollow(&p);
	assert_int_equal(p.memfd, -1);
	for (uint64_t i = 0; i < RV_MIB(1); i += 4096)
		assert_int_equal(((const uint8_t *)p.base)[i], 0);
	rv_pages_destroy(&p);
}

#define OWNER 7u

static void make(struct rv_pages *p, uint64_t len)
{
	assert_int_equal(rv_pages_create(p, len, false, RV_HUGEPAGES_NO), 0);
	memset(p->base, 0xee, len);
}

static void parked_pages_come_back_to_their_owner_only(void **state)
{
	struct rv_parking pk;
	struct rv_pages p, q;
	void *base;

	(void)state;
	rv_parking_init(&pk, RV_MIB(8));
	make(&p, RV_MIB(1));
	base = p.base;
	assert_true(rv_parking_put(&pk, &p, OWNER, true));
	assert_null(p.base);
	assert_int_equal(pk.parked_bytes, RV_MIB(1));
	assert_int_equal(rv_parking_take(&pk, RV_MIB(1), OWNER + 1, &q), -ENOENT);
	assert_int_equal(rv_parking_take(&pk, RV_MIB(1), OWNER, &q), 0);
	assert_ptr_equal(q.base, base);
	assert_int_equal(pk.parked_bytes, 0);
	assert_int_equal(rv_parking_take(&pk, RV_MIB(1), OWNER, &q), -ENOENT);
	rv_pages_destroy(&q);
	rv_parking_fini(&pk);
}

static const struct {
	uint64_t asked;
	int rc;
} fits[] = {
	{RV_MIB(1), 0},           {RV_MIB(1) - 4096, 0}, {RV_MIB(1) / 2 + 4096, 0},
	{RV_MIB(1) / 2, -ENOENT}, /* less than twice as much as was asked for */
	{RV_MIB(1) + 1, -ENOENT},
};

static void parked_pages_are_reused_for_what_nearly_fills_them(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(fits); i++) {
		struct rv_parking pk;
		struct rv_pages p, q;

		rv_parking_init(&pk, RV_MIB(8));
		make(&p, RV_MIB(1));
		rv_parking_put(&pk, &p, OWNER, true);
		assert_int_equal(rv_parking_take(&pk, fits[i].asked, OWNER, &q), fits[i].rc);
		if (!fits[i].rc)
			rv_pages_destroy(&q);
		rv_parking_fini(&pk);
	}
}

static void what_is_too_much_to_keep_is_hollow_and_still_readable(void **state)
{
	struct rv_parking pk;
	struct rv_pages p;
	void *base;

	(void)state;
	rv_parking_init(&pk, RV_MIB(3));
	for (unsigned i = 0; i < 3; i++) {
		make(&p, RV_MIB(1));
		assert_true(rv_parking_put(&pk, &p, OWNER, true));
	}
	make(&p, 4096);
	base = p.base;
	assert_false(rv_parking_put(&pk, &p, OWNER, true));
	assert_true(readable(base));
	assert_int_equal(*(const uint8_t *)base, 0);
	assert_int_equal(pk.parked_bytes, RV_MIB(3));
	rv_parking_fini(&pk);
	assert_false(readable(base));
}

static unsigned mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned n = 0;
	int c;

	assert_non_null(f);
	while ((c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

/* Ranges of all sizes that go hollow, with others between them that are given back. */
static void hollow_ranges_become_one_across_the_holes_between_them(void **state)
{
	enum { NR = 120 };
	struct rv_parking pk;
	struct rv_pages p[NR], live;
	void *base[NR];
	unsigned before;
	struct rv_list *it;
	size_t ranges = 0;

	(void)state;
	rv_parking_init(&pk, 0);
	make(&live, RV_MIB(1));
	before = mappings();
	for (unsigned i = 0; i < NR; i++) {
		make(&p[i], 4096u * (1 + i * 7 % 13));
		base[i] = p[i].base;
	}
	for (unsigned i = 1; i < NR; i += 3)
		rv_pages_destroy(&p[i]);
	for (unsigned k = 0; k < NR; k++) {
		unsigned i = k * 77 % NR; /* in no order */

		if (i % 3 != 1)
			assert_false(rv_parking_put(&pk, &p[i], OWNER, false));
	}
	RV_LIST_EACH(it, &pk.hollow)
	ranges++;
	assert_in_range(ranges, 1, 8);
	assert_in_range(mappings(), 1, before + 16);
	for (unsigned i = 0; i < NR; i++)
		if (i % 3 != 1)
			assert_int_equal(*(const uint8_t *)base[i], 0);
	assert_int_equal(*(const uint8_t *)live.base, 0xee); /* what is in use is left alone */
	rv_parking_fini(&pk);
	assert_in_range(mappings(), 1, before + 2);
	rv_pages_destroy(&live);
}

static void what_must_not_be_kept_is_hollow_at_once(void **state)
{
	struct rv_parking pk;
	struct rv_pages p;
	void *base;

	(void)state;
	rv_parking_init(&pk, RV_MIB(8));
	make(&p, RV_MIB(1));
	base = p.base;
	assert_false(rv_parking_put(&pk, &p, OWNER, false));
	assert_int_equal(*(const uint8_t *)base, 0);
	assert_int_equal(rv_parking_take(&pk, RV_MIB(1), OWNER, &p), -ENOENT);
	rv_parking_fini(&pk);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_are_whole_zeroed_and_sealed),
		cmocka_unit_test(only_session_pages_can_be_mapped_writable_by_others),
		cmocka_unit_test(a_mapping_that_is_kept_keeps_no_memory_of_session_pages),
		cmocka_unit_test(a_length_no_machine_has_is_out_of_memory),
		cmocka_unit_test(hollow_pages_read_as_zeros_and_hold_no_memory),
		cmocka_unit_test(parked_pages_come_back_to_their_owner_only),
		cmocka_unit_test(parked_pages_are_reused_for_what_nearly_fills_them),
		cmocka_unit_test(what_is_too_much_to_keep_is_hollow_and_still_readable),
		cmocka_unit_test(what_must_not_be_kept_is_hollow_at_once),
		cmocka_unit_test(hollow_ranges_become_one_across_the_holes_between_them),
	};

	return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
