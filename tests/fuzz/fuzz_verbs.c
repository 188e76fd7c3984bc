/* Addresses, hellos and keys of the verbs backend: what is taken is written again to the same bytes. */
#include <string.h>

#include "dataplane/base/check.h"
#include "verbs/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t hello[RV_VERBS_HELLO], addr[RV_VERBS_ADDR_MAX], key[RV_VERBS_KEY];
	struct rv_verbs_hello h;
	struct sockaddr_storage sa;
	uint32_t rkey;

	if (rv_verbs_hello_decode(data, size, &h)) {
		rv_verbs_hello_encode(hello, &h);
		RV_CHECK(memcmp(hello, data, sizeof(hello)) == 0);
		for (size_t i = sizeof(hello); i < size; i++)
			RV_CHECK(data[i] == 0);
	}
	if (rv_verbs_addr_decode(data, size, &sa)) {
		RV_CHECK(rv_verbs_addr_encode(addr, &sa) == size);
		RV_CHECK(memcmp(addr, data, size) == 0);
	}
	if (rv_verbs_key_decode(data, size, &rkey)) {
		rv_verbs_key_encode(key, rkey);
		RV_CHECK(size == sizeof(key) && memcmp(key, data, size) == 0);
	}
	if (size)
		RV_CHECK(*rv_verbs_refusal_name(data[0]));
	return 0;
}
