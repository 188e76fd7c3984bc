#include "dataplane/engine/proof.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define T0 RV_SEC(1000)

static void a_lease_is_proven_until_its_timeout_after_the_acquire_was_sent(void **state)
{
	struct rv_proof p;

	(void)state;
	rv_proof_start(&p, T0, RV_MS(400));
	assert_true(rv_proof_holds(&p, T0));
	assert_true(rv_proof_holds(&p, T0 + RV_MS(400)));
	assert_false(rv_proof_holds(&p, T0 + RV_MS(400) + 1));
}

static void a_lease_without_deadline_is_always_proven(void **state)
{
	struct rv_proof p;

	(void)state;
	rv_proof_start(&p, T0, RV_NEVER);
	assert_true(rv_proof_holds(&p, UINT64_MAX));
}

/* A renewal sent and acked at these milliseconds; until when the lease is then proven. */
static const struct {
	unsigned sent, acked, until;
} renewals[] = {
	{200, 250, 600}, {200, 400, 600}, /* the very last moment */
	{200, 401, 400},                  /* too late: it may have been dead when it was renewed */
	{399, 400, 799}, {400, 400, 800}, {500, 510, 400}, /* sent and acked after the end */
	{0, 100, 400},
};

static void only_an_ack_before_the_old_proof_ran_out_extends_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(renewals); i++) {
		struct rv_proof p;

		rv_proof_start(&p, T0, RV_MS(400));
		rv_proof_renewed(&p, T0 + RV_MS(renewals[i].sent), T0 + RV_MS(renewals[i].acked));
		assert_true(rv_proof_holds(&p, T0 + RV_MS(renewals[i].until)));
		assert_false(rv_proof_holds(&p, T0 + RV_MS(renewals[i].until) + 1));
	}
}

static void acks_out_of_order_never_shorten_it(void **state)
{
	struct rv_proof p;

	(void)state;
	rv_proof_start(&p, T0, RV_MS(400));
	rv_proof_renewed(&p, T0 + RV_MS(300), T0 + RV_MS(310));
	rv_proof_renewed(&p, T0 + RV_MS(200), T0 + RV_MS(320));
	assert_true(rv_proof_holds(&p, T0 + RV_MS(700)));
}

static void a_chain_of_renewals_holds_and_breaks_for_good(void **state)
{
	struct rv_proof p;

	(void)state;
	rv_proof_start(&p, T0, RV_MS(400));
	for (uint64_t t = 200; t <= 10000; t += 200)
		rv_proof_renewed(&p, T0 + RV_MS(t), T0 + RV_MS(t + 50));
	assert_true(rv_proof_holds(&p, T0 + RV_MS(10400)));
	rv_proof_renewed(&p, T0 + RV_MS(10401), T0 + RV_MS(10401));
	rv_proof_renewed(&p, T0 + RV_MS(10500), T0 + RV_MS(10501));
	assert_false(rv_proof_holds(&p, T0 + RV_MS(10501)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lease_is_proven_until_its_timeout_after_the_acquire_was_sent),
		cmocka_unit_test(a_lease_without_deadline_is_always_proven),
		cmocka_unit_test(only_an_ack_before_the_old_proof_ran_out_extends_it),
		cmocka_unit_test(acks_out_of_order_never_shorten_it),
		cmocka_unit_test(a_chain_of_renewals_holds_and_breaks_for_good),
	};

	return cmocka_run_group_tests_name("proof", tests, NULL, NULL);
}
