/* Frames through shared memory: order, room, rest and wake, and what a writer that lies brings about. */
#include "control/local/shmq.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

static struct {
	_Alignas(4096) uint8_t mem[RV_SHMQ_LEN];
	struct rv_shmq_out out, back; /* the program's; the daemon's */
	struct rv_shmq_in in, replies;
	uint8_t frame[RV_SHMQ_FRAME];
} f;

/* The daemon looks; the program rests. */
static int begin(void **state)
{
	(void)state;
	memset(&f, 0, sizeof(f));
	rv_shmq_init(f.mem, true, 0, 0, &f.back, &f.in);
	rv_shmq_init(f.mem, false, 0, 0, &f.out, &f.replies);
	rv_shmq_look(&f.in);
	return 0;
}

static bool put(struct rv_shmq_out *q, const void *p, size_t len)
{
	const struct iovec part[2] = {{(void *)(uintptr_t)p, len / 3},
				      {(uint8_t *)(uintptr_t)p + len / 3, len - len / 3}};
	bool wake = false, ok = rv_shmq_put(q, part, 2, &wake);

	assert_false(wake);
	return ok;
}

static void frames_come_out_as_they_went_in(void **state)
{
	static uint8_t data[RV_SHMQ_FRAME];
	unsigned nr = 0;

	(void)state;
	assert_int_equal(rv_shmq_take(&f.in, f.frame), 0);
	for (size_t len = 1; len <= sizeof(data); len += 97, nr++) {
		memset(data, (int)len, len);
		data[len - 1] = 0xee;
		assert_false(rv_shmq_ready(&f.in));
		assert_true(put(&f.out, data, len));
		assert_true(rv_shmq_ready(&f.in));
		assert_int_equal(rv_shmq_take(&f.in, f.frame), len);
		assert_memory_equal(f.frame, data, len);
	}
	assert_true(nr > 80); /* it has gone round many times */
}

static void the_two_ways_do_not_meet(void **state)
{
	(void)state;
	rv_shmq_look(&f.replies);
	assert_true(put(&f.out, "ask", 3));
	assert_true(put(&f.back, "answer", 6));
	assert_int_equal(rv_shmq_take(&f.replies, f.frame), 6);
	assert_memory_equal(f.frame, "answer", 6);
	assert_int_equal(rv_shmq_take(&f.in, f.frame), 3);
	assert_memory_equal(f.frame, "ask", 3);
	assert_false(rv_shmq_ready(&f.in) || rv_shmq_ready(&f.replies));
}

static void a_full_one_takes_no_more_until_one_is_out(void **state)
{
	static const uint8_t data[1000];
	unsigned nr = 0;

	(void)state;
	while (put(&f.out, data, sizeof(data)))
		nr++;
	assert_int_equal(nr, RV_SHMQ_BYTES / (8 + sizeof(data)));
	assert_int_equal(rv_shmq_take(&f.in, f.frame), sizeof(data));
	assert_true(put(&f.out, data, sizeof(data)));
	assert_false(put(&f.out, data, sizeof(data)));
}

static void a_long_frame_goes_the_other_way(void **state)
{
	static const uint8_t data[RV_SHMQ_FRAME + 1];

	(void)state;
	assert_false(put(&f.out, data, sizeof(data)));
	assert_true(put(&f.out, data, RV_SHMQ_FRAME));
}

static void nothing_overtakes_the_socket(void **state)
{
	(void)state;
	assert_true(put(&f.out, "1", 1));
	rv_shmq_other(&f.out);
	assert_true(rv_shmq_others(&f.in));
	rv_shmq_other(&f.out);
	assert_true(put(&f.out, "4", 1));
	assert_int_equal(rv_shmq_take(&f.in, f.frame), 1);
	assert_int_equal(f.frame[0], '1');
	for (unsigned i = 0; i < 2; i++) {
		assert_false(rv_shmq_ready(&f.in));
		assert_int_equal(rv_shmq_take(&f.in, f.frame), 0);
		rv_shmq_other_taken(&f.in);
	}
	assert_false(rv_shmq_others(&f.in));
	assert_int_equal(rv_shmq_take(&f.in, f.frame), 1);
	assert_int_equal(f.frame[0], '4');
}

static void counts_may_begin_anywhere_and_wrap(void **state)
{
	(void)state;
	rv_shmq_init(f.mem, true, 0, UINT32_MAX - 1, &f.back, &f.in);
	rv_shmq_init(f.mem, false, UINT32_MAX - 1, 0, &f.out, &f.replies);
	rv_shmq_look(&f.in);
	for (unsigned i = 0; i < 4; i++) {
		rv_shmq_other(&f.out);
		assert_true(put(&f.out, "x", 1));
		assert_int_equal(rv_shmq_take(&f.in, f.frame), 0);
		rv_shmq_other_taken(&f.in);
		assert_int_equal(rv_shmq_take(&f.in, f.frame), 1);
	}
}

static void who_rests_is_woken_once(void **state)
{
	const struct iovec part = {"x", 1};
	bool wake;

	(void)state;
	assert_true(rv_shmq_rest(&f.in));
	assert_true(rv_shmq_rests(&f.in));
	assert_false(rv_shmq_put(&f.out, &part, 1, &wake)); /* the socket wakes it */
	rv_shmq_look(&f.in);
	assert_true(put(&f.out, "x", 1));
	assert_false(rv_shmq_rest(&f.in)); /* something has come meanwhile */
	assert_int_equal(rv_shmq_take(&f.in, f.frame), 1);
	assert_true(rv_shmq_rest(&f.in));
}

/* Words and entries that no honest writer leaves; the reader's head is at 0. */
static const struct {
	uint32_t tail, len, others;
	int rc;
} lies[] = {
	{0, 1, 0, 0},
	{16, 1, 0, 1},
	{16, 1, 1, 0},          /* its turn has not come */
	{16, 1, UINT32_MAX, 1}, /* long past */
	{16, 0, 0, -EPROTO},    /* an empty frame */
	{16, 9, 0, -EPROTO},    /* more than is there */
	{8, 1, 0, -EPROTO},
	{3, 1, 0, -EPROTO},
	{RV_SHMQ_BYTES + 8, 1, 0, -EPROTO},
	{UINT32_MAX, 1, 0, -EPROTO}, /* before the head */
	{RV_SHMQ_BYTES, RV_SHMQ_FRAME, 0, RV_SHMQ_FRAME},
	{RV_SHMQ_BYTES, RV_SHMQ_FRAME + 1, 0, -EPROTO},
	{RV_SHMQ_BYTES, UINT32_MAX, 0, -EPROTO},
	{RV_SHMQ_BYTES, UINT32_MAX - 7, 0, -EPROTO},
};

static void a_lying_writer_is_found_out(void **state)
{
	for (size_t i = 0; i < RV_ARRAY_NR(lies); i++) {
		begin(state);
		memcpy(f.mem + 4096, &lies[i].len, 4);
		memcpy(f.mem + 4100, &lies[i].others, 4);
		atomic_store(&f.in.w->tail, lies[i].tail);
		if (rv_shmq_take(&f.in, f.frame) != lies[i].rc)
			fail_msg("lie %zu", i);
		/* It keeps nobody awake unless there is something to deal with. */
		begin(state);
		memcpy(f.mem + 4096, &lies[i].len, 4);
		memcpy(f.mem + 4100, &lies[i].others, 4);
		atomic_store(&f.in.w->tail, lies[i].tail);
		assert_int_equal(rv_shmq_rest(&f.in), lies[i].rc == 0);
	}
}

static void a_lying_reader_is_given_nothing(void **state)
{
	static const uint32_t heads[] = {8, 1, UINT32_MAX - RV_SHMQ_BYTES, 0x80000000u};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(heads); i++) {
		begin(state);
		atomic_store(&f.out.w->head, heads[i]);
		assert_false(put(&f.out, "x", 1));
	}
}

/* Two threads, the queue and a descriptor in the socket's place; every frame arrives, in order. */
#define FRAMES 20000u

static int sock;

static void *write_all(void *arg)
{
	unsigned seed = *(unsigned *)arg;

	for (uint64_t i = 1; i <= FRAMES; i++) {
		uint8_t data[64] = {0};
		const struct iovec part = {data, 8 + seed % 50};
		const uint64_t frame = 1u << 16, bell = 1;
		bool wake = false;

		seed = seed * 1103515245u + 12345u;
		memcpy(data, &i, sizeof(i));
		if (rv_shmq_put(&f.out, &part, 1, &wake)) {
			if (wake && write(sock, &bell, sizeof(bell)) != sizeof(bell))
				abort();
			continue;
		}
		rv_shmq_other(&f.out);
		if (write(sock, &frame, sizeof(frame)) != sizeof(frame))
			abort();
	}
	return NULL;
}

/* What the queue has. */
static void take_all(uint64_t *last)
{
	uint64_t i;
	int n;

	while ((n = rv_shmq_take(&f.in, f.frame)) != 0) {
		assert_in_range(n, 8, 64);
		memcpy(&i, f.frame, sizeof(i));
		assert_int_equal(i, ++*last);
	}
}

static void take_others(uint64_t *last)
{
	uint64_t count;

	assert_int_equal(read(sock, &count, sizeof(count)), sizeof(count));
	for (count >>= 16; count; count--) {
		take_all(last); /* what came before it */
		++*last;
		rv_shmq_other_taken(&f.in);
	}
}

static void no_wake_up_is_lost(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 10; seed++) {
		unsigned s = seed;
		uint64_t last = 0;
		pthread_t t;

		begin(state);
		sock = eventfd(0, EFD_CLOEXEC);
		assert_int_equal(pthread_create(&t, NULL, write_all, &s), 0);
		while (last < FRAMES) {
			struct pollfd p = {.fd = sock, .events = POLLIN};

			rv_shmq_look(&f.in);
			for (unsigned i = 0; i < seed * seed && last < FRAMES; i++)
				take_all(&last);
			if (!rv_shmq_rest(&f.in) || last == FRAMES)
				continue;
			if (poll(&p, 1, 30000) != 1)
				fail_msg("seed %u: nobody woke the reader after %llu", seed,
					 (unsigned long long)last);
			take_others(&last);
		}
		pthread_join(t, NULL);
		close(sock);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(frames_come_out_as_they_went_in, begin),
		cmocka_unit_test_setup(the_two_ways_do_not_meet, begin),
		cmocka_unit_test_setup(a_full_one_takes_no_more_until_one_is_out, begin),
		cmocka_unit_test_setup(a_long_frame_goes_the_other_way, begin),
		cmocka_unit_test_setup(nothing_overtakes_the_socket, begin),
		cmocka_unit_test_setup(counts_may_begin_anywhere_and_wrap, begin),
		cmocka_unit_test_setup(who_rests_is_woken_once, begin),
		cmocka_unit_test_setup(a_lying_writer_is_found_out, begin),
		cmocka_unit_test_setup(a_lying_reader_is_given_nothing, begin),
		cmocka_unit_test_setup(no_wake_up_is_lost, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
