/*
 * What people write in place of numbers: handles, references, addresses and UUIDs of any bytes; what is taken prints as
 * text that is taken again.
 */
#include "dataplane/base/handle.h" /* first: rv.h then leaves struct rv_handle to it */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/client/rv.h"
#include "control/json/peer_info.h"
#include "control/uring/sockaddr.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(struct rv_handle a, struct rv_handle b)
{
	return a.worker == b.worker && a.local == b.local;
}

static void try_handle(const char *text)
{
	char out[RV_HANDLE_TEXT_MAX];
	struct rv_handle h, again;

	if (rv_handle_parse(text, &h))
		return;
	RV_CHECK(rv_handle_format(h, out, sizeof(out)) > 0);
	RV_CHECK(rv_handle_parse(out, &again) == 0 && same(h, again));
}

static void try_ref(const char *text)
{
	struct rv_ref r;

	if (rv_ref_parse(text, &r))
		return;
	RV_CHECK(memchr(r.host, '\0', sizeof(r.host)));
	if (*r.host)
		RV_CHECK(r.port);
}

static void try_sockaddr(const char *text, uint16_t port)
{
	struct sockaddr_storage sa, again;
	char out[128], *colon;
	socklen_t len, len2;

	if (rv_sockaddr_parse(text, port, &sa, &len))
		return;
	RV_CHECK(rv_sockaddr_port(&sa) == port);
	rv_sockaddr_format(&sa, out, sizeof(out));
	colon = strrchr(out, ':');
	RV_CHECK(colon);
	*colon = '\0';
	RV_CHECK(rv_sockaddr_parse(out, port, &again, &len2) == 0 && len == len2);
	RV_CHECK(memcmp(&sa, &again, len) == 0);
}

static void try_uuid(const char *text, size_t len)
{
	uint8_t id[RV_UUID_LEN], again[RV_UUID_LEN];
	char out[RV_UUID_TEXT];

	if (rv_uuid_parse(text, len, id))
		return;
	rv_uuid_format(id, out);
	RV_CHECK(rv_uuid_parse(out, strlen(out), again) == 0);
	RV_CHECK(memcmp(id, again, sizeof(id)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	RV_CHECK(text);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	try_handle(text);
	try_ref(text);
	try_sockaddr(text, (uint16_t)(size * 257u));
	try_uuid(text, size);
	free(text);
	return 0;
}
