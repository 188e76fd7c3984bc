#include "verbs/window.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "verbs/events.h"
#include "verbs/fence.h"
#include "verbs/mr.h"

/* Both are local: a device that takes longer is broken. */
#define POSTED_NS RV_MS(250)
#define IDLE_MAX  256
/* A key's low byte counts the binds; before it comes round the window goes, so that no old key ever fits anew. */
#define BINDS_MAX 250

struct window {
	struct rv_fabric_key base;
	struct rv_list link; /* of its queue pair, or idle */
	struct ibv_mw *mw;   /* NULL: deallocated */
	struct rv_verbs_served *at;
	unsigned binds;
};

static struct rv_verbs_served *find(struct rv_verbs *v, const struct rv_fabric_reader *to)
{
	struct rv_verbs_domain *d = rv_map64_get(&v->domains, to->worker);
	struct rv_list *it;

	if (!d)
		return NULL;
	RV_LIST_EACH(it, &d->served)
	{
		struct rv_verbs_served *s = RV_LIST_ENTRY(it, struct rv_verbs_served, of_domain);

		if (s->reads_by == to->qp && !s->stuck)
			return s;
	}
	return NULL;
}

/*
 * What is under way on these queue pairs is one request at a time; others' are of those that were given up.
 *
 * @param[out] how  in words, after a failure
 */
static int await(struct rv_verbs *v, uint64_t id, const char **how)
{
	uint64_t deadline = rv_clock_ns() + POSTED_NS;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(v->served_cq, 1, &wc);
		if (n > 0 && wc.wr_id == id) {
			*how = ibv_wc_status_str(wc.status);
			return wc.status == IBV_WC_SUCCESS ? 0 : -ECONNRESET;
		}
	} while (n > 0 || (n == 0 && rv_clock_ns() < deadline));
	*how = n ? "its completions cannot be read" : "it does not answer";
	return n ? -EIO : -ETIMEDOUT;
}

static int post(struct rv_verbs *v, struct rv_verbs_served *s, struct ibv_send_wr *wr)
{
	struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
	const char *how = "it takes no requests";
	struct ibv_send_wr *bad;
	int rc;

	wr->wr_id = ++v->last_posted;
	wr->send_flags = IBV_SEND_SIGNALED;
	rc = -ibv_post_send(s->end.qp, wr, &bad);
	if (!rc)
		rc = await(v, wr->wr_id, &how);
	if (rc) {
		rv_log_info("verbs: a window could not be %s on a queue pair that worker %" PRIu64
			    " reads by: %s",
			    wr->opcode == IBV_WR_BIND_MW ? "bound" : "invalidated", s->worker, how);
		s->stuck = true;
		ibv_modify_qp(s->end.qp, &broken, IBV_QP_STATE);
	}
	return rc;
}

static int deallocate(struct rv_verbs *v, struct window *w)
{
	int err = w->mw ? ibv_dealloc_mw(w->mw) : 0;

	if (!rv_verbs_let_go(v, err)) {
		rv_log_err("verbs: ibv_dealloc_mw failed: %s", strerrordesc_np(err));
		return -EIO;
	}
	w->mw = NULL;
	return 0;
}

static struct window *take_idle(struct rv_verbs *v)
{
	struct rv_list *it = rv_list_pop(&v->idle_windows);
	struct window *w;

	if (it) {
		v->idle_nr--;
		return RV_LIST_ENTRY(it, struct window, link);
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	rv_list_init(&w->link);
	w->mw = ibv_alloc_mw(v->pd, IBV_MW_TYPE_2);
	if (!w->mw) {
		rv_log_warn("verbs: ibv_alloc_mw failed: %m");
		free(w);
		return NULL;
	}
	return w;
}

static int bind_to(struct rv_verbs *v, struct rv_verbs_served *s, struct window *w,
		   struct ibv_mr *mr, void *addr, uint64_t len)
{
	uint32_t rkey = ibv_inc_rkey(w->mw->rkey);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = {.mw = w->mw,
			    .rkey = rkey,
			    .bind_info = {.mr = mr,
					  .addr = (uint64_t)(uintptr_t)addr,
					  .length = len,
					  .mw_access_flags = IBV_ACCESS_REMOTE_READ}},
	};
	int rc = post(v, s, &wr);

	if (!rc)
		w->mw->rkey = rkey; /* not every provider does it */
	w->binds++;
	return rc;
}

static int bind_locked(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
		       const struct rv_fabric_reader *to, struct window **out)
{
	struct rv_verbs_served *s = find(v, to);
	struct window *w;
	int rc;

	if (!s)
		return -ENOTCONN;
	w = take_idle(v);
	if (!w)
		return -ENOMEM;
	rc = bind_to(v, s, w, ((struct rv_verbs_map *)m)->mr, addr, len);
	if (rc) {
		/* It may be bound nevertheless, on a queue pair that answers nothing any more. */
		if (!deallocate(v, w))
			free(w);
		return rc;
	}
	w->at = s;
	rv_list_push(&s->windows, &w->link);
	*out = w;
	return 0;
}

int rv_verbs_window_bind(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
			 const struct rv_fabric_reader *to, struct rv_fabric_key **out)
{
	struct window *w;
	int rc;

	pthread_mutex_lock(&v->domains_lock);
	rc = bind_locked(v, m, addr, len, to, &w);
	pthread_mutex_unlock(&v->domains_lock);
	if (rc)
		return rc;
	w->base.pinned = 0;
	rv_verbs_key_encode(w->base.key, w->mw->rkey);
	w->base.key_len = RV_VERBS_KEY;
	atomic_fetch_add(&v->keys_nr, 1);
	*out = &w->base;
	return 0;
}

static int invalidate(struct rv_verbs *v, struct window *w)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = w->mw->rkey};

	return w->at && !w->at->stuck ? post(v, w->at, &wr) : -ECONNRESET;
}

/* @return 0: it is read by nobody any more */
static int revoke_locked(struct rv_verbs *v, struct window *w)
{
	bool reusable =
		w->mw && invalidate(v, w) == 0 && v->idle_nr < IDLE_MAX && w->binds < BINDS_MAX;

	rv_list_del(&w->link);
	w->at = NULL;
	if (reusable) {
		rv_list_push(&v->idle_windows, &w->link);
		v->idle_nr++;
		return 0;
	}
	if (deallocate(v, w))
		return -EIO;
	free(w);
	return 0;
}

int rv_verbs_window_revoke(struct rv_verbs *v, struct rv_fabric_key *key)
{
	struct window *w = (struct window *)key;
	int rc;

	pthread_mutex_lock(&v->domains_lock);
	rc = revoke_locked(v, w);
	pthread_mutex_unlock(&v->domains_lock);
	if (!rc)
		atomic_fetch_sub(&v->keys_nr, 1);
	return rc;
}

void rv_verbs_windows_begin(struct rv_verbs *v, struct rv_verbs_served *s)
{
	pthread_mutex_lock(&v->domains_lock);
	rv_list_push(&s->domain->served, &s->of_domain);
	pthread_mutex_unlock(&v->domains_lock);
}

void rv_verbs_windows_end(struct rv_verbs *v, struct rv_verbs_served *s)
{
	struct ibv_qp_attr broken = {.qp_state = IBV_QPS_ERR};
	struct rv_list *it;

	pthread_mutex_lock(&v->domains_lock);
	rv_list_del(&s->of_domain);
	if (s->end.qp && !rv_list_empty(&s->windows))
		ibv_modify_qp(s->end.qp, &broken, IBV_QP_STATE);
	while ((it = rv_list_pop(&s->windows))) {
		struct window *w = RV_LIST_ENTRY(it, struct window, link);

		w->at = NULL;
		deallocate(v, w); /* else its key's revocation tries again */
	}
	pthread_mutex_unlock(&v->domains_lock);
}

void rv_verbs_windows_fini(struct rv_verbs *v)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&v->idle_windows))) {
		struct window *w = RV_LIST_ENTRY(it, struct window, link);

		deallocate(v, w);
		free(w);
	}
}
