/*
 * Preamble and headers of any bytes: no over-read, and what is taken is written again to the same
 * bytes.
 */
#include <stdlib.h>

#include "control/frame/frame.h"
#include "control/messenger/headers.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_preamble(const uint8_t *data, size_t size)
{
	uint8_t again[RV_FRAME_PREAMBLE];
	struct rv_preamble p;

	if (size < sizeof(again) || rv_preamble_decode(data, &p))
		return;
	rv_preamble_encode(again, &p);
	RV_CHECK(memcmp(again, data, sizeof(again)) == 0);
}

static void try_headers_map(const uint8_t *map, size_t len)
{
	struct rv_handle h;
	uint64_t ms;

	(void)rv_headers_check(map, len);
	(void)rv_headers_find_staged(map, len, &h);
	(void)rv_headers_find_ms(map, len, RV_HEADER_BUDGET_MS, &ms);
}

static void same(const struct rv_writer *w, const uint8_t *data)
{
	RV_CHECK(!w->bad);
	RV_CHECK(memcmp(w->buf, data, w->len) == 0);
}

static void try_headers(const uint8_t *data, size_t size, uint8_t *again)
{
	struct rv_writer w = rv_writer(again, size);
	struct rv_request_header req;
	struct rv_response_header rsp;
	struct rv_ack_header ack;

	if (rv_request_header_decode(data, size, &req) == 0) {
		RV_CHECK(rv_request_header_encode(&w, &req) == 0);
		same(&w, data);
		try_headers_map(req.headers, req.headers_len);
	}
	w = rv_writer(again, size);
	if (rv_response_header_decode(data, size, &rsp) == 0) {
		RV_CHECK(rv_response_header_encode(&w, &rsp) == 0);
		same(&w, data);
		try_headers_map(rsp.headers, rsp.headers_len);
	}
	w = rv_writer(again, size);
	if (rv_ack_header_decode(data, size, &ack) == 0) {
		rv_ack_header_encode(&w, &ack);
		same(&w, data);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *again = malloc(size + 1);

	RV_CHECK(again);
	try_preamble(data, size);
	try_headers(data, size, again);
	try_headers_map(data, size);
	free(again);
	return 0;
}
