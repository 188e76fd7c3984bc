#include "dataplane/lcore/port_thread.h"

#include <stdatomic.h>
#include <stdint.h>

static void *main_loop(void *arg)
{
	struct rv_port_thread *t = arg;

	pthread_setname_np(pthread_self(), t->name);
	while (!atomic_load_explicit(&t->stop, memory_order_acquire))
		rv_port_wait(t->port, t->turn ? t->turn(t->user) : -1);
	rv_port_poll(t->port, UINT32_MAX);
	return NULL;
}

int rv_port_thread_start(struct rv_port_thread *t)
{
	int rc = pthread_create(&t->thread, NULL, main_loop, t);

	t->running = rc == 0;
	return -rc;
}

void rv_port_thread_stop(struct rv_port_thread *t)
{
	if (!t->running)
		return;
	/* release: pairs with the acquire in main_loop(). */
	atomic_store_explicit(&t->stop, true, memory_order_release);
	rv_port_kick(t->port);
	pthread_join(t->thread, NULL);
	t->running = false;
}
