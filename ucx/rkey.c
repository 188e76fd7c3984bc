#include "ucx/rkey.h"

#include <string.h>

#include "dataplane/base/err.h"
#include "ucx/rkey_parse.h"

int rv_ucx_rkey_unpack(ucp_ep_h ep, const uint8_t *key, size_t len, ucp_rkey_h *out)
{
	uint8_t padded[RV_RKEY_MAX + RV_RKEY_PAD];
	ucs_status_t status;

	if (rv_rkey_parse(key, len, true) != RV_RKEY_OK)
		return -EPROTO;
	memcpy(padded, key, len);
	/* An end mark wherever UCX might look behind the blob. */
	memset(padded + len, 0xff, sizeof(padded) - len);
	status = ucp_ep_rkey_unpack(ep, padded, out);
	if (status == UCS_OK)
		return 0;
	return status == UCS_ERR_NO_MEMORY ? -ENOMEM : -EPROTO;
}
