#include "control/service/metrics.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/service/prompt.h"
#include "control/uring/tcp_carrier.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/engine.h"

#define FAMILIES_MAX 64
#define SERIES_MAX   256
#define NAME_MAX_    128
#define LABELS_MAX   256

/* A strict reader of the exposition format 0.0.4. */

struct family {
	char name[NAME_MAX_], type[16];
	bool has_help, has_type;
};

struct series {
	char name[NAME_MAX_], labels[LABELS_MAX];
	double value;
	struct family *family;
};

struct page {
	struct family family[FAMILIES_MAX];
	struct series series[SERIES_MAX];
	size_t family_nr, series_nr;
};

static size_t name_len(const char *p)
{
	size_t n = 0;

	while (isalpha((unsigned char)p[n]) || p[n] == '_' || p[n] == ':' ||
	       (n && isdigit((unsigned char)p[n])))
		n++;
	return n;
}

static struct family *family_of(struct page *pg, const char *name, size_t len)
{
	for (size_t i = 0; i < pg->family_nr; i++)
		if (strlen(pg->family[i].name) == len &&
		    strncmp(pg->family[i].name, name, len) == 0)
			return &pg->family[i];
	return NULL;
}

static struct family *family_add(struct page *pg, const char *name, size_t len)
{
	struct family *f = &pg->family[pg->family_nr++];

	assert_true(pg->family_nr <= FAMILIES_MAX && len < NAME_MAX_);
	memcpy(f->name, name, len);
	return f;
}

/* "# HELP name text" or "# TYPE name type"; HELP comes first, each once, series directly behind. */
static void take_comment(struct page *pg, const char *line)
{
	bool help = strncmp(line, "# HELP ", 7) == 0;
	const char *name = line + 7, *rest;
	size_t len = name_len(name);
	struct family *f;

	assert_true(help || strncmp(line, "# TYPE ", 7) == 0);
	assert_true(len > 0 && name[len] == ' ');
	rest = name + len + 1;
	assert_true(strlen(rest) > 0);
	f = family_of(pg, name, len);
	if (help) {
		assert_null(f);
		f = family_add(pg, name, len);
		f->has_help = true;
		return;
	}
	assert_ptr_equal(f, &pg->family[pg->family_nr - 1]);
	assert_false(f->has_type);
	assert_true(strcmp(rest, "counter") == 0 || strcmp(rest, "gauge") == 0 ||
		    strcmp(rest, "histogram") == 0);
	f->has_type = true;
	strcpy(f->type, rest);
}

/* A histogram's series carry a suffix. */
static struct family *owner(struct page *pg, const char *name, size_t len)
{
	static const char *const suffixes[] = {"_bucket", "_sum", "_count"};
	struct family *f = family_of(pg, name, len);

	for (size_t i = 0; !f && i < 3; i++) {
		size_t n = strlen(suffixes[i]);

		if (len > n && strncmp(name + len - n, suffixes[i], n) == 0)
			f = family_of(pg, name, len - n);
		if (f)
			assert_string_equal(f->type, "histogram");
	}
	return f;
}

/* {a="b",c="d"}: names sound, values closed, escapes known. @return what follows */
static const char *take_labels(const char *p)
{
	assert_true(*p++ == '{');
	for (;;) {
		size_t n = name_len(p);

		assert_true(n > 0);
		p += n;
		assert_true(*p++ == '=');
		assert_true(*p++ == '"');
		for (; *p != '"'; p++) {
			assert_true((unsigned char)*p >= ' ');
			if (*p == '\\')
				assert_true(strchr("\\\"n", *++p) && *p);
		}
		p++;
		if (*p == '}')
			return p + 1;
		assert_true(*p++ == ',');
	}
}

static void take_series(struct page *pg, const char *line)
{
	struct series *s = &pg->series[pg->series_nr++];
	size_t len = name_len(line);
	const char *p = line + len;
	char *end;

	assert_true(pg->series_nr <= SERIES_MAX && len > 0 && len < NAME_MAX_);
	memcpy(s->name, line, len);
	if (*p == '{') {
		const char *after = take_labels(p);

		assert_true((size_t)(after - p) < LABELS_MAX);
		memcpy(s->labels, p, (size_t)(after - p));
		p = after;
	}
	assert_true(*p++ == ' ');
	s->value = strtod(p, &end);
	assert_true(end != p && *end == '\0');
	s->family = owner(pg, line, len);
	assert_non_null(s->family);
	/* A family's series stand together. */
	assert_ptr_equal(s->family, &pg->family[pg->family_nr - 1]);
	assert_true(s->family->has_help && s->family->has_type);
}

static void check_duplicates(const struct page *pg)
{
	for (size_t i = 0; i < pg->series_nr; i++)
		for (size_t k = 0; k < i; k++)
			assert_false(strcmp(pg->series[i].name, pg->series[k].name) == 0 &&
				     strcmp(pg->series[i].labels, pg->series[k].labels) == 0);
}

static void read_page(char *text, size_t len, struct page *pg)
{
	memset(pg, 0, sizeof(*pg));
	assert_int_equal(strlen(text), len);
	assert_true(len > 0 && text[len - 1] == '\n');
	for (char *line = text, *nl; *line; line = nl + 1) {
		nl = strchr(line, '\n');
		*nl = '\0';
		if (*line == '#')
			take_comment(pg, line);
		else
			take_series(pg, line);
	}
	check_duplicates(pg);
	for (size_t i = 0; i < pg->family_nr; i++)
		assert_true(pg->family[i].has_type);
}

/* A node that only counts. */

struct fixture {
	struct rv_engine engine[2];
	struct rv_engines engines;
	struct rv_registrar registrar;
	struct rv_prompt prompt;
	struct rv_tcp_carrier tcp;
	struct rv_reactor core;
	struct rv_metrics metrics;
	struct page page;
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	f->engines.nr = 2;
	f->engines.engine[0] = &f->engine[0];
	f->engines.engine[1] = &f->engine[1];
	f->registrar.registered.limit = RV_GIB(1);
	f->metrics = (struct rv_metrics){
		.engines = &f->engines,
		.registrar = &f->registrar,
		.prompt = &f->prompt,
		.tcp = &f->tcp,
		.version = "1.2\"\\\n3",
		.ucx_version = "1.22.0",
		.verbs_version = "fence region",
		.dpdk_version = NULL,
		.core_nr = 1,
		.core = {&f->core},
	};
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	free(*state);
	return 0;
}

static void scrape(struct fixture *f)
{
	size_t len;
	char *text = rv_metrics_render(&f->metrics, &len);

	assert_non_null(text);
	read_page(text, len, &f->page);
	free(text);
}

static double value_of(const struct fixture *f, const char *name, const char *labels)
{
	for (size_t i = 0; i < f->page.series_nr; i++)
		if (strcmp(f->page.series[i].name, name) == 0 &&
		    strcmp(f->page.series[i].labels, labels) == 0)
			return f->page.series[i].value;
	fail_msg("there is no %s%s", name, labels);
	return 0;
}

static void every_series_has_help_and_type_and_is_there_once(void **state)
{
	scrape(*state);
	assert_true(((struct fixture *)*state)->page.series_nr > 60);
}

static void promised_series_are_there_before_anything_happened(void **state)
{
	static const char *const promised[][2] = {
		{"velo_rendezvous_operations_total", "{operation=\"register\",status=\"ok\"}"},
		{"velo_rendezvous_operations_total",
		 "{operation=\"register_pinned\",status=\"error\"}"},
		{"velo_rendezvous_operations_total",
		 "{operation=\"register_region\",status=\"ok\"}"},
		{"velo_rendezvous_operations_total", "{operation=\"release\",status=\"error\"}"},
		{"velo_rendezvous_bytes_total", "{direction=\"in\"}"},
		{"velo_rendezvous_bytes_total", "{direction=\"out\"}"},
		{"velo_rendezvous_active_slots", ""},
		{"velo_rendezvous_rdma_path_total", "{path=\"rdma\",reason=\"ok\"}"},
		{"velo_rendezvous_rdma_path_total", "{path=\"chunked\",reason=\"get_failed\"}"},
		{"velo_rendezvous_rdma_leases_reaped_total", ""},
		{"velo_rdma_registered_bytes", ""},
		{"velo_rdma_registrations_total", "{kind=\"arena\"}"},
		{"velo_rdma_registrations_total", "{kind=\"external\"}"},
		{"velo_rdma_live_regions", ""},
		{"rvd_build_info",
		 "{version=\"1.2\\\"\\\\\\n3\",ucx=\"1.22.0\",dpdk=\"\",verbs=\"fence region\"}"},
		{"rvd_arena_bytes", "{state=\"used\"}"},
		{"rvd_arena_bytes", "{state=\"free\"}"},
		{"rvd_arena_bytes", "{state=\"largest_free\"}"},
		{"rvd_registered_budget_bytes", ""},
		{"rvd_registration_failures_total", "{reason=\"budget\"}"},
		{"rvd_leases", "{kind=\"rdma\"}"},
		{"rvd_leases_reaped_total", "{kind=\"chunked\"}"},
		{"rvd_slots_expired_total", ""},
		{"rvd_tcp_connections", ""},
		{"rvd_tcp_connections_overdue_total", "{reason=\"handshake\"}"},
		{"rvd_tcp_connections_overdue_total", "{reason=\"stall\"}"},
		{"rvd_handshakes_rejected_total", "{reason=\"malformed\"}"},
		{"rvd_handshakes_rejected_total", "{reason=\"no_room\"}"},
		{"rvd_staged_payloads_refused_total", "{reason=\"too_long\"}"},
		{"rvd_endpoints", ""},
		{"rvd_endpoints_closed_total", "{reason=\"idle\"}"},
		{"rvd_core_busy_ratio", "{core=\"0\"}"},
		{"rvd_core_polls_total", "{core=\"0\"}"},
		{"rvd_get_bytes_total", "{path=\"local\"}"},
	};
	struct fixture *f = *state;

	scrape(f);
	for (size_t i = 0; i < RV_ARRAY_NR(promised); i++)
		value_of(f, promised[i][0], promised[i][1]);
}

static void values_are_sums_over_the_engines(void **state)
{
	struct fixture *f = *state;

	for (unsigned i = 0; i < 2; i++) {
		struct rv_engine *e = &f->engine[i];

		rv_counter_add(&e->stats.operation[RV_OP_GET][1], 3 + i);
		rv_counter_add(&e->stats.path[RV_PATH_BELOW_MIN], 5 + i);
		rv_counter_add(&e->stats.bytes_in, 1000 + i);
		rv_counter_add(&e->stats.get_bytes[RV_PATH_RDMA], 10 + i);
		rv_counter_add(&e->store.slot_nr, 20 + i);
		rv_counter_add(&e->store.lease_nr[RV_LEASE_LOCAL], 30 + i);
		rv_counter_add(&e->store.reaped[RV_LEASE_RDMA], 40 + i);
		rv_counter_add(&e->pool.used_bytes, 4096);
	}
	/* 16 KiB of arenas, 8 used; a region, parked pages and a key's second pin are no arenas. */
	f->registrar.registered.used = 16384 + 4096;
	f->registrar.plain.used = 8192;
	rv_counter_set(&f->registrar.external_bytes, 4096);
	rv_counter_set(&f->registrar.parked_bytes, 4096);
	rv_counter_set(&f->prompt.pinned_bytes, 4096);
	rv_counter_set(&f->prompt.made, 3);
	rv_counter_set(&f->registrar.failures[RV_REG_FAIL_MAP], 2);
	rv_counter_set(&f->tcp.connections, 9);
	scrape(f);
	assert_true(value_of(f, "velo_rendezvous_operations_total",
			     "{operation=\"get\",status=\"error\"}") == 7);
	assert_true(value_of(f, "velo_rendezvous_rdma_path_total",
			     "{path=\"chunked\",reason=\"below_min\"}") == 11);
	assert_true(value_of(f, "velo_rendezvous_bytes_total", "{direction=\"in\"}") == 2001);
	assert_true(value_of(f, "rvd_get_bytes_total", "{path=\"rdma\"}") == 21);
	assert_true(value_of(f, "velo_rendezvous_active_slots", "") == 41);
	assert_true(value_of(f, "rvd_leases", "{kind=\"local\"}") == 61);
	assert_true(value_of(f, "rvd_leases_reaped_total", "{kind=\"rdma\"}") == 81);
	assert_true(value_of(f, "velo_rendezvous_rdma_leases_reaped_total", "") == 81);
	assert_true(value_of(f, "rvd_arena_bytes", "{state=\"used\"}") == 8192);
	assert_true(value_of(f, "rvd_arena_bytes", "{state=\"free\"}") == 8192);
	assert_true(value_of(f, "velo_rdma_registered_bytes", "") == 20480);
	assert_true(value_of(f, "rvd_lease_keys_total", "{outcome=\"made\"}") == 3);
	assert_true(value_of(f, "rvd_lease_key_bytes", "") == 4096);
	assert_true(value_of(f, "rvd_registration_failures_total", "{reason=\"map\"}") == 2);
	assert_true(value_of(f, "rvd_tcp_connections", "") == 9);
	assert_true(value_of(f, "rvd_registered_budget_bytes", "") == (double)RV_GIB(1));
}

static void the_histogram_is_cumulative(void **state)
{
	static const char name[] = "velo_rendezvous_rdma_get_duration_seconds";
	struct fixture *f = *state;
	double last = 0, bound = 0.00005;
	unsigned buckets = 0;

	rv_counter_add(&f->engine[0].stats.get_bucket[0], 4);
	rv_counter_add(&f->engine[1].stats.get_bucket[0], 1);
	rv_counter_add(&f->engine[0].stats.get_bucket[3], 2);
	rv_counter_add(&f->engine[1].stats.get_bucket[RV_GET_BUCKETS], 1);
	rv_counter_add(&f->engine[0].stats.get_sum_ns, RV_MS(2500));
	scrape(f);
	for (size_t i = 0; i < f->page.series_nr; i++) {
		const struct series *s = &f->page.series[i];
		double le;

		if (strcmp(s->family->name, name) != 0 || !s->labels[0])
			continue;
		assert_true(s->value >= last);
		last = s->value;
		buckets++;
		if (strcmp(s->labels, "{le=\"+Inf\"}") == 0)
			continue;
		assert_int_equal(sscanf(s->labels, "{le=\"%lf\"}", &le), 1);
		assert_true(le > bound * 0.999999 && le < bound * 1.000001);
		bound *= 2;
	}
	assert_int_equal(buckets, RV_GET_BUCKETS + 1);
	assert_true(value_of(f, "velo_rendezvous_rdma_get_duration_seconds_bucket",
			     "{le=\"5e-05\"}") == 5);
	assert_true(value_of(f, "velo_rendezvous_rdma_get_duration_seconds_bucket",
			     "{le=\"+Inf\"}") == 8);
	assert_true(value_of(f, "velo_rendezvous_rdma_get_duration_seconds_count", "") == 8);
	assert_true(value_of(f, "velo_rendezvous_rdma_get_duration_seconds_sum", "") == 2.5);
}

static void readiness_is_a_series_too(void **state)
{
	struct fixture *f = *state;

	scrape(f);
	assert_true(value_of(f, "rvd_ready", "") == 0);
	rv_metrics_set_ready(&f->metrics, true);
	scrape(f);
	assert_true(value_of(f, "rvd_ready", "") == 1);
}

static void the_busy_ratio_stays_between_0_and_1(void **state)
{
	struct fixture *f = *state;

	for (unsigned i = 0; i < 3; i++) {
		double v;

		scrape(f);
		v = value_of(f, "rvd_core_busy_ratio", "{core=\"0\"}");
		assert_true(v >= 0 && v <= 1);
		rv_counter_add(&f->core.busy_ns, RV_SEC(100));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_series_has_help_and_type_and_is_there_once,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(promised_series_are_there_before_anything_happened,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(values_are_sums_over_the_engines, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(the_histogram_is_cumulative, set_up, tear_down),
		cmocka_unit_test_setup_teardown(readiness_is_a_series_too, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_busy_ratio_stays_between_0_and_1, set_up,
						tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
