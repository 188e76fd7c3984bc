#include "verbs/events.h"

#include <errno.h>
#include <string.h>

#include "dataplane/base/log.h"

static void keep(struct rv_verbs *v, const struct ibv_async_event *ev)
{
	if (ev->event_type == IBV_EVENT_DEVICE_FATAL)
		atomic_store_explicit(&v->base.dead, true, memory_order_relaxed);
	if (v->events_nr == RV_ARRAY_NR(v->events)) {
		rv_log_warn("verbs: too many events of %s, one is lost: %s", v->dev.name,
			    ibv_event_type_str(v->events[v->events_nr - 1].event_type));
		v->events_nr--; /* the newer one says how things are */
	}
	v->events[v->events_nr++] = *ev;
}

static void take(struct rv_verbs *v)
{
	struct ibv_async_event ev;

	while (ibv_get_async_event(v->dev.ctx, &ev) == 0) {
		/* What it names cannot be destroyed before it is acknowledged. */
		ibv_ack_async_event(&ev);
		keep(v, &ev);
	}
}

bool rv_verbs_event_next(struct rv_verbs *v, struct ibv_async_event *out)
{
	bool there;

	pthread_mutex_lock(&v->events_lock);
	take(v);
	there = v->events_nr > 0;
	if (there) {
		*out = v->events[0];
		memmove(v->events, v->events + 1, --v->events_nr * sizeof(*out));
	}
	pthread_mutex_unlock(&v->events_lock);
	return there;
}

bool rv_verbs_let_go(struct rv_verbs *v, int err)
{
	if (err != EIO)
		return err == 0;
	pthread_mutex_lock(&v->events_lock);
	take(v);
	pthread_mutex_unlock(&v->events_lock);
	return atomic_load_explicit(&v->base.dead, memory_order_relaxed);
}
