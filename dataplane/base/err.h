/*
 * err.h - the negative errno values our functions return, one meaning each.
 *
 *   -EAGAIN     queue, table of requests or credits full: poll again
 *   -ENOSPC     budget, pool or table full: take the slower path, or answer "busy"
 *   -ENOMEM     the heap or the kernel refused memory
 *   -ENOENT     never existed
 *   -ESTALE     existed, is over
 *   -ERANGE     outside the region, the slot or the field
 *   -EPROTO     a peer said something the protocol does not allow
 *   -EREMOTEIO  a peer answered with an error of its own
 *   -EHOSTUNREACH  no way to that peer (never connected, or refused)
 *   -ECONNRESET    there was a way, and it broke under the operation
 *   -EKEYREVOKED   lease lost: the bytes cannot be proven right
 *   -EBADMSG    the content is not what its owner staged
 *   -EMSGSIZE   longer than the limit allows
 *   -ENOTSUP    this node, build or backend cannot do it
 *   -ESHUTDOWN  gate closed: draining or shutting down
 *   -ETIMEDOUT  the deadline passed; the outcome is unknown
 *   -EINVAL     the caller's arguments are wrong
 *   -EPERM      not this user's
 *   -EMFILE     the process, or the system, has no file descriptor left
 */
#ifndef RV_DATAPLANE_BASE_ERR_H
#define RV_DATAPLANE_BASE_ERR_H

#include <errno.h>

/** Short name of a negative errno in our sense ("lease lost", "stale", ...); never NULL. @thread any */
const char *rv_err_name(int err);

#endif
