/*
 * fail_map.c - preloaded into a daemon: the memory registrations from the RV_FAIL_FROM-th on, RV_FAIL_NR of them, fail
 * for want of memory. UCX's and verbs' alike.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include <infiniband/verbs.h>
#include <ucp/api/ucp.h>

static _Atomic unsigned long calls;

static int fails(void)
{
	const char *from = getenv("RV_FAIL_FROM"), *nr = getenv("RV_FAIL_NR");
	unsigned long first = from ? strtoul(from, NULL, 10) : 0;
	unsigned long k = atomic_fetch_add(&calls, 1) + 1;

	return first && k >= first && k - first < (nr ? strtoul(nr, NULL, 10) : 1);
}

ucs_status_t ucp_mem_map(ucp_context_h ctx, const ucp_mem_map_params_t *params, ucp_mem_h *out)
{
	static ucs_status_t (*real)(ucp_context_h, const ucp_mem_map_params_t *, ucp_mem_h *);

	if (fails())
		return UCS_ERR_NO_MEMORY;
	if (!real)
		*(void **)(&real) = dlsym(RTLD_NEXT, "ucp_mem_map");
	return real(ctx, params, out);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	static struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, int);

	if (fails()) {
		errno = ENOMEM;
		return NULL;
	}
	if (!real)
		*(void **)(&real) = dlsym(RTLD_NEXT, "ibv_reg_mr");
	return real(pd, addr, len, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
				unsigned int access)
{
	static struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);

	if (fails()) {
		errno = ENOMEM;
		return NULL;
	}
	if (!real)
		*(void **)(&real) = dlsym(RTLD_NEXT, "ibv_reg_mr_iova2");
	return real(pd, addr, len, iova, access);
}
