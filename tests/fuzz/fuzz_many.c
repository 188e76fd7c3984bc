/* The bodies of `_rvd_get_many`: the first byte says which end reads, and of how many slots. */
#include "control/messenger/many_codec.h"

#include <errno.h>

#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_request(const uint8_t *data, size_t size)
{
	static struct rv_peer_many many;
	uint8_t back[8 + 8 * RV_PEER_MANY_MAX];
	struct rv_writer w = rv_writer(back, sizeof(back));
	uint32_t room;

	if (rv_many_request_decode(data, size, &many, &room))
		return;
	RV_CHECK(many.nr > 0 && many.nr <= RV_PEER_MANY_MAX);
	rv_many_request_encode(&w, &many, room);
	RV_CHECK(!w.bad && w.len == size && memcmp(back, data, size) == 0);
}

/* Each payload that is said to have come lies in the answer. */
static void try_answer(const uint8_t *data, size_t size, uint32_t nr)
{
	static struct rv_peer_many many;

	many.nr = nr;
	many.each = 1000;
	if (rv_many_answer_decode(data, size, &many))
		return;
	for (uint32_t i = 0; i < nr; i++) {
		const struct rv_peer_one *one = &many.one[i];

		RV_CHECK(one->rc == 0 || one->rc == -EAGAIN);
		RV_CHECK(one->len <= many.each && one->off <= size && one->len <= size - one->off);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (data[0] & 1)
		try_request(data + 1, size - 1);
	else
		try_answer(data + 1, size - 1, 1 + data[0] / 2 % RV_PEER_MANY_MAX);
	return 0;
}
