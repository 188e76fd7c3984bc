/* Descriptors of any bytes: what is taken is written again to the same bytes. */
#include "dataplane/base/check.h"
#include "dataplane/rendezvous/descriptor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[RV_DESC_MAX];
	struct rv_writer w = rv_writer(again, sizeof(again));
	struct rv_desc d;

	if (rv_desc_decode(data, size, &d) != RV_ACCEPT)
		return 0;
	RV_CHECK(rv_desc_encode(&w, &d) == 0);
	RV_CHECK(w.len == size);
	RV_CHECK(memcmp(again, data, size) == 0);
	return 0;
}
