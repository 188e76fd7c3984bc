#include "dataplane/lcore/eal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_version.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/lcore/eal_log.h"

#define MAX_REACTORS 63

static bool started;
static struct launch {
	char name[16];
	void (*fn)(void *);
	void *arg;
} launches[MAX_REACTORS + 1];

static size_t put_cpus(char *out, size_t cap, const cpu_set_t *set)
{
	size_t n = 0;

	for (int c = 0; c < CPU_SETSIZE; c++) {
		if (CPU_ISSET((size_t)c, set))
			n += (size_t)snprintf(out + n, cap - n, "%s%d", n ? "," : "", c);
		if (n + 16 >= cap)
			break;
	}
	return n;
}

/* "0@(all),1@(3),2@(all)": lcore 0 is the caller, reactor i is lcore i + 1. */
static void put_lcores(char *out, size_t cap, const int *cpu, unsigned nr, const cpu_set_t *all)
{
	char any[2048];
	size_t n;

	put_cpus(any, sizeof(any), all);
	n = (size_t)snprintf(out, cap, "0@(%s)", any);
	for (unsigned i = 0; i < nr && n < cap; i++) {
		if (cpu[i] == RV_EAL_CPU_ANY)
			n += (size_t)snprintf(out + n, cap - n, ",%u@(%s)", i + 1, any);
		else
			n += (size_t)snprintf(out + n, cap - n, ",%u@(%d)", i + 1, cpu[i]);
	}
}

int rv_eal_start(const int *cpu, unsigned nr)
{
	static char lcores[8192];
	char prefix[32];
	char *argv[] = {"rvd",
			"--no-pci",
			"--no-huge",
			"--no-shconf",
			"--no-telemetry",
			"-m",
			"64",
			"--file-prefix",
			prefix,
			"--log-level",
			(char *)rv_eal_log_level(),
			"--lcores",
			lcores,
			NULL};
	cpu_set_t before;
	int rc;

	if (started)
		return -EBUSY;
	RV_CHECK(nr <= MAX_REACTORS);
	if (sched_getaffinity(0, sizeof(before), &before))
		return -errno;
	put_lcores(lcores, sizeof(lcores), cpu, nr, &before);
	snprintf(prefix, sizeof(prefix), "rvd-%d", (int)getpid());
	rv_eal_log_join();
	rte_log_set_global_level(rv_log_get_level() >= RV_LOG_DEBUG ? RTE_LOG_INFO : RTE_LOG_ERR);
	rc = rte_eal_init((int)RV_ARRAY_NR(argv) - 1, argv);
	sched_setaffinity(0, sizeof(before), &before);
	if (rc < 0)
		return -EIO;
	started = true;
	return 0;
}

static int trampoline(void *arg)
{
	struct launch *l = arg;

	pthread_setname_np(pthread_self(), l->name);
	l->fn(l->arg);
	return 0;
}

int rv_eal_launch(unsigned i, const char *name, void (*fn)(void *), void *arg)
{
	struct launch *l;

	RV_CHECK(started && i < MAX_REACTORS);
	l = &launches[i];
	l->fn = fn;
	l->arg = arg;
	snprintf(l->name, sizeof(l->name), "%s", name);
	return rte_eal_remote_launch(trampoline, l, i + 1) ? -EBUSY : 0;
}

void rv_eal_join(unsigned i)
{
	rte_eal_wait_lcore(i + 1);
}

const char *rv_eal_version(void)
{
	return rte_version() + strlen("DPDK ");
}
