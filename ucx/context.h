/*
 * context.h - the UCX context: which settings, which transports, and what that makes of the fabric.
 */
#ifndef RV_UCX_CONTEXT_H
#define RV_UCX_CONTEXT_H

#include <stdbool.h>

#include <ucp/api/ucp.h>

#include "ucx/fabric_ucx.h"

struct rv_ucx {
	struct rv_fabric base;
	ucp_context_h context;
	unsigned maps_nr; /* mapped and not unmapped; changed by the slow thread only */
	unsigned reactors;
	struct rv_ucx_am *
		*am; /* one a reactor, or NULL: nobody is asked about its idle endpoints */
	bool eager;  /* endpoints are made when a peer becomes known */
	_Atomic uint64_t idle_ns; /* rv_ucx_set_idle(); relaxed: a scan sooner or later sees it */
	struct rv_fabric_counts *counts; /* one a reactor */
	struct rv_ucx_worker *worker[];  /* NULL: closed; each slot is its reactor's own */
};

/**
 * Whether a transport list leaves UCX nothing but lanes on which the device reads remote memory; helpers that
 * only wire up (":aux") are allowed. NULL, "auto", "all" and lists that begin with ^ are not native.
 *
 * @thread any
 */
bool rv_ucx_tls_native(const char *tls);

/**
 * Read the configuration, apply ours where the environment is silent, and make the context.
 *
 * @param why          RV_UCX_WHY bytes; written on failure
 * @param[out] native  no emulated lane is possible
 * @return 0, or a negative errno
 *
 * @thread init   @cost 20 to 300 ms
 */
int rv_ucx_context_open(const struct rv_ucx_conf *conf, char *why, bool *native,
			ucp_context_h *out);

/** Append to a reason why the path cannot be had what the environment sets that may be the cause. @thread init */
void rv_ucx_name_suspects(char *why);

/** Nothing may be mapped any more: UCX aborts then. @thread init */
void rv_ucx_context_close(ucp_context_h context);

#endif
