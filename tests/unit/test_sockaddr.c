#include "control/uring/sockaddr.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const struct {
	const char *host;
	uint16_t port;
	const char *text; /* NULL: refused */
} literals[] = {
	{"127.0.0.1", 7471, "127.0.0.1:7471"},
	{"0.0.0.0", 0, "0.0.0.0:0"},
	{"255.255.255.255", 65535, "255.255.255.255:65535"},
	{"::1", 7471, "[::1]:7471"},
	{"[::1]", 7471, "[::1]:7471"},
	{"[127.0.0.1]", 1, "127.0.0.1:1"},
	{"fe80::1:2", 9, "[fe80::1:2]:9"},
	{"::ffff:10.1.2.3", 9, "[::ffff:10.1.2.3]:9"},
	{"", 1, NULL},
	{"[]", 1, NULL},
	{"localhost", 1, NULL},
	{"127.0.0", 1, NULL},
	{"127.0.0.1 ", 1, NULL},
	{"[::1", 1, NULL},
	{"::1]", 1, NULL},
	{"1:2:3:4:5:6:7:8:9", 1, NULL},
	{"0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000", 1, NULL},
};

static void literals_and_only_literals_are_addresses(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(literals); i++) {
		struct sockaddr_storage sa;
		socklen_t len = 0;
		char text[64];
		int rc = rv_sockaddr_parse(literals[i].host, literals[i].port, &sa, &len);

		assert_int_equal(rc, literals[i].text ? 0 : -EINVAL);
		if (rc)
			continue;
		assert_true(len > 0);
		assert_int_equal(rv_sockaddr_port(&sa), literals[i].port);
		rv_sockaddr_format(&sa, text, sizeof(text));
		assert_string_equal(text, literals[i].text);
	}
}

static void a_short_buffer_is_filled_and_terminated(void **state)
{
	struct sockaddr_storage sa;
	socklen_t len;
	char text[8];

	(void)state;
	assert_int_equal(rv_sockaddr_parse("127.0.0.1", 7471, &sa, &len), 0);
	rv_sockaddr_format(&sa, text, sizeof(text));
	assert_string_equal(text, "127.0.0");
}

static const struct {
	const char *peer, *self;
	bool local;
} routes[] = {
	{"127.0.0.1", "127.0.0.1", true},
	{"127.9.9.9", "10.0.0.1", true},
	{"10.0.0.1", "10.0.0.1", true},
	{"10.0.0.2", "10.0.0.1", false},
	{"::1", "::1", true},
	{"fd00::1", "fd00::1", true},
	{"fd00::1", "fd00::2", false},
	{"10.0.0.1", "fd00::1", false},
};

static void this_hosts_own_addresses_are_local(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(routes); i++) {
		struct sockaddr_storage peer, self;
		socklen_t len;

		assert_int_equal(rv_sockaddr_parse(routes[i].peer, 1, &peer, &len), 0);
		assert_int_equal(rv_sockaddr_parse(routes[i].self, 2, &self, &len), 0);
		assert_int_equal(rv_sockaddr_is_local(&peer, &self), routes[i].local);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(literals_and_only_literals_are_addresses),
		cmocka_unit_test(a_short_buffer_is_filled_and_terminated),
		cmocka_unit_test(this_hosts_own_addresses_are_local),
	};

	return cmocka_run_group_tests_name("sockaddr", tests, NULL, NULL);
}
