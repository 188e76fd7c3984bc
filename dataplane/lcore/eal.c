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
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/lcore/eal_dir.h"
#include "dataplane/lcore/eal_log.h"

#define MAX_REACTORS 63
/* Where EAL looks for the CPUs there are. */
#define CPUS         "/sys/devices/system/cpu"

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

/* The CPUs no reactor is pinned to; where there is none, all. */
static cpu_set_t unpinned(const int *cpu, unsigned nr, const cpu_set_t *all)
{
	cpu_set_t rest = *all;

	for (unsigned i = 0; i < nr; i++) {
		if (cpu[i] != RV_EAL_CPU_ANY)
			CPU_CLR((size_t)cpu[i], &rest);
	}
	return CPU_COUNT(&rest) ? rest : *all;
}

/*
 * "0@(rest),1@(3),2@(all)": lcore 0 is the caller, reactor i is lcore i + 1. EAL's own threads go where no lcore is,
 * and as that is nowhere, where lcore 0 is.
 */
static void put_lcores(char *out, size_t cap, const int *cpu, unsigned nr, const cpu_set_t *all)
{
	cpu_set_t rest = unpinned(cpu, nr, all);
	char any[2048];
	size_t n;

	put_cpus(any, sizeof(any), &rest);
	n = (size_t)snprintf(out, cap, "0@(%s)", any);
	put_cpus(any, sizeof(any), all);
	for (unsigned i = 0; i < nr && n < cap; i++) {
		if (cpu[i] == RV_EAL_CPU_ANY)
			n += (size_t)snprintf(out + n, cap - n, ",%u@(%s)", i + 1, any);
		else
			n += (size_t)snprintf(out + n, cap - n, ",%u@(%d)", i + 1, cpu[i]);
	}
}

/* @param runtime_dir  where telemetry's socket goes; NULL: no telemetry */
static int init(char *lcores, const char *runtime_dir)
{
	char prefix[32] = RV_EAL_DIR_PREFIX;
	char *telemetry = runtime_dir ? "--telemetry" : "--no-telemetry";
	char *argv[] = {"rvd",
			"--no-pci",
			"--no-huge",
			"--no-shconf",
			telemetry,
			"-m",
			"64",
			"--file-prefix",
			prefix,
			"--log-level",
			(char *)rv_eal_log_level(),
			"--lcores",
			lcores,
			NULL};
	int rc;

	if (runtime_dir)
		rv_eal_dir_enter(runtime_dir);
	else
		snprintf(prefix, sizeof(prefix), RV_EAL_DIR_PREFIX "-%d", (int)getpid());
	rc = rte_eal_init((int)RV_ARRAY_NR(argv) - 1, argv);
	if (runtime_dir)
		rv_eal_dir_leave();
	else if (rc >= 0)
		rmdir(rte_eal_get_runtime_dir()); /* made all the same, and nothing is put there */
	return rc;
}

int rv_eal_start(const int *cpu, unsigned nr, const char *runtime_dir)
{
	static char lcores[8192];
	cpu_set_t before;
	int rc;

	if (started)
		return -EBUSY;
	if (access(CPUS, F_OK))
		return -ENXIO; /* EAL would complain of its own parameters, at length */
	RV_CHECK(nr <= MAX_REACTORS);
	if (sched_getaffinity(0, sizeof(before), &before))
		return -errno;
	put_lcores(lcores, sizeof(lcores), cpu, nr, &before);
	rc = runtime_dir ? rv_eal_dir_make(runtime_dir) : 0;
	if (rc)
		rv_log_warn("telemetry: not served: no socket can be made below %s: %s",
			    runtime_dir, rv_err_name(rc));
	rv_eal_log_join();
	rte_log_set_global_level(rv_log_get_level() >= RV_LOG_DEBUG ? RTE_LOG_INFO : RTE_LOG_ERR);
	rc = init(lcores, rc ? NULL : runtime_dir);
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

const char *rv_eal_telemetry_socket(void)
{
	return rv_eal_dir_socket();
}

const char *rv_eal_version(void)
{
	return rte_version() + strlen("DPDK ");
}
