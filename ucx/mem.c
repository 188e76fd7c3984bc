#include "ucx/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "ucx/rkey_parse.h"
#include "ucx/ucx_err.h"

#define MD_MAP_BYTES 8

/* UCX has one status for all that ibv_reg_mr can say; a limit below the length is the likely cause. */
static int map_err(ucs_status_t status, uint64_t len)
{
	struct rlimit lim;

	if (!getrlimit(RLIMIT_MEMLOCK, &lim) && lim.rlim_cur != RLIM_INFINITY && lim.rlim_cur < len)
		return -EPERM;
	return status == UCS_ERR_NO_MEMORY ? -ENOMEM : -EIO;
}

static int map_pages(struct rv_ucx *u, struct rv_ucx_map *m)
{
	const ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = m->base.base,
		.length = m->base.len,
	};
	ucs_status_t status = ucp_mem_map(u->context, &params, &m->memh);
	int rc;

	if (status == UCS_OK)
		return 0;
	rc = map_err(status, m->base.len);
	rv_log_err("ucx: ucp_mem_map of %" PRIu64 " bytes failed: %s%s", m->base.len,
		   ucs_status_string(status), rc == -EPERM ? " (memlock limit?)" : "");
	return rc;
}

/* No domain has a key for it: a device could not read it, UCX would fall back to the owner's software. */
static bool is_empty_key(const uint8_t *key)
{
	static const uint8_t none[MD_MAP_BYTES];

	return memcmp(key, none, sizeof(none)) == 0;
}

static int take_key(struct rv_ucx *u, struct rv_ucx_map *m, const uint8_t *key, size_t len)
{
	enum rv_rkey_verdict v = rv_rkey_parse(key, len, true);

	if (v != RV_RKEY_OK) {
		rv_log_err("ucx: our own packed key of %zu bytes is refused: %s", len,
			   rv_rkey_verdict_name(v));
		return -ENOTSUP;
	}
	if (u->base.native && is_empty_key(key)) {
		rv_log_err("ucx: no device key was made for %" PRIu64 " bytes", m->base.len);
		return -ENOTSUP;
	}
	RV_CHECK(len <= sizeof(m->base.key));
	memcpy(m->base.key, key, len);
	m->base.key_len = len;
	return 0;
}

static int pack_key(struct rv_ucx *u, struct rv_ucx_map *m)
{
	void *key;
	size_t len;
	ucs_status_t status = ucp_rkey_pack(u->context, m->memh, &key, &len);
	int rc;

	if (status != UCS_OK) {
		rv_log_err("ucx: ucp_rkey_pack failed: %s", ucs_status_string(status));
		return status == UCS_ERR_NO_MEMORY ? -ENOMEM : -ENOTSUP;
	}
	rc = take_key(u, m, key, len);
	ucp_rkey_buffer_release(key);
	return rc;
}

int rv_ucx_map(struct rv_ucx *u, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out)
{
	struct rv_ucx_map *m;
	int rc;

	RV_CHECK(len > 0);
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->base.base = base;
	m->base.len = len;
	rc = map_pages(u, m);
	if (rc)
		goto err_free;
	if (access != RV_MAP_DESTINATION) {
		rc = pack_key(u, m);
		if (rc)
			goto err_unmap;
	}
	u->maps_nr++;
	*out = &m->base;
	return 0;

err_unmap:
	if (ucp_mem_unmap(u->context, m->memh) != UCS_OK)
		u->maps_nr++; /* never to be unmapped: destroy must know */
err_free:
	free(m);
	return rc;
}

int rv_ucx_unmap(struct rv_ucx *u, struct rv_fabric_map *map)
{
	struct rv_ucx_map *m = (struct rv_ucx_map *)map;
	ucs_status_t status = ucp_mem_unmap(u->context, m->memh);

	if (status != UCS_OK) {
		rv_log_err("ucx: ucp_mem_unmap of %" PRIu64 " bytes failed: %s", map->len,
			   ucs_status_string(status));
		return -EIO;
	}
	u->maps_nr--;
	free(m);
	return 0;
}
