/*
 * Bodies of any bytes. The first byte picks the body; what is taken is written in the canonical
 * form, and that is taken again and written to the same bytes.
 */
#include "control/json/rv_codec.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t desc[RV_BODY_DESC_MAX];

/* Decode and write again. @return false when refused */
typedef bool again_fn(const void *text, size_t len, struct rv_writer *w);

static bool again_handle(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_handle h;

	if (rv_body_handle_decode(text, len, &h, NULL))
		return false;
	rv_body_handle_encode(w, h);
	return true;
}

static bool again_lease(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_body_lease b;

	if (rv_body_lease_decode(text, len, &b, NULL))
		return false;
	rv_body_lease_encode(w, &b);
	return true;
}

static bool again_pull(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_body_pull b;

	if (rv_body_pull_decode(text, len, &b, NULL))
		return false;
	rv_body_pull_encode(w, &b);
	return true;
}

static bool again_metadata(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_body_metadata b;

	if (rv_body_metadata_decode(text, len, &b, NULL))
		return false;
	rv_body_metadata_encode(w, &b);
	return true;
}

static bool again_acquire(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_body_acquire b;

	if (rv_body_acquire_decode(text, len, &b, NULL))
		return false;
	rv_body_acquire_encode(w, &b);
	return true;
}

static bool again_grant(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_body_grant b;

	if (rv_body_grant_decode(text, len, desc, sizeof(desc), &b, NULL) ||
	    (b.is_rdma && !b.rdma.descriptor))
		return false;
	rv_body_grant_encode(w, &b);
	return true;
}

static bool again_hello(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_peer_info p;

	if (rv_body_hello_decode(text, len, &p, NULL))
		return false;
	rv_body_hello_encode(w, &p);
	rv_peer_info_fini(&p);
	return true;
}

static void touch(void *user, const char *name, size_t len)
{
	struct rv_writer *w = user;

	rv_put_bytes(w, name, len);
}

static bool again_handlers(const void *text, size_t len, struct rv_writer *w)
{
	struct rv_peer_info p;
	bool has_peer;

	if (rv_body_handlers_decode(text, len, touch, w, &p, &has_peer, NULL) == 0 && has_peer)
		rv_peer_info_fini(&p);
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static again_fn *const bodies[] = {again_handle,  again_lease, again_pull,  again_metadata,
					   again_acquire, again_grant, again_hello, again_handlers};
	static uint8_t first[RV_BODY_HELLO_MAX], second[RV_BODY_HELLO_MAX];
	struct rv_writer a = rv_writer(first, sizeof(first));
	struct rv_writer b = rv_writer(second, sizeof(second));
	again_fn *again;

	if (size == 0)
		return 0;
	again = bodies[data[0] % (sizeof(bodies) / sizeof(bodies[0]))];
	if (!again(data + 1, size - 1, &a))
		return 0;
	RV_CHECK(!a.bad);
	RV_CHECK(again(first, a.len, &b));
	RV_CHECK(a.len == b.len);
	RV_CHECK(memcmp(first, second, a.len) == 0);
	return 0;
}
