/* Nodes that are looked up in etcd, which is this test: what libcurl is told, and what it answers. */
#include "control/discovery/discovery.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include <curl/curl.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define ALIVE "{\"result\":{\"ID\":\"7\",\"TTL\":\"15\"}}"

typedef size_t write_fn(char *data, size_t size, size_t nr, void *user);

/* What was set last. */
static struct {
	char url[128];
	write_fn *write;
	void *user;
	long timeout_ms;
} curl;
static long status_of[2], status; /* of http://a and http://b; 0: it does not answer */
static unsigned asked_of[2];
static char calls[512]; /* the last word of each path, by its first letter */
static uint64_t each_takes_ns;
static _Atomic uint64_t later_ns;

uint64_t __real_rv_clock_ns(void);
uint64_t __wrap_rv_clock_ns(void);
CURLcode __wrap_curl_easy_setopt(CURL *c, CURLoption o, ...);
CURLcode __wrap_curl_easy_perform(CURL *c);
CURLcode __wrap_curl_easy_getinfo(CURL *c, CURLINFO i, ...);

uint64_t __wrap_rv_clock_ns(void)
{
	return __real_rv_clock_ns() + atomic_load(&later_ns);
}

CURLcode __wrap_curl_easy_setopt(CURL *c, CURLoption o, ...)
{
	va_list ap;

	(void)c;
	va_start(ap, o);
	if (o == CURLOPT_URL)
		snprintf(curl.url, sizeof(curl.url), "%s", va_arg(ap, const char *));
	else if (o == CURLOPT_WRITEFUNCTION)
		curl.write = va_arg(ap, write_fn *);
	else if (o == CURLOPT_WRITEDATA)
		curl.user = va_arg(ap, void *);
	else if (o == CURLOPT_TIMEOUT_MS)
		curl.timeout_ms = va_arg(ap, long);
	va_end(ap);
	return CURLE_OK;
}

static void answer(const char *text)
{
	char copy[128];

	snprintf(copy, sizeof(copy), "%s", text);
	assert_int_equal(curl.write(copy, 1, strlen(copy), curl.user), strlen(copy));
}

CURLcode __wrap_curl_easy_perform(CURL *c)
{
	unsigned at = !strncmp(curl.url, "http://b", 8);
	const char *word = strrchr(curl.url, '/') + 1;
	size_t len = strlen(calls);

	(void)c;
	asked_of[at]++;
	if (len < sizeof(calls) - 1)
		calls[len] = *word;
	if (*word == 'r') { /* range, revoke */
		struct timespec t = {0, (long)each_takes_ns};

		nanosleep(&t, NULL);
		atomic_fetch_add(&later_ns, RV_SEC(2));
	}
	status = status_of[at];
	if (!status)
		return CURLE_OPERATION_TIMEDOUT;
	if (status != 200)
		answer("{\"error\":\"etcdserver: no leader\"}");
	else
		answer(*word == 'g' ? "{\"ID\":\"7\"}" : *word == 'k' ? ALIVE : "{}");
	return CURLE_OK;
}

CURLcode __wrap_curl_easy_getinfo(CURL *c, CURLINFO i, ...)
{
	va_list ap;

	(void)c;
	assert_int_equal(i, CURLINFO_RESPONSE_CODE);
	va_start(ap, i);
	*va_arg(ap, long *) = status;
	va_end(ap);
	return CURLE_OK;
}

static uint8_t address[] = {1, 2, 3};
static char why[RV_DISCOVERY_TEXT];
static const struct rv_discovery_ops *const ops = &rv_discovery_etcd_ops;

static struct rv_discovery_conf conf(void)
{
	return (struct rv_discovery_conf){
		.kind = RV_DISCOVERY_ETCD,
		.endpoints = "a,b",
		.prefix = "/rvd/peers/",
		.self = {.instance = {1}, .address = address, .address_len = sizeof(address)},
	};
}

static int setup(void **state)
{
	(void)state;
	status_of[0] = status_of[1] = 200;
	asked_of[0] = asked_of[1] = 0;
	memset(calls, 0, sizeof(calls));
	each_takes_ns = 0;
	return 0;
}

static void *open_etcd(void)
{
	struct rv_discovery_conf c = conf();
	void *e = rv_discovery_etcd_open(&c, why);

	assert_non_null(e);
	return e;
}

static void a_server_that_answers_that_it_cannot_is_left_for_the_next(void **state)
{
	void *e = open_etcd();
	struct rv_peer_info pi;

	(void)state;
	status_of[0] = 503;
	assert_int_equal(ops->publish(e, why), 0);
	assert_int_equal(ops->find(e, 4711, &pi, why), -ENOENT);
	assert_int_equal(asked_of[0], 1);
	assert_int_equal(asked_of[1], 3); /* grant, put, range */
	status_of[1] = 503;
	assert_int_equal(ops->find(e, 4711, &pi, why), -EHOSTUNREACH);
	assert_non_null(strstr(why, "answers 503: etcdserver: no leader"));
	assert_int_equal(asked_of[0], 2); /* each once */
	assert_int_equal(asked_of[1], 4);
	ops->close(e);
}

static void what_one_server_refuses_no_other_is_asked_for(void **state)
{
	void *e = open_etcd();

	(void)state;
	status_of[0] = 400;
	assert_int_equal(ops->publish(e, why), -EREMOTEIO);
	assert_non_null(strstr(why, "etcd at http://a answers 400"));
	assert_int_equal(asked_of[1], 0);
	ops->close(e);
}

static void who_leaves_has_little_time_for_look_ups_with_a_lease_or_without(void **state)
{
	void *e = open_etcd();
	struct rv_peer_info pi;

	(void)state;
	status_of[0] = status_of[1] = 0;
	assert_int_equal(ops->publish(e, why), -EHOSTUNREACH);
	assert_int_equal(curl.timeout_ms, 2000);
	asked_of[0] = asked_of[1] = 0;
	ops->withdraw(e);
	assert_int_equal(curl.timeout_ms, 700);
	assert_int_equal(ops->find(e, 4711, &pi, why), -EHOSTUNREACH);
	assert_int_equal(asked_of[0] + asked_of[1], 1);
	ops->close(e);
}

/* The thread: who asks is port 0. */
static struct rv_mesh *mesh;
static struct rv_discovery *disc;
static unsigned found_nr, shut_nr;

static void found(struct rv_port *port, struct rv_cell *c)
{
	const struct rv_msg_find *m = (void *)c->body;

	found_nr++;
	shut_nr += m->rc == -ESHUTDOWN;
	assert_true(m->rc == -ESHUTDOWN || m->rc == -ENOENT);
	assert_null(m->pi);
	rv_cell_free(port, c);
}

static void start(void)
{
	struct rv_discovery_conf c = conf();

	mesh = rv_mesh_create(2, 64);
	assert_non_null(mesh);
	c.port = rv_mesh_port(mesh, 1);
	found_nr = shut_nr = 0;
	assert_int_equal(rv_discovery_start(&c, &disc, why), 0);
}

static void ask(unsigned nr)
{
	struct rv_port *port = rv_mesh_port(mesh, 0);

	for (unsigned i = 0; i < nr; i++) {
		struct rv_cell *c = rv_cell_alloc(port);

		assert_non_null(c);
		*(struct rv_msg_find *)(void *)c->body =
			(struct rv_msg_find){.discovery = disc, .worker = 4711};
		c->run = rv_discovery_run_find;
		c->done = found;
		rv_cell_send(port, rv_discovery_port(disc), c);
	}
}

static void end(void)
{
	rv_discovery_stop(disc);
	rv_port_poll(rv_mesh_port(mesh, 0), UINT32_MAX);
	rv_discovery_destroy(disc);
	rv_mesh_destroy(mesh);
}

static void who_stops_does_not_wait_for_look_ups_that_are_queued(void **state)
{
	(void)state;
	each_takes_ns = RV_MS(30);
	start();
	ask(64);
	end();
	assert_int_equal(found_nr, 64);
	assert_true(shut_nr > 0);
	assert_int_equal(calls[strlen(calls) - 1], 'r'); /* the lease is revoked */
}

static void the_lease_is_kept_alive_between_look_ups_that_are_queued(void **state)
{
	(void)state;
	start();
	ask(10); /* two seconds each */
	while (found_nr < 10)
		rv_port_wait(rv_mesh_port(mesh, 0), 1000);
	end();
	assert_memory_equal(calls, "gprrrkrrrkrrrk", 14);
}

#define TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_server_that_answers_that_it_cannot_is_left_for_the_next),
		TEST(what_one_server_refuses_no_other_is_asked_for),
		TEST(who_leaves_has_little_time_for_look_ups_with_a_lease_or_without),
		TEST(who_stops_does_not_wait_for_look_ups_that_are_queued),
		TEST(the_lease_is_kept_alive_between_look_ups_that_are_queued),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
