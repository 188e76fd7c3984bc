#include "tools/rvctl_cmd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

#define LOOK_NS RV_MS(50)

static uint64_t number(const struct rv_json *doc, const char *key)
{
	uint64_t v = 0;

	return rv_json_uint(rv_json_get(doc, key), UINT64_MAX, &v) ? 0 : v;
}

/* What a drain waits for: accepted requests, gets, RDMA leases. @return the sum, or UINT64_MAX after an error */
static uint64_t still_busy(const struct rv_ctl *ctl, int *code)
{
	struct rv_json *doc;
	const char *why;
	uint64_t busy;
	char *text;
	size_t len;
	int rc = rv_list(ctl->c, RV_TABLE_STATUS, &text, &len);

	if (rc) {
		*code = rv_ctl_fail_rc(ctl, rc, NULL);
		return UINT64_MAX;
	}
	rc = rv_json_parse(text, len, &doc, &why);
	rv_free(text);
	if (rc) {
		*code = rv_ctl_fail(ctl, RV_CTL_FAILED, "the daemon's answer is no JSON: %s", why);
		return UINT64_MAX;
	}
	busy = number(doc, "requests_pending") + number(doc, "gets_under_way") +
	       number(rv_json_get(doc, "leases"), "rdma");
	rv_json_free(doc);
	return busy;
}

static void nap(void)
{
	struct timespec ts = {.tv_nsec = LOOK_NS};

	nanosleep(&ts, NULL);
}

int rv_ctl_drain(struct rv_ctl *ctl)
{
	uint64_t until = ctl->timeout_ns && ctl->timeout_ns != RV_NEVER
				 ? rv_sat_add(rv_clock_ns(), ctl->timeout_ns)
				 : RV_NEVER;
	uint64_t busy = 0;
	int code = 0, rc = rv_drain(ctl->c);

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	while (ctl->wait && !code && (busy = still_busy(ctl, &code)) && !code) {
		if (rv_clock_ns() >= until)
			return rv_ctl_fail(ctl, RV_CTL_FAILED,
					   "%llu requests, gets and RDMA leases still run",
					   (unsigned long long)busy);
		nap();
	}
	if (!code)
		printf(ctl->json ? "{\"draining\":true,\"waited\":%s}\n" : "draining%s\n",
		       ctl->json   ? (ctl->wait ? "true" : "false")
		       : ctl->wait ? ", nothing runs any more"
				   : "");
	return code;
}

int rv_ctl_kill_switch(struct rv_ctl *ctl)
{
	static const char *const words[] = {"status", "on", "off"};
	bool on = false;
	int rc;

	for (int i = 0; i < 3; i++) {
		if (strcmp(ctl->arg[0], words[i]) != 0)
			continue;
		rc = rv_kill_switch(ctl->c, (enum rv_switch)i, &on);
		if (rc)
			return rv_ctl_fail_rc(ctl, rc, NULL);
		printf(ctl->json ? "{\"kill_switch\":%s}\n" : "%s\n",
		       ctl->json ? (on ? "true" : "false")
		       : on      ? "on"
				 : "off");
		return 0;
	}
	return rv_ctl_fail(ctl, RV_CTL_USAGE, "on, off or status, not %s", ctl->arg[0]);
}

int rv_ctl_log_level(struct rv_ctl *ctl)
{
	int rc = rv_log_level(ctl->c, ctl->arg[0]);

	if (rc == -EINVAL)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "%s", rv_last_error());
	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	if (ctl->json)
		printf("{\"level\":\"%s\"}\n", ctl->arg[0]);
	return 0;
}
