#include "tools/bench_report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define RULE \
	"---------------------------------------------------------------------------------------\n"

struct rv_bench_cpu rv_bench_cpu_now(void)
{
	struct rv_bench_cpu now = {0};
	uint64_t t[8];
	FILE *f = fopen("/proc/stat", "r");

	if (!f)
		return now;
	now.known = fscanf(f,
			   "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
			   " %" SCNu64 " %" SCNu64 " %" SCNu64,
			   &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) == 8;
	fclose(f);
	for (unsigned i = 0; now.known && i < 8; i++) {
		now.all += t[i];
		now.busy += i == 3 || i == 4 ? 0 : t[i]; /* idle, and idle with I/O under way */
	}
	return now;
}

double rv_bench_cpu_between(struct rv_bench_cpu a, struct rv_bench_cpu b)
{
	if (!a.known || !b.known || b.all <= a.all || b.busy < a.busy)
		return NAN;
	return 100.0 * (double)(b.busy - a.busy) / (double)(b.all - a.all);
}

/* ---- the table ---- */

static const char *said(const char *text)
{
	return text[0] ? text : "-";
}

static void banner(const struct rv_bench_client *b)
{
	const struct rv_bench_opts *o = b->o;
	const char *mine = said(b->end.version), *theirs = said(b->version);
	bool alone = o->path == RV_BENCH_PATH_LOCAL;

	printf(RULE "                    GET %s Test\n", o->kind == RV_BENCH_BW ? "BW" : "Latency");
	printf(" Path           : %s\n", b->path);
	printf(" Same host      : %s\n", !b->host_known ? "-" : b->same_host ? "yes" : "no");
	if (strncmp(b->path, "verbs", 5) == 0)
		printf(" Verbs          : %s\n",
		       said(b->end.verbs)); /* the device is in the path */
	else if (alone || strcmp(mine, theirs) == 0)
		printf(" UCX version    : %s\n", mine);
	else
		printf(" UCX version    : %s here, %s at the server\n", mine, theirs);
	printf(" Operation      : %s\n", rv_bench_op_name(o->op));
	if (o->batch)
		printf(" Batch          : %" PRIu32 "\n", o->batch);
	else if (o->kind == RV_BENCH_BW)
		printf(" Sessions       : %" PRIu32 "\n TX depth       : %" PRIu32 "\n", o->qps,
		       o->depth);
	printf(" Node           : %s\n", o->socket ? o->socket : "private");
	if (o->validate)
		printf(" Validation     : every byte\n");
	if (strncmp(b->path, "ucx", 3) == 0 && b->end.emulated)
		printf(" No native lane : UCX does each GET in software at the owner, and any peer that reaches\n"
		       "                  either end can read and write it: for trusted networks only\n");
}

static void columns(const struct rv_bench_opts *o)
{
	const char *unit = o->gbits ? "Gb" : "MiB";

	if (o->kind == RV_BENCH_BW)
		printf("#bytes     #iterations    BW peak[%s/sec]    BW average[%s/sec]   MsgRate[Mpps]",
		       unit, unit);
	else
		printf("#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
		       "99%% percentile[usec] 99.9%% percentile[usec]");
	printf("%s\n", o->cpu ? "    CPU_Util[%]" : "");
}

void rv_bench_report_begin(struct rv_bench_report *r, const struct rv_bench_client *b)
{
	*r = (struct rv_bench_report){.b = b};
	rv_json_out_init(&r->json);
	strcpy(r->path, b->path);
	banner(b);
	printf(RULE);
	columns(b->o);
	fflush(stdout);
}

static double bandwidth(const struct rv_bench_opts *o, uint64_t size, uint64_t nr, double ns)
{
	return o->gbits ? rv_bench_gbit(size, nr, ns) : rv_bench_mib(size, nr, ns);
}

static void print_row(const struct rv_bench_opts *o, const struct rv_bench_row *w)
{
	const struct rv_bench_lat *l = &w->lat;
	char t[8][RV_BENCH_VALUE];

	if (o->kind == RV_BENCH_BW)
		printf("%-10" PRIu64 " %-14" PRIu64 " %-18s %-20s %s", w->size, w->iterations,
		       rv_bench_value(bandwidth(o, w->size, 1, w->peak_ns), 2, t[0]),
		       rv_bench_value(bandwidth(o, w->size, w->iterations, w->ns), 2, t[1]),
		       rv_bench_value(rv_bench_mpps(w->iterations, w->ns), 6, t[2]));
	else
		printf("%-6" PRIu64 " %-11" PRIu64 " %-11s %-11s %-15s %-11s %-13s %-20s %s",
		       w->size, w->iterations, rv_bench_value(l->min, 2, t[0]),
		       rv_bench_value(l->max, 2, t[1]), rv_bench_value(l->typical, 2, t[2]),
		       rv_bench_value(l->avg, 2, t[3]), rv_bench_value(l->stdev, 2, t[4]),
		       rv_bench_value(l->p99, 2, t[5]), rv_bench_value(l->p999, 2, t[6]));
	if (o->cpu)
		printf("    %s", rv_bench_value(w->cpu, 2, t[7]));
	printf("\n");
}

/* Another way than the banner's, or several. */
static void print_ways(const struct rv_bench_report *r, uint64_t size)
{
	const struct rv_bench_ways *w = &r->b->ways;

	if (!w->way[1].nr && strcmp(w->way[0].name, r->path) == 0)
		return;
	printf("# %" PRIu64 " bytes took another path:", size);
	for (unsigned i = 0; i < RV_BENCH_WAYS && w->way[i].nr; i++)
		printf("%s %" PRIu64 " by %s", i ? "," : "", w->way[i].nr, w->way[i].name);
	printf("\n");
}

/* ---- JSON ---- */

static void put_text(struct rv_json_out *j, const char *key, const char *text)
{
	rv_json_out_key(j, key);
	rv_json_out_str(j, text && *text ? text : NULL);
}

static void put_u64(struct rv_json_out *j, const char *key, uint64_t v)
{
	rv_json_out_key(j, key);
	rv_json_out_u64(j, v);
}

static void put_double(struct rv_json_out *j, const char *key, double v)
{
	rv_json_out_key(j, key);
	rv_json_out_double(j, v);
}

static void put_row(struct rv_json_out *j, const struct rv_bench_client *b,
		    const struct rv_bench_row *w)
{
	const struct rv_bench_opts *o = b->o;

	rv_json_out_object(j);
	put_u64(j, "MsgSize", w->size);
	put_u64(j, "n_iterations", w->iterations);
	if (o->kind == RV_BENCH_BW) {
		put_double(j, "BW_peak", bandwidth(o, w->size, 1, w->peak_ns));
		put_double(j, "BW_average", bandwidth(o, w->size, w->iterations, w->ns));
		put_double(j, "MsgRate", rv_bench_mpps(w->iterations, w->ns));
	} else {
		put_double(j, "t_min", w->lat.min);
		put_double(j, "t_max", w->lat.max);
		put_double(j, "t_typical", w->lat.typical);
		put_double(j, "t_avg", w->lat.avg);
		put_double(j, "t_stdev", w->lat.stdev);
		put_double(j, "percentile_99", w->lat.p99);
		put_double(j, "percentile_99.9", w->lat.p999);
	}
	if (o->cpu)
		put_double(j, "CPU_util", w->cpu);
	put_double(j, "time_sec", w->ns / 1e9);
	rv_json_out_key(j, "paths");
	rv_json_out_object(j);
	for (unsigned i = 0; i < RV_BENCH_WAYS && b->ways.way[i].nr; i++)
		put_u64(j, b->ways.way[i].name, b->ways.way[i].nr);
	rv_json_out_object_end(j);
	rv_json_out_object_end(j);
}

static void put_info(struct rv_json_out *j, const struct rv_bench_report *r)
{
	const struct rv_bench_client *b = r->b;
	const struct rv_bench_opts *o = b->o;

	rv_json_out_object(j);
	put_text(j, "test", o->kind == RV_BENCH_BW ? "GET_BW_Test" : "GET_Latency_Test");
	put_text(j, "Device", o->device);
	put_u64(j, "Number_of_qps", o->qps);
	put_text(j, "Transport_type", r->path);
	put_u64(j, "TX_depth", o->batch ? o->batch : o->depth);
	if (o->gid != UINT32_MAX)
		put_u64(j, "GID_index", o->gid);
	put_text(j, "op", rv_bench_op_name(o->op));
	if (o->kind == RV_BENCH_BW)
		put_text(j, "BW_unit", o->gbits ? "Gb/sec" : "MiB/sec");
	rv_json_out_key(j, "same_host");
	if (b->host_known)
		rv_json_out_bool(j, b->same_host);
	else
		rv_json_out_null(j);
	put_text(j, "ucx_version", b->end.version);
	put_text(j, "server_ucx_version", b->version);
	rv_json_out_key(j, "data_validation");
	rv_json_out_bool(j, o->validate);
	rv_json_out_object_end(j);
}

void rv_bench_report_row(struct rv_bench_report *r, const struct rv_bench_row *row)
{
	print_row(r->b->o, row);
	print_ways(r, row->size);
	fflush(stdout);
	if (r->b->o->json)
		put_row(&r->json, r->b, row);
}

static int write_json(const struct rv_bench_report *r)
{
	const struct rv_bench_opts *o = r->b->o;
	struct rv_json_out info;
	bool bad, many = o->all;
	FILE *f;

	rv_json_out_init(&info);
	put_info(&info, r);
	f = info.bad || r->json.bad ? NULL : fopen(o->json_file, "w");
	if (!f) {
		rv_json_out_fini(&info);
		return rv_bench_fail(o, "report: cannot write %s: %s", o->json_file,
				     strerror(errno));
	}
	fprintf(f, "{\n\"test_info\": %s,\n\"results\": %s%s%s\n}\n", info.buf, many ? "[" : "",
		r->json.buf, many ? "]" : "");
	bad = ferror(f) != 0;
	bad |= fclose(f) != 0;
	rv_json_out_fini(&info);
	return bad ? rv_bench_fail(o, "report: cannot write %s: %s", o->json_file, strerror(errno))
		   : 0;
}

int rv_bench_report_end(struct rv_bench_report *r, bool write)
{
	int rc = 0;

	if (write) {
		printf(RULE);
		fflush(stdout);
		if (r->b->o->json)
			rc = write_json(r);
	}
	rv_json_out_fini(&r->json);
	return rc;
}
