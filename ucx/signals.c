#include "ucx/signals.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucs/type/status.h>

#include "dataplane/base/units.h"

/* The load address of the object that @addr lies in, or NULL. */
static const void *object_of(uintptr_t addr)
{
	Dl_info info;

	return dladdr((const void *)addr, &info) ? info.dli_fbase : NULL;
}

static bool is_libucs(const struct sigaction *sa)
{
	/* sa_sigaction and sa_handler share their place. */
	const void *object = object_of((uintptr_t)sa->sa_handler);

	if (sa->sa_handler == SIG_DFL || sa->sa_handler == SIG_IGN || !object)
		return false;
	/* Linked statically, libucs is one object with us and its handlers cannot be told from ours. */
	return object == object_of((uintptr_t)ucs_status_string) &&
	       object != object_of((uintptr_t)is_libucs);
}

unsigned rv_ucx_signals_release(void)
{
	static const int signals[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
	const struct sigaction dfl = {.sa_handler = SIG_DFL};
	struct sigaction sa;
	unsigned nr = 0;

	for (size_t i = 0; i < RV_ARRAY_NR(signals); i++) {
		if (sigaction(signals[i], NULL, &sa) || !is_libucs(&sa))
			continue;
		if (!sigaction(signals[i], &dfl, NULL))
			nr++;
	}
	return nr;
}
