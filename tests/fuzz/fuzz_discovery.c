/* What others wrote where nodes are looked up: the first byte picks the shared file, or an answer of etcd's. */
#include "control/discovery/base64.h"
#include "control/discovery/discovery.h"
#include "control/discovery/etcd_codec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WORKER 4711u

/* Whatever is found is whom was asked for. */
static void try_file(const uint8_t *data, size_t size)
{
	static const uint64_t former[] = {1};
	char path[64], why[RV_DISCOVERY_TEXT];
	uint8_t address[] = {1};
	struct rv_discovery_conf c = {
		.path = path,
		.self = {.instance = {7}, .address = address, .address_len = 1},
		.former = former,
		.former_nr = 1,
	};
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct rv_peer_info pi;
	void *f;

	RV_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	f = rv_discovery_file_open(&c, why);
	RV_CHECK(f);
	if (rv_discovery_file_ops.find(f, rv_worker_id(c.self.instance), &pi, why) == 0) {
		RV_CHECK(pi.instance[0] == 7 && pi.address_len);
		rv_peer_info_fini(&pi);
	}
	RV_CHECK(rv_discovery_file_ops.find(f, WORKER, &pi, why) !=
		 0); /* no UUID is known that hashes to it */
	rv_discovery_file_ops.close(f);
	close(fd);
}

static void try_base64(const uint8_t *data, size_t size)
{
	uint8_t *out = malloc(size + 1);
	char *back = malloc(RV_BASE64_LEN(size) + 1);
	size_t len;

	RV_CHECK(out && back);
	if (!rv_base64_decode((const char *)data, size, out, size + 1, &len)) {
		rv_base64_encode(out, len, back);
		RV_CHECK(strlen(back) == size && memcmp(back, data, size) == 0);
	}
	free(out);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data + 1;
	char lease[RV_ETCD_LEASE], error[64];
	struct rv_peer_info pi;

	rv_log_set_level(RV_LOG_ERROR);
	if (!size)
		return 0;
	switch (data[0] % 5) {
	case 0:
		try_file(data + 1, size - 1);
		break;
	case 1:
		if (!rv_etcd_take_lease(text, size - 1, lease))
			RV_CHECK(strspn(lease, "0123456789") == strlen(lease) && *lease);
		break;
	case 2:
		rv_etcd_take_alive(text, size - 1);
		rv_etcd_take_error(text, size - 1, error, sizeof(error));
		break;
	case 3:
		RV_CHECK(rv_etcd_take_peer(text, size - 1, WORKER, &pi) != 0);
		break;
	default:
		try_base64(data + 1, size - 1);
		break;
	}
	return 0;
}
