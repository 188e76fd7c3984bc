/*
 * ref.h - from the host in a reference to the IP literals that the daemon takes.
 */
#ifndef RV_CONTROL_CLIENT_REF_H
#define RV_CONTROL_CLIENT_REF_H

#include <stddef.h>

#include "control/client/rv.h"

/** Longest IP literal with a terminator. */
#define RV_LITERAL_MAX 64

/** Addresses of a host that are tried at most. */
#define RV_LITERALS 4

/**
 * Look a host up; a literal is its own answer.
 *
 * @param[out] out  literals, in the order in which they are to be tried
 * @return how many, at least 1; or -EHOSTUNREACH and *why
 *
 * @thread any   @cost may ask name servers
 */
int rv_host_resolve(const char *host, char out[RV_LITERALS][RV_LITERAL_MAX], const char **why);

#endif
