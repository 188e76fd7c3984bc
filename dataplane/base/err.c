#include "dataplane/base/err.h"

#include <string.h>

const char *rv_err_name(int err)
{
	switch (err) {
	case 0:
		return "ok";
	case -EAGAIN:
		return "busy";
	case -ENOSPC:
		return "no space left in budget or table";
	case -ENOMEM:
		return "out of memory";
	case -ENOENT:
		return "no such handle";
	case -ESTALE:
		return "is over";
	case -ERANGE:
		return "out of range";
	case -EPROTO:
		return "protocol violation";
	case -EREMOTEIO:
		return "the peer reported an error";
	case -EHOSTUNREACH:
		return "peer unreachable";
	case -ECONNRESET:
		return "connection lost";
	case -EKEYREVOKED:
		return "lease lost";
	case -EBADMSG:
		return "content is not what was staged";
	case -EMSGSIZE:
		return "longer than the limit";
	case -ENOTSUP:
		return "not supported here";
	case -ESHUTDOWN:
		return "shutting down";
	case -ETIMEDOUT:
		return "timed out";
	case -EINVAL:
		return "invalid argument";
	case -EMFILE:
	case -ENFILE:
		return "no file descriptor is left";
	case -EPERM:
		return "not permitted";
	default:
		return strerrordesc_np(-err) ? strerrordesc_np(-err) : "unknown error";
	}
}
