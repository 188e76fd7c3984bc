/*
 * WorkerAddresses and msgpack PeerInfos of any bytes; what is taken reads back the same after
 * writing.
 */
#include "control/messenger/address.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_address(const uint8_t *data, size_t size, unsigned version)
{
	static struct rv_address first, second;
	static uint8_t text[65536];
	struct rv_writer w = rv_writer(text, sizeof(text));

	if (rv_address_decode(data, size, version, &first))
		return;
	RV_CHECK(rv_address_encode(&w, &first) == 0);
	RV_CHECK(rv_address_decode(text, w.len, version, &second) == 0);
	RV_CHECK(first.tcp_nr == second.tcp_nr);
	RV_CHECK(first.has_ucx == second.has_ucx);
	RV_CHECK(!second.tcp_refused && !second.ucx_refused);
	RV_CHECK(first.has_rvd == second.has_rvd);
	for (size_t i = 0; i < first.tcp_nr; i++) {
		RV_CHECK(strcmp(first.tcp[i].ip, second.tcp[i].ip) == 0);
		RV_CHECK(first.tcp[i].port == second.tcp[i].port);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rv_peer_info p;

	try_address(data, size, 1);
	try_address(data, size, 2);
	if (rv_peer_info_decode_msgpack(data, size, &p) == 0)
		rv_peer_info_fini(&p);
	return 0;
}
