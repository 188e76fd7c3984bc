/* The table of calls that wait for an answer. */
#include "tests/unit/messenger_fixture.h"

static struct ended {
	unsigned nr;
	int rc;
	struct rv_call call; /* as it was */
} ended;

static void done(struct rv_call *c, const struct rv_call_answer *a)
{
	ended.nr++;
	ended.rc = a->rc;
	ended.call = *c;
}

static struct rv_call *begin(uint64_t in_ns)
{
	return rv_call_begin(&mess->calls, fake_now_ns + in_ns, done, NULL);
}

/* As transmitting leaves it. */
static struct rv_call *sent(uint64_t in_ns)
{
	struct rv_call *c = begin(in_ns);

	c->state = RV_CALL_SENT;
	return c;
}

static void end(struct rv_call *c, int rc)
{
	struct rv_call_answer a = {.rc = rc};

	rv_call_finish(&mess->calls, c, &a);
}

static int start(void **state)
{
	memset(&ended, 0, sizeof(ended));
	return setup(state);
}

static void only_a_call_that_was_sent_is_found(void **state)
{
	struct rv_call *c = begin(RV_SEC(1));
	struct rv_msg_id id = rv_call_id(&mess->calls, c);

	(void)state;
	assert_int_equal(rv_msg_id_worker(&id), FAKE_WORKER);
	assert_null(rv_call_find(&mess->calls, &id));
	c->state = RV_CALL_SENT;
	assert_ptr_equal(rv_call_find(&mess->calls, &id), c);
	end(c, 0);
	assert_null(rv_call_find(&mess->calls, &id));
	assert_int_equal(ended.nr, 1);
}

static void an_id_that_differs_in_any_bit_finds_nothing(void **state)
{
	struct rv_call *c = sent(RV_SEC(1));
	struct rv_msg_id id = rv_call_id(&mess->calls, c);

	(void)state;
	for (unsigned bit = 0; bit < 128; bit++) {
		struct rv_msg_id other = id;

		other.b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_null(rv_call_find(&mess->calls, &other));
	}
	end(c, 0);
}

static void a_record_used_again_has_another_generation(void **state)
{
	static struct rv_msg_id old[3000];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(old); i++) {
		struct rv_call *c = sent(RV_SEC(1));

		old[i] = rv_call_id(&mess->calls, c);
		end(c, 0);
		for (size_t k = i > 2000 ? i - 2000 : 0; k <= i; k += 100)
			assert_null(rv_call_find(&mess->calls, &old[k]));
	}
	assert_true(mess->calls.fresh < RV_ARRAY_NR(old)); /* they were used again */
	for (size_t i = 1; i < RV_ARRAY_NR(old); i++)
		assert_false(rv_msg_id_equal(&old[i], &old[i - 1]));
}

static void there_are_65535_records_and_then_none(void **state)
{
	static struct rv_call *c[RV_CALLS_MAX];

	(void)state;
	for (size_t i = 0; i < RV_CALLS_MAX; i++)
		assert_non_null(c[i] = begin(RV_SEC(1)));
	assert_null(begin(RV_SEC(1)));
	assert_int_equal(mess->calls.live, RV_CALLS_MAX);
	rv_call_forget(&mess->calls, c[7]);
	assert_int_equal(ended.nr, 0);
	assert_ptr_equal(begin(RV_SEC(1)), c[7]);
	for (size_t i = 0; i < RV_CALLS_MAX; i++)
		rv_call_forget(&mess->calls, c[i]);
}

static void a_call_ends_at_its_deadline(void **state)
{
	struct rv_call *c = sent(RV_MS(100));
	struct rv_msg_id id = rv_call_id(&mess->calls, c);

	(void)state;
	fake_engine_advance(&w, RV_MS(99));
	assert_int_equal(ended.nr, 0);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(ended.nr, 1);
	assert_int_equal(ended.rc, -ETIMEDOUT);
	assert_null(rv_call_find(&mess->calls, &id));
	fake_engine_advance(&w, RV_SEC(5));
	assert_int_equal(ended.nr, 1);
}

static void an_answered_call_has_no_deadline_left(void **state)
{
	(void)state;
	end(sent(RV_MS(100)), 0);
	fake_engine_advance(&w, RV_SEC(1));
	assert_int_equal(ended.nr, 1);
	assert_int_equal(ended.rc, 0);
}

static unsigned late_nr;

static void late(struct rv_call *c, const struct rv_call_answer *a)
{
	(void)c;
	(void)a;
	late_nr++;
}

static void a_call_with_a_late_ear_waits_on_for_an_answer(void **state)
{
	struct rv_call *c = sent(RV_MS(100));
	struct rv_msg_id id = rv_call_id(&mess->calls, c);

	(void)state;
	late_nr = 0;
	c->late = late;
	fake_engine_advance(&w, RV_MS(100));
	assert_int_equal(ended.rc, -ETIMEDOUT);
	assert_int_equal(ended.nr, 1);
	assert_ptr_equal(rv_call_find(&mess->calls, &id), c);
	end(c, 0);
	assert_int_equal(late_nr, 1);
	assert_int_equal(ended.nr, 1); /* its caller is told once */

	c = sent(RV_MS(100));
	c->late = late;
	fake_engine_advance(&w, RV_MS(100));
	fake_engine_advance(&w, RV_SEC(61)); /* not for ever */
	assert_int_equal(late_nr, 2);
	assert_int_equal(ended.nr, 2);
	assert_int_equal(mess->calls.live, 0);
}

static void done_may_begin_another_call(struct rv_call *c, const struct rv_call_answer *a)
{
	done(c, a);
	if (ended.nr < 5)
		rv_call_begin(&mess->calls, fake_now_ns, done_may_begin_another_call, NULL);
}

static void a_call_may_begin_the_next_from_its_end(void **state)
{
	(void)state;
	rv_call_begin(&mess->calls, fake_now_ns, done_may_begin_another_call, NULL);
	fake_engine_advance(&w, RV_MS(2));
	assert_int_equal(ended.nr, 5);
}

#define CALLS(t) cmocka_unit_test_setup_teardown(t, start, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CALLS(only_a_call_that_was_sent_is_found),
		CALLS(an_id_that_differs_in_any_bit_finds_nothing),
		CALLS(a_record_used_again_has_another_generation),
		CALLS(there_are_65535_records_and_then_none),
		CALLS(a_call_ends_at_its_deadline),
		CALLS(an_answered_call_has_no_deadline_left),
		CALLS(a_call_with_a_late_ear_waits_on_for_an_answer),
		CALLS(a_call_may_begin_the_next_from_its_end),
	};

	return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
