/*
 * What an administrator may ask of a running daemon.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "control/local/session_impl.h"
#include "dataplane/base/log.h"

static bool may_change(const struct session *s)
{
	return s->uid == 0 || s->uid == geteuid();
}

static void set_kill_switch(struct session *s, bool on)
{
	atomic_store_explicit(&s->local->conf.engines->rdma_off, on, memory_order_relaxed);
	rv_log_info("rendezvous: the kill switch is %s",
		    on ? "on: everything goes in chunks" : "off");
}

static int set_level(const char *word)
{
	enum rv_log_level level;

	if (!rv_log_level_parse(word, &level))
		return -EINVAL;
	rv_log_set_level(level);
	return 0;
}

void rv_session_admin(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id};
	bool asks = rq->what == RV_LOCAL_KILL_SWITCH ||
		    (rq->what == RV_LOCAL_LOG_LEVEL && !rq->name[0]);

	if (!asks && !may_change(s)) {
		rv_session_refuse(s, rq, RV_LOCAL_ADMIN, -EPERM,
				  "only root and the daemon's own user may do that");
		return;
	}
	switch ((enum rv_local_admin)rq->what) {
	case RV_LOCAL_KILL_SWITCH:
		break;
	case RV_LOCAL_KILL_SWITCH_ON:
	case RV_LOCAL_KILL_SWITCH_OFF:
		set_kill_switch(s, rq->what == RV_LOCAL_KILL_SWITCH_ON);
		break;
	case RV_LOCAL_DRAIN:
		s->local->conf.drain(s->local->conf.user);
		break;
	case RV_LOCAL_LOG_LEVEL:
		if (rq->name[0] && set_level(rq->name)) {
			rv_session_refuse(s, rq, RV_LOCAL_ADMIN, -EINVAL,
					  "a level is error, warn, info or debug");
			return;
		}
		break;
	default:
		rv_session_refuse(s, rq, RV_LOCAL_ADMIN, -ENOTSUP,
				  "that is not known to this daemon");
		return;
	}
	rep.path = atomic_load_explicit(&s->local->conf.engines->rdma_off, memory_order_relaxed);
	snprintf(rep.path_name, sizeof(rep.path_name), "%s", rv_log_level_name(rv_log_get_level()));
	rv_session_reply(s, &rep, RV_LOCAL_ADMIN, NULL, 0, -1);
}
