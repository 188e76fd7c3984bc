#include "tools/rvctl_progress.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

#define FIRST_NS  RV_SEC(1)
#define EVERY_NS  RV_MS(200)
#define LINE      256
#define BAR_LEAST 10

static struct {
	const char *what;
	uint64_t total, began_ns;
	_Atomic uint64_t done;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool running, stop;
} p = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

static void put_bar(char *out, int columns, double share)
{
	int full = (int)(share * columns);

	for (int i = 0; i < columns; i++)
		out[i] = i < full ? '#' : '-';
	out[columns] = '\0';
}

int rv_progress_line(char *out, int width, const char *what, uint64_t done, uint64_t total,
		     double seconds)
{
	double rate = seconds > 0 ? (double)done / seconds : 0;
	double share = total ? (double)rv_min_u64(done, total) / (double)total : 0;
	char bar[LINE], left[24] = "";
	int n, columns;

	if (width > LINE - 1)
		width = LINE - 1;
	if (!total) {
		n = done ? snprintf(out, (size_t)width + 1, "%s: %.1f MiB in %.0f s", what,
				    (double)done / RV_MIB(1), seconds)
			 : snprintf(out, (size_t)width + 1, "%s: %.0f s", what, seconds);
		return n < width ? n : width;
	}
	if (rate > 0)
		snprintf(left, sizeof(left), ", %.0f s left",
			 (double)(total - rv_min_u64(done, total)) / rate);
	n = snprintf(bar, sizeof(bar), "%s [] %3.0f %%, %.2f GB/s%s", what, share * 100, rate / 1e9,
		     left);
	columns = width - n;
	if (columns < BAR_LEAST) {
		n = snprintf(out, (size_t)width + 1, "%s %3.0f %%", what, share * 100);
		return n < width ? n : width;
	}
	put_bar(bar, columns < 40 ? columns : 40, share);
	n = snprintf(out, (size_t)width + 1, "%s [%s] %3.0f %%, %.2f GB/s%s", what, bar,
		     share * 100, rate / 1e9, left);
	return n < width ? n : width;
}

static int width_of_terminal(void)
{
	struct winsize w;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || w.ws_col < 20 ? 79 : w.ws_col - 1;
}

static void draw(void)
{
	uint64_t done = atomic_load_explicit(&p.done, memory_order_relaxed);
	char line[LINE];

	rv_progress_line(line, width_of_terminal(), p.what, done, p.total,
			 (double)(rv_clock_ns() - p.began_ns) / 1e9);
	fprintf(stderr, "\r\033[K%s", line);
	fflush(stderr);
}

static void *drawing(void *arg)
{
	bool drawn = false;

	(void)arg;
	pthread_mutex_lock(&p.lock);
	while (!p.stop) {
		struct timespec at;
		uint64_t wait = drawn ? EVERY_NS : FIRST_NS;

		clock_gettime(CLOCK_MONOTONIC, &at);
		wait += (uint64_t)at.tv_nsec;
		at.tv_sec += (time_t)(wait / RV_SEC(1));
		at.tv_nsec = (long)(wait % RV_SEC(1));
		if (pthread_cond_clockwait(&p.over, &p.lock, CLOCK_MONOTONIC, &at) != ETIMEDOUT ||
		    p.stop)
			continue;
		draw();
		drawn = true;
	}
	pthread_mutex_unlock(&p.lock);
	if (drawn)
		fputs("\r\033[K", stderr);
	return NULL;
}

void rv_progress_begin(const char *what, uint64_t total)
{
	if (!isatty(STDERR_FILENO))
		return;
	p.what = what;
	p.total = total;
	p.began_ns = rv_clock_ns();
	p.stop = false;
	atomic_store_explicit(&p.done, 0, memory_order_relaxed);
	p.running = pthread_create(&p.thread, NULL, drawing, NULL) == 0;
}

void rv_progress_add(uint64_t nr)
{
	atomic_fetch_add_explicit(&p.done, nr, memory_order_relaxed);
}

void rv_progress_end(void)
{
	if (!p.running)
		return;
	pthread_mutex_lock(&p.lock);
	p.stop = true;
	pthread_cond_signal(&p.over);
	pthread_mutex_unlock(&p.lock);
	pthread_join(p.thread, NULL);
	p.running = false;
}
