#include "ucx/ucx_err.h"

#include "dataplane/base/err.h"

int rv_ucx_err(ucs_status_t status)
{
	switch (status) {
	case UCS_OK:
		return 0;
	case UCS_ERR_NO_MEMORY:
		return -ENOMEM;
	case UCS_ERR_NO_RESOURCE:
	case UCS_ERR_BUSY:
		return -EAGAIN;
	case UCS_ERR_EXCEEDS_LIMIT:
		return -ENOSPC;
	case UCS_ERR_INVALID_PARAM:
		return -EINVAL;
	case UCS_ERR_UNREACHABLE:
	case UCS_ERR_NO_DEVICE:
	case UCS_ERR_SOME_CONNECTS_FAILED:
		return -EHOSTUNREACH;
	case UCS_ERR_INVALID_ADDR:
		return -EPROTO;
	case UCS_ERR_UNSUPPORTED:
	case UCS_ERR_NOT_IMPLEMENTED:
		return -ENOTSUP;
	case UCS_ERR_CANCELED:
	case UCS_ERR_REJECTED:
	case UCS_ERR_NOT_CONNECTED:
	case UCS_ERR_CONNECTION_RESET:
		return -ECONNRESET;
	default:
		return UCS_IS_ENDPOINT_ERROR(status) || UCS_IS_LINK_ERROR(status) ? -ECONNRESET
										  : -EIO;
	}
}

int rv_ucx_get_err(ucs_status_t status)
{
	int rc = rv_ucx_err(status);

	return rc == 0 || rc == -ECONNRESET ? rc : -EIO;
}
